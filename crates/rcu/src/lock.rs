//! A lock that a child of fork can set free.
//!
//! For:     the update side of domains; the standard mutex cannot be reset.
//! State:   one futex word: 0 free, 1 taken, 2 taken and somebody sleeps.
//! Context: target. Blocks; not in a signal handler.
//! Keeps:   K1 one holder at a time. K2 who takes it sees what the last holder wrote.
//! Checked: tests below; `tests/fork.rs`.

use crate::prim::{Acquire, AtomicU32, Relaxed, Release};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

/// A value that one thread at a time may touch.
pub(crate) struct Lock<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands the value to one thread at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Lock<T> {
        Lock { word: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    pub(crate) fn lock(&self) -> Locked<'_, T> {
        self.raw_lock();
        Locked(self)
    }

    pub(crate) fn try_lock(&self) -> Option<Locked<'_, T>> {
        // [LOCK-1] Taking it acquires what the last holder wrote. Pairs with [LOCK-2].
        self.word.compare_exchange(0, 1, Acquire, Relaxed).is_ok().then(|| Locked(self))
    }

    /// Takes the lock without a guard; `raw_unlock` or `reset` ends it.
    pub(crate) fn raw_lock(&self) {
        // [LOCK-3] As [LOCK-1]. Pairs with [LOCK-2].
        if self.word.compare_exchange(0, 1, Acquire, Relaxed).is_ok() {
            return;
        }
        // [LOCK-4] As [LOCK-1], for who slept. Pairs with [LOCK-2].
        while self.word.swap(2, Acquire) != 0 {
            let _ = sys::futex_wait(&self.word, 2, None);
        }
    }

    pub(crate) fn raw_unlock(&self) {
        // [LOCK-2] Publishes what the holder wrote. Pairs with [LOCK-1], [LOCK-3], [LOCK-4].
        if self.word.swap(0, Release) == 2 {
            let _ = sys::futex_wake(&self.word, 1);
        }
    }

    /// The value, for the thread that took the lock by `raw_lock`.
    ///
    /// # Safety
    /// The calling thread must hold the lock for as long as it uses the value.
    pub(crate) unsafe fn peek(&self) -> &T {
        // SAFETY: the caller holds the lock, so nobody else touches the value.
        unsafe { &*self.value.get() }
    }

    /// Frees the lock whoever has it. In a child of fork, where the holder may not exist.
    pub(crate) fn reset(&self) {
        self.word.store(0, Relaxed);
    }
}

/// The right to touch the value; dropping it frees the lock.
pub(crate) struct Locked<'a, T>(&'a Lock<T>);

impl<T> Deref for Locked<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this guard exists only while its thread holds the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        self.0.raw_unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn increments_under_the_lock_are_not_lost() {
        const EACH: u64 = if cfg!(miri) { 50 } else { 20_000 };
        let lock = Lock::new(0u64);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..EACH).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 4 * EACH);
    }

    #[test]
    fn a_taken_lock_is_refused_and_a_reset_one_is_free() {
        let lock = Lock::new(());
        lock.raw_lock();
        assert!(lock.try_lock().is_none());
        lock.reset();
        assert!(lock.try_lock().is_some());
    }
}
