//! libc's functions for signals, so that a program's own calls go through the engine.
//!
//! For:     programs that set signal actions after the engine was started.
//! State:   none.
//! Context: target.
//! Keeps:   I1 what they answer is what libc's would answer without the engine.
//! Checked: `tests/signals.rs`, whose program has them.

use sys::Errno;
use sys::signal::{Action, SA_RESTART, bit};

/// glibc's struct sigaction.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CAction {
    handler: usize,
    mask: [u64; 16],
    flags: i32,
    restorer: usize,
}

impl CAction {
    fn to_kernel(self) -> Action {
        Action::new(self.handler, u64::from(self.flags as u32), self.mask[0])
    }

    fn from_kernel(action: Action) -> CAction {
        let mut mask = [0; 16];
        mask[0] = action.mask;
        CAction { handler: action.handler, mask, flags: action.flags as i32, restorer: 0 }
    }
}

/// sigaction(3).
///
/// # Safety
/// As for the function of libc.
pub unsafe fn sigaction(number: i32, new: *const CAction, old: *mut CAction) -> i32 {
    // SAFETY: the caller's duty: null or valid.
    let new = unsafe { new.as_ref() }.map(|new| new.to_kernel());
    // SAFETY: the caller's duty.
    match unsafe { crate::actions::set(number, new) } {
        Ok(before) => {
            // SAFETY: the caller's duty: null or valid.
            if let Some(old) = unsafe { old.as_mut() } {
                *old = CAction::from_kernel(before);
            }
            0
        }
        Err(errno) => fail(errno),
    }
}

/// signal(3), with BSD's meaning as in glibc.
///
/// # Safety
/// As for the function of libc.
pub unsafe fn signal(number: i32, handler: usize) -> usize {
    let mask = if (1..=64).contains(&number) { bit(number) } else { 0 };
    // SAFETY: the caller's duty.
    match unsafe { crate::actions::set(number, Some(Action::new(handler, SA_RESTART, mask))) } {
        Ok(before) => before.handler,
        Err(errno) => fail(errno) as isize as usize,
    }
}

/// The number of an error for pthread_sigmask(3), 0 for none.
///
/// # Safety
/// As for the function of libc.
pub unsafe fn pthread_sigmask(how: i32, set: *const u64, old: *mut u64) -> i32 {
    let before = sys::signal::mask();
    // SAFETY: the caller's duty: null or valid.
    if let Some(set) = unsafe { set.as_ref() } {
        match how {
            0 => crate::actions::set_mask(before | set),
            1 => crate::actions::set_mask(before & !set),
            2 => crate::actions::set_mask(*set),
            _ => return Errno::EINVAL.0,
        };
    }
    // SAFETY: the caller's duty: null or valid.
    if let Some(old) = unsafe { old.as_mut() } {
        *old = before;
    }
    0
}

/// sigprocmask(2).
///
/// # Safety
/// As for the function of libc.
pub unsafe fn sigprocmask(how: i32, set: *const u64, old: *mut u64) -> i32 {
    // SAFETY: the caller's duty.
    match unsafe { pthread_sigmask(how, set, old) } {
        0 => 0,
        errno => fail(Errno(errno)),
    }
}

fn fail(errno: Errno) -> i32 {
    unsafe extern "C" {
        fn __errno_location() -> *mut i32;
    }
    // SAFETY: libc gives each thread's own word.
    let at = unsafe { __errno_location() };
    // SAFETY: as above.
    unsafe { *at = errno.0 };
    -1
}

/// Puts the engine's functions in the place of libc's `sigaction`, `signal`, `sigprocmask` and `pthread_sigmask`, for
/// the whole program. To be written once, in the main crate.
#[macro_export]
macro_rules! interpose {
    () => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn sigaction(
            number: i32,
            new: *const $crate::actions::CAction,
            old: *mut $crate::actions::CAction,
        ) -> i32 {
            // SAFETY: the caller's duty, as for libc's.
            unsafe { $crate::actions::c_sigaction(number, new, old) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn signal(number: i32, handler: usize) -> usize {
            // SAFETY: as above.
            unsafe { $crate::actions::c_signal(number, handler) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn sigprocmask(how: i32, set: *const u64, old: *mut u64) -> i32 {
            // SAFETY: as above.
            unsafe { $crate::actions::c_sigprocmask(how, set, old) }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C" fn pthread_sigmask(how: i32, set: *const u64, old: *mut u64) -> i32 {
            // SAFETY: as above.
            unsafe { $crate::actions::c_pthread_sigmask(how, set, old) }
        }
    };
}
