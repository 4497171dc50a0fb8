//! Descriptors: those that a system call of ours has just made, and those that are kept for leaving.
//!
//! For:     perf events, programs and tables of the kernel; every attach and detach.
//! State:   a few descriptors of nothing, as long as a process is entered.
//! Context: control.
//! Keeps:   D1 each is closed once, by its owner.
//!          D2 who has entered a process has the descriptors that it takes to leave it, whatever the run needs besides; who
//!             has not does not enter.
//! Checked: testkit `traces` and `watching` (no descriptor is left), `scarce` (D2).

use crate::facts::error::Broken;
use std::io::PipeReader;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use sys::Errno;

/// More than a detach has open at one time: the memory of a process and of a child, and what is read of /proc.
const RESERVED: usize = 16;

/// Copies of one end of a pipe.
static RESERVE: Mutex<Vec<PipeReader>> = Mutex::new(Vec::new());

fn kept() -> MutexGuard<'static, Vec<PipeReader>> {
    RESERVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on there are descriptors for leaving; to be called before a process is entered.
///
/// # Errors
/// There are not.
pub(crate) fn reserve() -> Result<(), Broken> {
    let mut kept = kept();
    let filled = fill(&mut kept);
    if filled.is_err() {
        kept.clear();
    }
    let errno = |e: std::io::Error| Errno(e.raw_os_error().unwrap_or(5));
    filled.map_err(|e| Broken::Call { what: "keeping descriptors for the detach", errno: errno(e) })
}

fn fill(kept: &mut Vec<PipeReader>) -> std::io::Result<()> {
    while kept.len() < RESERVED {
        let one = match kept.first() {
            Some(first) => first.try_clone()?,
            None => std::io::pipe()?.0,
        };
        kept.push(one);
    }
    Ok(())
}

/// While this lives the descriptors are there to be used; then they are kept again, as far as that can be.
#[derive(Debug)]
pub(crate) struct Released(());

/// Gives them up for a detach.
pub(crate) fn release() -> Released {
    kept().clear();
    Released(())
}

impl Drop for Released {
    fn drop(&mut self) {
        let _ = fill(&mut kept());
    }
}

/// The owner of what `made` has made.
pub(crate) fn owned(made: Result<i32, Errno>) -> Result<OwnedFd, Errno> {
    // SAFETY: all callers pass what a call that makes a descriptor just gave, and nothing else owns it.
    made.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}
