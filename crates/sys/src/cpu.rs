//! Which CPU this is, and the process-wide memory barrier.
//!
//! For:     per-CPU data and grace periods.
//! State:   none.
//! Context: hit, signal, target, control; `membarrier` may take tens of microseconds.
//! Keeps:   nothing of its own.
//! Checked: tests below.

use crate::{Errno, check, nr, syscall};

/// Commands of membarrier(2) (table).
#[allow(missing_docs, reason = "the names are the kernel's")]
pub mod membarrier_cmd {
    pub const QUERY: i32 = 0;
    pub const GLOBAL: i32 = 1 << 0;
    pub const GLOBAL_EXPEDITED: i32 = 1 << 1;
    pub const REGISTER_GLOBAL_EXPEDITED: i32 = 1 << 2;
    pub const PRIVATE_EXPEDITED: i32 = 1 << 3;
    pub const REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;
    pub const PRIVATE_EXPEDITED_SYNC_CORE: i32 = 1 << 5;
    pub const REGISTER_PRIVATE_EXPEDITED_SYNC_CORE: i32 = 1 << 6;
    pub const PRIVATE_EXPEDITED_RSEQ: i32 = 1 << 7;
    pub const REGISTER_PRIVATE_EXPEDITED_RSEQ: i32 = 1 << 8;
}

/// The result of membarrier(2) with no flags: a mask for QUERY, else zero.
pub fn membarrier(command: i32) -> Result<usize, Errno> {
    // SAFETY: the call takes two integers and touches no memory of the caller.
    check(unsafe { syscall(nr::MEMBARRIER, [command as usize, 0, 0, 0, 0, 0]) })
}

/// The CPU that the thread runs on, by system call.
pub fn getcpu() -> Result<u32, Errno> {
    cpu_and_node().map(|(cpu, _)| cpu)
}

/// The same, and the CPU's node.
#[inline(always)]
pub fn cpu_and_node() -> Result<(u32, u32), Errno> {
    let (mut cpu, mut node) = (0u32, 0u32);
    let places = [(&raw mut cpu) as usize, (&raw mut node) as usize, 0, 0, 0, 0];
    // SAFETY: the kernel writes four bytes to each, which outlive the call; the third pointer is null.
    check(unsafe { syscall(nr::GETCPU, places) }).map(|_| (cpu, node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_answers_with_a_mask() {
        assert!(membarrier(membarrier_cmd::QUERY).is_ok());
        assert_eq!(membarrier(1 << 30), Err(Errno::EINVAL));
    }

    #[test]
    fn getcpu_answers() {
        assert!(getcpu().unwrap() < 1 << 16);
    }
}
