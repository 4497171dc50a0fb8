//! Sleeping until a word changes.
//!
//! For:     locks and waits of code that cannot use libc's.
//! State:   none.
//! Context: target, control. `futex_wait` blocks.
//! Keeps:   nothing of its own.
//! Checked: tests below.

use crate::{Errno, check, nr, syscall};
use core::sync::atomic::AtomicU32;

const WAIT: usize = 0;
const WAKE: usize = 1;
const PRIVATE: usize = 128;

/// Sleeps while `word` holds `expect`, at most `timeout_ns`; `EAGAIN` if it held something else.
pub fn futex_wait(word: &AtomicU32, expect: u32, timeout_ns: Option<u64>) -> Result<(), Errno> {
    wait(WAIT | PRIVATE, word, expect, timeout_ns)
}

/// The same for a word in memory that processes share.
#[inline]
pub fn futex_wait_shared(word: &AtomicU32, expect: u32, timeout_ns: Option<u64>) -> Result<(), Errno> {
    wait(WAIT, word, expect, timeout_ns)
}

#[inline]
fn wait(op: usize, word: &AtomicU32, expect: u32, timeout_ns: Option<u64>) -> Result<(), Errno> {
    let spec = timeout_ns.map(|ns| [(ns / 1_000_000_000) as i64, (ns % 1_000_000_000) as i64]);
    let timeout = spec.as_ref().map_or(0, |s| s.as_ptr() as usize);
    let args = [word.as_ptr() as usize, op, expect as usize, timeout, 0, 0];
    // SAFETY: the kernel reads the word and the timespec, both outlive the call.
    check(unsafe { syscall(nr::FUTEX, args) }).map(|_| ())
}

/// Wakes at most `count` threads that sleep on `word`, and says how many.
pub fn futex_wake(word: &AtomicU32, count: u32) -> Result<usize, Errno> {
    wake(WAKE | PRIVATE, word, count)
}

/// The same for a word in memory that processes share.
#[inline]
pub fn futex_wake_shared(word: &AtomicU32, count: u32) -> Result<usize, Errno> {
    wake(WAKE, word, count)
}

#[inline]
fn wake(op: usize, word: &AtomicU32, count: u32) -> Result<usize, Errno> {
    // The kernel takes the count as signed: a larger one would wake a single thread.
    let count = count.min(i32::MAX as u32);
    let args = [word.as_ptr() as usize, op, count as usize, 0, 0, 0];
    // SAFETY: the kernel uses the address as a key and writes nothing.
    check(unsafe { syscall(nr::FUTEX, args) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waking_all_wakes_more_than_one() {
        extern crate std;
        let word = AtomicU32::new(0);
        std::thread::scope(|s| {
            let sleepers = [(); 3].map(|()| s.spawn(|| futex_wait(&word, 0, Some(5_000_000_000))));
            let mut woken = 0;
            // All three sleep at some time; the first call after that wakes them together.
            std::thread::sleep(std::time::Duration::from_millis(200));
            while woken < 3 {
                woken += futex_wake(&word, u32::MAX).unwrap();
                if sleepers.iter().all(|t| t.is_finished()) {
                    break;
                }
            }
            assert!(sleepers.into_iter().all(|t| t.join().unwrap() == Ok(())), "none timed out");
        });
    }

    #[test]
    fn a_wait_on_another_value_returns_at_once_and_an_idle_one_times_out() {
        let word = AtomicU32::new(7);
        assert_eq!(futex_wait(&word, 8, None), Err(Errno::EAGAIN));
        assert_eq!(futex_wait(&word, 7, Some(1_000_000)), Err(Errno::ETIMEDOUT));
        assert_eq!(futex_wake(&word, 1), Ok(0));
        assert_eq!(futex_wait_shared(&word, 7, Some(1_000_000)), Err(Errno::ETIMEDOUT));
        assert_eq!(futex_wake_shared(&word, 1), Ok(0));
    }
}
