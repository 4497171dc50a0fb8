//! An add in a thread that is single-stepped: every sequence that it enters is interrupted.
#![cfg(all(target_arch = "x86_64", not(miri)))]

use percpu::Counter;
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
const ADDS: u64 = 50;
/// Instructions from one stop to the end, several times over. (An add that begins again whenever it is interrupted
/// makes steps for ever.)
const STEPS_MOST: u32 = 100_000;

#[test]
#[expect(clippy::disallowed_methods, reason = "the child is this test's own, and reaped by it alone")]
fn an_add_of_a_single_stepped_thread_ends_and_is_counted() {
    let counter = Counter::new();
    // Whatever is found out at the first add is found out here.
    counter.add(1);
    // SAFETY: the child calls nothing that could wait for another thread of its parent.
    let pid = unsafe { fork() };
    if pid == 0 {
        let is_traced = ptrace::trace_me().is_ok();
        // SAFETY: stops this thread; its tracer lets it go on.
        unsafe { raise(SIGSTOP) };
        (0..ADDS).for_each(|_| counter.add(3));
        let is_right = is_traced && counter.sum() == 1 + 3 * ADDS;
        // SAFETY: ends the child.
        unsafe { _exit(if is_right { 7 } else { 8 }) };
    }
    let next = || wait(pid, ALL).unwrap().map(|(_, status)| status);
    assert_eq!(next(), Some(Status::Signal(SIGSTOP)));
    for step in 0..STEPS_MOST {
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
    panic!("no end after {STEPS_MOST} steps");
}
