//! A read-write lock whose readers share no cache line.
//!
//! For:     the split engine: many tasks side by side, a CPU's breakpoint alone.
//! State:   for each CPU how many readers entered there and have not left; whether a writer is there or waits.
//! Context: target. Readers wait for a writer asleep, the writer for readers by polling: they are short.
//! Keeps:   L1 no reader is inside while a writer is, and what one did the other sees.
//!          L2 a reader leaves the count that it entered, on whatever CPU it is then: so each count is zero
//!          exactly if none of its readers is inside.
//! Orderings: the Dekker pair of reader and writer is SeqCst, since each stores and then loads what the other
//!          stores: acquire and release do not order that. Leaving is Release, for the writer's look.
//! Checked: tests below; tests/agree.rs with four threads.
//! Source:  kernel `kernel/locking/percpu-rwsem.c` for the scheme. Departs: readers add with a lock prefix and
//!          need no grace period; who waits queues at a mutex, not in order of arrival.

use core::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Release, SeqCst},
};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[repr(align(128))]
struct Count(AtomicU32);

pub(crate) struct RwSem {
    counts: Box<[Count]>,
    /// A writer is inside or wants to be.
    is_blocked: AtomicBool,
    writers: Mutex<()>,
}

/// The right to read.
pub(crate) struct Read<'a>(&'a AtomicU32);

/// The right to write.
pub(crate) struct Write<'a> {
    sem: &'a RwSem,
    _alone: MutexGuard<'a, ()>,
}

impl RwSem {
    pub(crate) fn new() -> RwSem {
        let counts = (0..percpu::possible_cpus()).map(|_| Count(AtomicU32::new(0))).collect();
        RwSem { counts, is_blocked: AtomicBool::new(false), writers: Mutex::new(()) }
    }

    #[inline]
    pub(crate) fn try_read(&self) -> Option<Read<'_>> {
        let count = &self.counts[percpu::current_cpu() as usize % self.counts.len()].0;
        count.fetch_add(1, SeqCst);
        let read = Read(count);
        // Dropping it takes the count back.
        (!self.is_blocked.load(SeqCst)).then_some(read)
    }

    #[inline]
    pub(crate) fn read(&self) -> Read<'_> {
        loop {
            if let Some(read) = self.try_read() {
                return read;
            }
            // The writer holds this until it has ended.
            drop(self.writers.lock());
        }
    }

    pub(crate) fn write(&self) -> Write<'_> {
        let alone = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_blocked.store(true, SeqCst);
        let write = Write { sem: self, _alone: alone };
        let mut polls = 0u32;
        while !self.is_quiet() {
            polls += 1;
            if polls < 100 { core::hint::spin_loop() } else { std::thread::yield_now() }
        }
        write
    }

    pub(crate) fn try_write(&self) -> Option<Write<'_>> {
        let alone = self.writers.try_lock().ok()?;
        self.is_blocked.store(true, SeqCst);
        let write = Write { sem: self, _alone: alone };
        self.is_quiet().then_some(write)
    }

    fn is_quiet(&self) -> bool {
        // SeqCst for the Dekker pair, and acquires what the leaving readers did.
        self.counts.iter().all(|count| count.0.load(SeqCst) == 0)
    }
}

impl Drop for Read<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.fetch_sub(1, Release);
    }
}

impl Drop for Write<'_> {
    fn drop(&mut self) {
        // Readers that see this see what the writer did: `try_read` loads it SeqCst, so Acquire.
        self.sem.is_blocked.store(false, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;

    struct Shared {
        sem: RwSem,
        pair: UnsafeCell<(u64, u64)>,
    }

    // SAFETY: the lock under test guards the cell.
    unsafe impl Sync for Shared {}

    #[test]
    fn readers_never_see_a_writers_half_done_work_and_no_write_is_lost() {
        const EACH: u64 = 20_000;
        let shared = Shared { sem: RwSem::new(), pair: UnsafeCell::new((0, 0)) };
        std::thread::scope(|s| {
            for n in 0..4 {
                let shared = &shared;
                s.spawn(move || {
                    for i in 0..EACH {
                        if (i + n) % 8 == 0 {
                            let _write = shared.sem.write();
                            // SAFETY: the write lock is held, so nobody else is at the cell.
                            let pair = unsafe { &mut *shared.pair.get() };
                            pair.0 += 1;
                            std::hint::black_box(&mut *pair);
                            pair.1 += 1;
                        } else {
                            let _read = shared.sem.read();
                            // SAFETY: the read lock is held, so nobody writes the cell.
                            let pair = unsafe { &*shared.pair.get() };
                            assert_eq!(pair.0, pair.1);
                        }
                    }
                });
            }
        });
        assert_eq!(shared.pair.into_inner(), (4 * EACH / 8, 4 * EACH / 8));
    }

    #[test]
    fn who_must_not_wait_is_told_that_it_is_held() {
        let sem = RwSem::new();
        let read = sem.read();
        assert!(sem.try_write().is_none() && sem.try_read().is_some());
        drop(read);
        let write = sem.try_write();
        assert!(write.is_some() && sem.try_read().is_none() && sem.try_write().is_none());
        drop(write);
        assert!(sem.try_read().is_some());
    }
}
