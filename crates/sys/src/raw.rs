//! A system call and the kernel's answer.
//!
//! For:     every other file of this crate.
//! State:   none.
//! Context: hit, signal, target, control; the hit path itself makes no call.
//! Keeps:   R1 no register changes but those that the kernel's convention names: arch/.
//! Checked: `a_call_returns_its_value_and_its_error`.

use crate::Errno;
#[cfg(not(miri))]
use crate::arch::instruction;
pub use crate::arch::nr;

/// Makes one system call and returns the kernel's answer.
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
