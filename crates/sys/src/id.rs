//! Who is calling.
//!
//! For:     records that name a process or thread.
//! State:   none.
//! Context: hit, signal, target, control.
//! Keeps:   nothing of its own.
//! Checked: tests below.

use crate::{nr, syscall};

/// The process id.
pub fn getpid() -> u32 {
    // SAFETY: the call has no argument and cannot fail.
    unsafe { syscall(nr::GETPID, [0; 6]) as u32 }
}

/// The thread id.
pub fn gettid() -> u32 {
    // SAFETY: the call has no argument and cannot fail.
    unsafe { syscall(nr::GETTID, [0; 6]) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_positive() {
        assert!(getpid() > 0 && gettid() > 0);
    }
}
