//! Counting to a limit, exactly, without one shared line.
//!
//! For:     the number of keys of a hash.
//! State:   what is left for all, and per CPU what it may use without asking.
//! Context: hit, signal, target. Lock-free.
//! Keeps:   R1 credits taken and not given are never more than the limit. R2 a refusal means that none was
//!          left anywhere when it looked.
//! Checked: `credits_are_exact_under_threads` in tests/semantics.rs.

use crate::place::{Access, Place};
use crate::prim::{AtomicU64, Relaxed};

/// Bytes per CPU: a line pair.
const LINE: usize = 128;

/// Credits at a place: a word for all on the first line, then a line per CPU.
#[derive(Clone, Copy)]
pub struct Credits<M = Place> {
    place: M,
    copies: u32,
    limit: u32,
}

impl Credits {
    pub const fn size(copies: u32) -> usize {
        LINE * (copies as usize + 1)
    }
}

impl<M: Access> Credits<M> {
    pub fn at(place: M, copies: u32, limit: u32) -> Self {
        Credits { place, copies, limit }
    }

    /// So many a CPU takes at once. A small limit is not spread: CPUs would only steal from one another.
    fn batch(&self) -> u64 {
        u64::from(self.limit / (self.copies * 8).max(1)).min(32)
    }

    #[cfg(all(feature = "std", not(loom)))]
    pub fn init(self, limit: u32) {
        self.all().store(u64::from(limit), Relaxed);
    }

    /// Where they lie.
    #[inline(always)]
    pub fn place(&self) -> M {
        self.place
    }

    fn all(&self) -> &AtomicU64 {
        self.place.u64(0)
    }

    fn of(&self, cpu: u32) -> &AtomicU64 {
        self.place.u64(LINE * (1 + cpu as usize))
    }

    fn minus(word: &AtomicU64, most: u64) -> u64 {
        let mut old = word.load(Relaxed);
        while old > 0 {
            let take = old.min(most);
            match word.compare_exchange_weak(old, old - take, Relaxed, Relaxed) {
                Ok(_) => return take,
                Err(now) => old = now,
            }
        }
        0
    }

    /// One credit; false if there is none.
    pub fn take(self) -> bool {
        let cpu = percpu::current_cpu() % self.copies;
        if Self::minus(self.of(cpu), 1) == 1 {
            return true;
        }
        let got = Self::minus(self.all(), self.batch() + 1);
        if got > 0 {
            self.of(cpu).fetch_add(got - 1, Relaxed);
            return true;
        }
        (0..self.copies).any(|cpu| Self::minus(self.of(cpu), 1) == 1)
    }

    /// Gives one back.
    pub fn give(self) {
        let mine = self.of(percpu::current_cpu() % self.copies);
        if mine.fetch_add(1, Relaxed) >= 2 * self.batch() {
            let surplus = Self::minus(mine, self.batch() + 1);
            self.all().fetch_add(surplus, Relaxed);
        }
    }

    /// Credits that nobody has; exact while nobody takes or gives.
    pub fn left(self) -> u64 {
        (0..self.copies)
            .fold(self.all().load(Relaxed), |sum, cpu| sum.saturating_add(self.of(cpu).load(Relaxed)))
    }
}
