//! A counter with one copy per CPU.
//!
//! For:     statistics that every CPU writes and one reader sums; and the example of this crate.
//! State:   per CPU two cells on lines of their own: one for sequences, one for locked adds.
//! Context: `add` in a hit or signal; `new` in set-up; `sum` anywhere.
//! Keeps:   N1 a sum taken when no add runs is exact, whichever way the threads added.
//! Checked: `two_threads_and_a_migrator_lose_no_add`, `adds_with_and_without_rseq_sum_exactly`.

use crate::{RseqOffset, current_cpu, possible_cpus, try_add};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Two cache lines: CPUs that prefetch lines in pairs must not share one.
#[repr(C, align(128))]
struct Copy {
    sequenced: AtomicU64,
    locked: AtomicU64,
}

const SHIFT: u32 = size_of::<Copy>().trailing_zeros();

/// A sum that each CPU adds to on a cache line of its own.
pub struct Counter {
    copies: Box<[Copy]>,
    offset: RseqOffset,
}

impl Counter {
    /// A counter at zero, for threads that the C library made.
    pub fn new() -> Counter {
        Self::with_offset(RseqOffset::detect())
    }

    /// A counter at zero whose threads have their rseq area at `offset`.
    pub fn with_offset(offset: RseqOffset) -> Counter {
        let copies = (0..possible_cpus())
            .map(|_| Copy { sequenced: AtomicU64::new(0), locked: AtomicU64::new(0) })
            .collect();
        Counter { copies, offset }
    }

    /// Adds one.
    #[inline(always)]
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds `n`; the sum wraps.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        let base = self.copies.as_ptr().cast_mut().cast::<u64>();
        let copies = self.copies.len() as u32;
        // SAFETY: `offset` came from `detect` or from a caller of `RseqOffset::new`; `copies` cells
        // lie `1 << SHIFT` bytes apart from `base`, in atomics that only sequences write.
        if !unsafe { try_add::<SHIFT>(self.offset, base, copies, n) } {
            self.add_locked(n);
        }
    }

    #[cold]
    fn add_locked(&self, n: u64) {
        self.copies[current_cpu() as usize % self.copies.len()].locked.fetch_add(n, Relaxed);
    }

    /// What was added so far.
    pub fn sum(&self) -> u64 {
        self.copies.iter().fold(0u64, |sum, c| {
            sum.wrapping_add(c.sequenced.load(Relaxed)).wrapping_add(c.locked.load(Relaxed))
        })
    }
}

impl Default for Counter {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    const ADDS: u64 = if cfg!(miri) { 100 } else { 10_000_000 };

    #[test]
    fn two_threads_and_a_migrator_lose_no_add() {
        let counter = Arc::new(Counter::new());
        // More threads than CPUs: they preempt and move each other all the time.
        let threads: Vec<_> = (0..2 * possible_cpus().min(4))
            .map(|_| {
                let counter = counter.clone();
                thread::spawn(move || {
                    for i in 0..ADDS {
                        counter.add(3);
                        if i % 4096 == 0 {
                            thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let n = threads.len() as u64;
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(counter.sum(), 3 * n * ADDS);
    }

    #[test]
    fn adds_with_and_without_rseq_sum_exactly() {
        let mut counter = Counter::new();
        for _ in 0..1000 {
            counter.inc();
        }
        counter.offset = RseqOffset::NONE;
        for _ in 0..1000 {
            counter.inc();
        }
        assert_eq!(counter.sum(), 2000);
        let locked: u64 = counter.copies.iter().map(|c| c.locked.load(Relaxed)).sum();
        assert!(locked >= 1000, "adds without rseq must go to the locked cells");
    }

    #[test]
    #[cfg(all(target_arch = "x86_64", target_env = "gnu", not(miri)))]
    fn a_glibc_thread_has_rseq_and_takes_the_fast_side() {
        // Debian 12 and later, Ubuntu 22.04 and later; GLIBC_TUNABLES can turn it off.
        let counter = Counter::new();
        counter.inc();
        let locked: u64 = counter.copies.iter().map(|c| c.locked.load(Relaxed)).sum();
        assert_eq!(locked, u64::from(!counter.offset.is_some()));
    }

    #[test]
    fn a_conditional_store_sees_its_expectation() {
        let offset = RseqOffset::detect();
        let mut cell = 5u64;
        // SAFETY: `offset` is the C library's, and `cell` is this thread's own.
        while offset.is_some() && !unsafe { crate::store_if(offset, current_cpu(), &mut cell, 5, 6) } {}
        // SAFETY: as above.
        assert!(!unsafe { crate::store_if(offset, current_cpu(), &mut cell, 5, 7) });
        assert_eq!(cell, if offset.is_some() { 6 } else { 5 });
    }
}
