//! Whether the processor checks a process's returns.
//!
//! For:     plans: a displaced call is a push and a jump, and the shadow stack knows nothing of pushes.
//! State:   none.
//! Context: control.
//! Keeps:   S1 one thread that has a shadow stack is enough.
//! Checked: tests below; that no other code of ours returns to what no call has pushed: text's
//!          `trampoline/tests.rs`. There is no such processor in CI.

use std::fs;

/// Whether a thread of the process has a shadow stack.
pub fn has_shadow_stack(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads
        .into_iter()
        .any(|thread| fs::read(thread.path().join("status")).is_ok_and(|status| says_so(&status)))
}

/// `x86_Thread_features: shstk wrss`; the name may be in any bytes, so they are not taken for text.
fn says_so(status: &[u8]) -> bool {
    const KEY: &[u8] = b"x86_Thread_features:";
    let lines = status.split(|byte| *byte == b'\n');
    let mut values = lines.filter_map(|line| line.strip_prefix(KEY));
    values.any(|value| value.split(u8::is_ascii_whitespace).any(|word| word == b"shstk"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_with_a_shadow_stack_is_known_by_its_status() {
        let status = b"Name:\tx\xff\nSeccomp:\t0\nx86_Thread_features:\tshstk wrss \nx86_Thread_features_locked:\tshstk\n";
        assert!(says_so(status));
        let without = b"Name:\tshstk\nx86_Thread_features:\t\nx86_Thread_features_locked:\tshstk wrss \n";
        assert!(!says_so(without), "locked is not on");
        assert!(!says_so(b"Name:\tx86_Thread_features: shstk\n") && !says_so(b""));
    }
}
