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
    let args = [word.as_ptr() as usize, op, count as usize, 0, 0, 0];
    // SAFETY: the kernel uses the address as a key and writes nothing.
    check(unsafe { syscall(nr::FUTEX, args) })
}

#[cfg(test)]
mod tests {
    use super::*;

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
