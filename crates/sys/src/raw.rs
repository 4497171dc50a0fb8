//! The `syscall` instruction and the kernel's answer.
//!
//! For:     every other file of this crate.
//! State:   none.
//! Context: hit, signal, target, control; the hit path itself makes no call.
//! Keeps:   R1 all registers but rax, rcx and r11 come back as they were.
//! Checked: `a_call_returns_its_value_and_its_error`.

use crate::Errno;

/// System call numbers of x86-64 that this crate uses (table).
#[allow(missing_docs, reason = "the names are the kernel's")]
pub mod nr {
    pub const READ: usize = 0;
    pub const WRITE: usize = 1;
    pub const CLOSE: usize = 3;
    pub const MMAP: usize = 9;
    pub const MPROTECT: usize = 10;
    pub const MUNMAP: usize = 11;
    pub const BRK: usize = 12;
    pub const RT_SIGACTION: usize = 13;
    pub const RT_SIGPROCMASK: usize = 14;
    pub const RT_SIGRETURN: usize = 15;
    pub const IOCTL: usize = 16;
    pub const MREMAP: usize = 25;
    pub const MADVISE: usize = 28;
    pub const SHMAT: usize = 30;
    pub const NANOSLEEP: usize = 35;
    pub const GETPID: usize = 39;
    pub const CLONE: usize = 56;
    pub const FORK: usize = 57;
    pub const EXIT: usize = 60;
    pub const WAIT4: usize = 61;
    pub const KILL: usize = 62;
    pub const SHMDT: usize = 67;
    pub const FTRUNCATE: usize = 77;
    pub const PTRACE: usize = 101;
    pub const GETPPID: usize = 110;
    pub const SIGALTSTACK: usize = 131;
    pub const GETPRIORITY: usize = 140;
    pub const SETPRIORITY: usize = 141;
    pub const SCHED_SETSCHEDULER: usize = 144;
    pub const SCHED_GETSCHEDULER: usize = 145;
    pub const PRCTL: usize = 157;
    pub const GETTID: usize = 186;
    pub const FUTEX: usize = 202;
    pub const SCHED_SETAFFINITY: usize = 203;
    pub const REMAP_FILE_PAGES: usize = 216;
    pub const RESTART_SYSCALL: usize = 219;
    pub const CLOCK_GETTIME: usize = 228;
    pub const TGKILL: usize = 234;
    pub const PERF_EVENT_OPEN: usize = 298;
    pub const PRLIMIT64: usize = 302;
    pub const GETCPU: usize = 309;
    pub const PROCESS_VM_READV: usize = 310;
    pub const PROCESS_VM_WRITEV: usize = 311;
    pub const KCMP: usize = 312;
    pub const MEMFD_CREATE: usize = 319;
    pub const BPF: usize = 321;
    pub const MEMBARRIER: usize = 324;
    pub const PKEY_MPROTECT: usize = 329;
    pub const PIDFD_SEND_SIGNAL: usize = 424;
    pub const PIDFD_OPEN: usize = 434;
    pub const MSEAL: usize = 462;
}

/// Makes one system call and returns what the kernel left in `rax`.
///
/// # Safety
/// The caller must uphold what the call `number` needs of its arguments: pointers must be valid
/// for the access that the kernel makes, and a call that changes mappings or threads must not
/// break memory that Rust code still uses.
#[inline]
pub unsafe fn syscall(number: usize, args: [usize; 6]) -> isize {
    #[cfg(miri)]
    return emulated(number, args);
    #[cfg(not(miri))]
    // SAFETY: the duties are the caller's (this function's contract).
    unsafe {
        instruction(number, args)
    }
}

/// Miri runs no assembly. It has a C library with a futex and ids; to all other calls the
/// answer is that the kernel does not have them.
#[cfg(miri)]
fn emulated(number: usize, args: [usize; 6]) -> isize {
    use core::ffi::{c_int, c_long};
    unsafe extern "C" {
        fn syscall(number: c_long, ...) -> c_long;
        fn getpid() -> c_int;
        fn pthread_self() -> usize;
        fn __errno_location() -> *mut c_int;
    }
    let got = match number {
        nr::FUTEX => {
            let [word, timeout] = [args[0], args[3]].map(|at| at as *const u8);
            let [operation, value] = [args[1], args[2]].map(|n| n as c_int);
            // SAFETY: the duties are those of `syscall`; Miri checks them.
            unsafe { syscall(number as c_long, word, operation, value, timeout) }
        }
        // SAFETY: the call has no argument and cannot fail.
        nr::GETPID => unsafe { getpid() as c_long },
        // Its gettid gives all threads one number.
        // SAFETY: as above.
        nr::GETTID => unsafe { getpid() as c_long + pthread_self() as c_long },
        _ => return -(Errno::ENOSYS.0 as isize),
    };
    if got >= 0 {
        return got as isize;
    }
    // SAFETY: the call has no argument and gives the thread's own errno.
    let errno = unsafe { __errno_location() };
    // SAFETY: errno is valid as long as its thread.
    -(unsafe { *errno } as isize)
}

#[cfg(not(miri))]
#[inline(always)]
unsafe fn instruction(number: usize, args: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: the duties are the caller's (this function's contract). The kernel clobbers rax,
    // rcx and r11 alone, all three are declared.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => ret,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    ret
}

/// Splits the kernel's answer into a value and an error.
#[inline]
pub fn check(ret: isize) -> Result<usize, Errno> {
    if (-4095..0).contains(&ret) { Err(Errno(-ret as i32)) } else { Ok(ret as usize) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_returns_its_value_and_its_error() {
        // SAFETY: getpid takes no argument and touches no memory.
        let pid = check(unsafe { syscall(nr::GETPID, [0; 6]) });
        assert!(pid.unwrap() > 0);
        // SAFETY: close of a descriptor that cannot exist touches nothing.
        let closed = check(unsafe { syscall(nr::CLOSE, [usize::MAX, 0, 0, 0, 0, 0]) });
        assert_eq!(closed, Err(Errno::EBADF));
    }
}
