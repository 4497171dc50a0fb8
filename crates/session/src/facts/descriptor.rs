//! Descriptors that a system call of ours has just made.
//!
//! For:     perf events, programs and tables of the kernel.
//! State:   none.
//! Context: control.
//! Keeps:   D1 each is closed once, by its owner.
//! Checked: testkit `traces` and `watching` (no descriptor is left).

use std::os::fd::{FromRawFd, OwnedFd};
use sys::Errno;

/// The owner of what `made` has made.
pub(crate) fn owned(made: Result<i32, Errno>) -> Result<OwnedFd, Errno> {
    // SAFETY: all callers pass what a call that makes a descriptor just gave, and nothing else owns it.
    made.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}
