//! The alternate signal stack.
//!
//! For:     telling that a thread runs in a signal handler, where that can be told.
//! State:   none.
//! Context: hit, signal, target.
//! Keeps:   nothing of its own.
//! Checked: tests below; `tests/restrictions.rs` of `rcu`.

use crate::{check, nr, syscall};

const ON_STACK: i32 = 1;

#[repr(C)]
struct StackT {
    sp: usize,
    flags: i32,
    size: usize,
}

/// True if the thread runs on its alternate signal stack, that is, in a handler.
///
/// False says nothing: handlers without `SA_ONSTACK` run on the ordinary stack.
pub fn on_signal_stack() -> bool {
    let mut old = StackT { sp: 0, flags: 0, size: 0 };
    // SAFETY: the kernel writes a stack_t to `old`, which outlives the call; the new one is null.
    let ret = unsafe { syscall(nr::SIGALTSTACK, [0, (&raw mut old) as usize, 0, 0, 0, 0]) };
    check(ret).is_ok() && old.flags & ON_STACK != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_does_not_run_on_the_signal_stack() {
        assert!(!on_signal_stack());
    }
}
