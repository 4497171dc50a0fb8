//! A child of this process that is single-stepped: every sequence that it enters is interrupted.

use sys::ptrace;
use sys::wait::{ALL, Status, wait};

unsafe extern "C" {
    fn fork() -> i32;
    fn raise(signal: i32) -> i32;
    fn _exit(status: i32) -> !;
}

const SIGSTOP: i32 = 19;
const SIGTRAP: i32 = 5;
const SIGKILL: i32 = 9;

/// Does it in a forked child, an instruction at a time; panics if it is not done, or not right, after so many steps.
///
/// It may call nothing that could wait for another thread of the parent.
#[expect(clippy::disallowed_methods, reason = "the child is this test's own, and reaped by it alone")]
pub fn stepped(steps_most: u32, is_right: impl FnOnce() -> bool) {
    // SAFETY: the child calls nothing that could wait for another thread of its parent.
    let pid = unsafe { fork() };
    if pid == 0 {
        let is_traced = ptrace::trace_me().is_ok();
        // SAFETY: stops this thread; its tracer lets it go on.
        unsafe { raise(SIGSTOP) };
        let status = if is_traced && is_right() { 7 } else { 8 };
        // SAFETY: ends the child.
        unsafe { _exit(status) };
    }
    let next = || wait(pid, ALL).unwrap().map(|(_, status)| status);
    assert_eq!(next(), Some(Status::Signal(SIGSTOP)));
    for step in 0..steps_most {
        ptrace::step(pid, 0).unwrap();
        match next() {
            Some(Status::Signal(SIGTRAP)) => {}
            end => {
                return assert_eq!((end, step > 100), (Some(Status::Exited(7)), true), "after {step} steps");
            }
        }
    }
    let _ = ptrace::cont(pid, SIGKILL);
    let _ = next();
    panic!("no end after {steps_most} steps");
}
