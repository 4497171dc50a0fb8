//! Scheduling of the calling thread, and limits of this process.
//!
//! For:     keeping stops short on a busy machine; pinning in benches.
//! State:   none.
//! Context: control.
//! Keeps:   nothing beyond the call.
//! Checked: session prints the longest stall; a refused call only makes it longer.

use crate::{Errno, check, nr, syscall};

/// The usual time-sharing policy.
pub const NORMAL: usize = 0;
/// Real-time, first in first out.
pub const FIFO: usize = 1;

/// Sets policy and real-time priority of the calling thread (0 for [`NORMAL`]).
///
/// # Errors
/// `EPERM` not allowed.
pub fn set_policy(policy: usize, priority: i32) -> Result<(), Errno> {
    let args = [0, policy, &raw const priority as usize, 0, 0, 0];
    // SAFETY: the kernel reads one `sched_param`, which is one i32, borrowed for the call.
    check(unsafe { syscall(nr::SCHED_SETSCHEDULER, args) }).map(drop)
}

/// The policy of the calling thread.
pub fn policy() -> Result<usize, Errno> {
    // SAFETY: sched_getscheduler takes a number only.
    check(unsafe { syscall(nr::SCHED_GETSCHEDULER, [0; 6]) })
}

/// Lets the calling thread run on one CPU only.
pub fn pin_to_cpu(cpu: usize) -> Result<(), Errno> {
    let mut mask = [0u64; 16];
    mask[cpu / 64 % 16] = 1 << (cpu % 64);
    let args = [0, size_of_val(&mask), mask.as_ptr() as usize, 0, 0, 0];
    // SAFETY: the kernel reads `mask`, whose size is passed, borrowed for the call.
    check(unsafe { syscall(nr::SCHED_SETAFFINITY, args) }).map(drop)
}

/// Sends `signal` to process `pid`.
pub fn kill(pid: i32, signal: i32) -> Result<(), Errno> {
    // SAFETY: kill takes numbers only.
    check(unsafe { syscall(nr::KILL, [pid as usize, signal as usize, 0, 0, 0, 0]) }).map(drop)
}

/// Sends a signal to one thread of a process.
pub fn tgkill(pid: i32, tid: i32, signal: i32) -> Result<(), Errno> {
    let args = [pid as usize, tid as usize, signal as usize, 0, 0, 0];
    // SAFETY: tgkill takes numbers only.
    check(unsafe { syscall(nr::TGKILL, args) }).map(drop)
}

/// Allows this process as many open descriptors as its hard limit says.
pub fn raise_descriptor_limit() {
    const NOFILE: usize = 7;
    let mut limit = [0u64; 2];
    let old = &raw mut limit as usize;
    // SAFETY: the kernel writes two words to `limit`, borrowed for the call; nothing is set.
    let got = check(unsafe { syscall(nr::PRLIMIT64, [0, NOFILE, 0, old, 0, 0]) });
    if got.is_ok() && limit[0] < limit[1] {
        limit[0] = limit[1];
        // SAFETY: the kernel reads two words from `limit`; a refusal leaves the old limit, which may do.
        let _ = unsafe { syscall(nr::PRLIMIT64, [0, NOFILE, &raw const limit as usize, 0, 0, 0]) };
    }
}
