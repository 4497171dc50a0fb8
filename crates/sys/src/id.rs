//! Who is calling.
//!
//! For:     records that name a process or thread.
//! State:   none.
//! Context: hit, signal, target, control.
//! Keeps:   nothing of its own.
//! Checked: tests below.

use crate::{Errno, check, nr, syscall};

/// The process id.
#[inline(always)]
pub fn getpid() -> u32 {
    // SAFETY: the call has no argument and cannot fail.
    unsafe { syscall(nr::GETPID, [0; 6]) as u32 }
}

/// The thread id.
#[inline(always)]
pub fn gettid() -> u32 {
    // SAFETY: the call has no argument and cannot fail.
    unsafe { syscall(nr::GETTID, [0; 6]) as u32 }
}

/// The parent process.
#[inline(always)]
pub fn getppid() -> u32 {
    // SAFETY: the call has no argument and cannot fail.
    unsafe { syscall(nr::GETPPID, [0; 6]) as u32 }
}

/// The user.
#[inline(always)]
pub fn getuid() -> u32 {
    // SAFETY: the call has no argument and cannot fail.
    unsafe { syscall(nr::GETUID, [0; 6]) as u32 }
}

/// The group.
#[inline(always)]
pub fn getgid() -> u32 {
    // SAFETY: the call has no argument and cannot fail.
    unsafe { syscall(nr::GETGID, [0; 6]) as u32 }
}

/// The calling thread's name, with a NUL behind it.
///
/// # Errors
/// As a filter of the process's has it.
#[inline(always)]
pub fn thread_name(name: &mut [u8; 16]) -> Result<(), Errno> {
    const GET_NAME: usize = 16;
    // SAFETY: the kernel writes 16 bytes to `name`, which outlives the call.
    check(unsafe { syscall(nr::PRCTL, [GET_NAME, name.as_mut_ptr() as usize, 0, 0, 0, 0]) }).map(drop)
}

/// The process group.
pub fn process_group() -> i32 {
    // SAFETY: the call takes a number, and of the caller itself it cannot fail.
    unsafe { syscall(nr::GETPGID, [0; 6]) as i32 }
}

/// Enters a process group of this session; with 0, founds one.
///
/// # Errors
/// `EPERM` there is no such group in this session, or the caller leads the session.
pub fn set_process_group(group: i32) -> Result<(), Errno> {
    // SAFETY: the call takes numbers only.
    check(unsafe { syscall(nr::SETPGID, [0, group as usize, 0, 0, 0, 0]) }).map(drop)
}

/// Ends the process, all its threads, at once: nothing of the standard library or of libc runs any more. It may be called in
/// a forked child.
pub fn exit(status: i32) -> ! {
    loop {
        // SAFETY: the call takes a number, and does not come back.
        unsafe { syscall(nr::EXIT_GROUP, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_positive() {
        assert!(getpid() > 0 && gettid() > 0);
    }
}
