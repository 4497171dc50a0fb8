//! Reading another process's memory.
//!
//! For:     stacks and tables of a target, several ranges a call.
//! State:   none.
//! Context: control.
//! Keeps:   nothing beyond the call.
//! Checked: `a_read_of_ourselves_returns_our_bytes`.

use crate::{Errno, check, nr, syscall};

#[repr(C)]
struct IoVec {
    base: usize,
    len: usize,
}

/// Reads from `addr` of process `pid` into `into`; returns how many bytes came, from the start.
///
/// # Errors
/// `EFAULT` nothing is mapped there, `EPERM` not allowed, `ESRCH` gone.
#[inline(always)]
pub fn read_process(pid: i32, addr: u64, into: &mut [u8]) -> Result<usize, Errno> {
    let local = IoVec { base: into.as_mut_ptr() as usize, len: into.len() };
    let remote = IoVec { base: addr as usize, len: into.len() };
    let args = [pid as usize, &raw const local as usize, 1, &raw const remote as usize, 1, 0];
    // SAFETY: the kernel writes at most `into.len()` bytes into `into`, borrowed mutably for the
    // call; the remote side is checked by the kernel.
    check(unsafe { syscall(nr::PROCESS_VM_READV, args) })
}

/// Writes `bytes` at `addr` of process `pid`, and says how many came; what the process may not write is refused.
///
/// # Errors
/// As for [`read_process`].
///
/// # Safety
/// If `pid` is the caller's own, the bytes must be no memory that Rust code relies on.
pub unsafe fn write_process(pid: i32, addr: u64, bytes: &[u8]) -> Result<usize, Errno> {
    let local = IoVec { base: bytes.as_ptr() as usize, len: bytes.len() };
    let remote = IoVec { base: addr as usize, len: bytes.len() };
    let args = [pid as usize, &raw const local as usize, 1, &raw const remote as usize, 1, 0];
    // SAFETY: the kernel reads `bytes`, borrowed for the call; what it overwrites is the caller's duty.
    check(unsafe { syscall(nr::PROCESS_VM_WRITEV, args) })
}

/// True if two processes share one address space.
///
/// # Errors
/// `EPERM` not allowed, `ESRCH` one is gone, `ENOSYS` the kernel lacks kcmp.
pub fn same_memory(a: i32, b: i32) -> Result<bool, Errno> {
    const KCMP_VM: usize = 1;
    // SAFETY: kcmp takes numbers only.
    let order = check(unsafe { syscall(nr::KCMP, [a as usize, b as usize, KCMP_VM, 0, 0, 0]) })?;
    Ok(order == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_of_ourselves_returns_our_bytes() {
        let bytes = [1u8, 2, 3, 4];
        let mut got = [0u8; 4];
        // SAFETY: getpid takes no argument.
        let pid = unsafe { syscall(nr::GETPID, [0; 6]) } as i32;
        assert_eq!(read_process(pid, bytes.as_ptr() as u64, &mut got), Ok(4));
        assert_eq!(got, bytes);
        assert_eq!(read_process(pid, 16, &mut got), Err(Errno::EFAULT));
    }
}
