//! A hit that waits for the controller.
//!
//! For:     the dynamic linker's mark for debuggers: the controller probes a new library before anything in it runs. And
//!          execve: the controller follows the thread into the new program.
//! State:   `wire::Doorbell`, in the arena.
//! Context: hit. The only handlers that make system calls (futex, gettid), and not on any program's hot path.
//! Keeps:   D1 it returns: after the answer, after `PATIENCE`, or at once when nobody will answer.
//!          D2 the target's errno is not touched: the call is made without its libc.
//! Checked: testkit `loading`, `follows`; session `the_agent_makes_system_calls_at_the_doorbell_and_in_helpers_alone`.

use crate::cell::{Adder, shared_copy};
use crate::handler::PtRegs;
use core::sync::atomic::Ordering;
use sys::{futex_wait_shared, futex_wake_shared};
use wire::{ConsumerDesc, Doorbell, SiteDesc};

/// How long a thread waits for a controller that does not answer.
const PATIENCE_NS: u64 = 1_000_000_000;
/// How often it is woken for nothing before it goes on.
const WAKES_MAX: u32 = 1000;

/// Handler: rings and waits for the answer; counts the times that none came.
///
/// # Safety
/// As for [`Adder::add`]; `consumer.doorbell` must be the address of a live doorbell.
#[inline(never)]
pub unsafe extern "C" fn ring<A: Adder>(_: &PtRegs, site: &SiteDesc, consumer: &ConsumerDesc, copy: u64) {
    // SAFETY: passed on from the caller.
    if unsafe { shared_copy(site) }.is_none() {
        return; // a forked child: nobody follows it
    }
    // SAFETY: passed on from the caller.
    let bell = unsafe { bell_of(consumer) };
    if !is_answered(bell, number(bell)) {
        // SAFETY: passed on from the caller.
        unsafe { A::add(copy, site, consumer.cell, 1) };
    }
}

/// Handler: says which thread is about to exec, of this process or of a child, and waits for the answer; counts the times
/// that none came.
///
/// # Safety
/// As for [`ring`].
#[inline(never)]
pub unsafe extern "C" fn ring_before_exec<A: Adder>(
    _: &PtRegs,
    site: &SiteDesc,
    consumer: &ConsumerDesc,
    copy: u64,
) {
    // SAFETY: passed on from the caller.
    let bell = unsafe { bell_of(consumer) };
    let mine = number(bell);
    if !is_named(bell, mine) || !is_answered(bell, mine) {
        // SAFETY: passed on from the caller.
        unsafe { A::add(copy, site, consumer.cell, 1) };
    }
}

/// Writes this thread's number for the controller, once the ring that had the place before is answered.
#[inline(always)]
fn is_named(bell: &Doorbell, mine: u32) -> bool {
    for _ in 0..WAKES_MAX {
        let answered = bell.answered.load(Ordering::Relaxed);
        let is_ours = mine.wrapping_sub(answered) <= bell.callers.len() as u32;
        if is_ours || answered == Doorbell::CLOSED {
            // [BELL-5] Orders nothing but itself: the word is the whole message. Pairs with [BELL-6].
            let write =
                bell.caller(mine).compare_exchange(0, sys::gettid(), Ordering::Relaxed, Ordering::Relaxed);
            return write.is_ok();
        }
        if futex_wait_shared(&bell.answered, answered, Some(PATIENCE_NS)) == Err(sys::Errno::ETIMEDOUT) {
            return false;
        }
    }
    false
}

/// # Safety
/// `consumer.doorbell` must be the address of a live doorbell.
#[inline(always)]
unsafe fn bell_of(consumer: &ConsumerDesc) -> &Doorbell {
    let bell = consumer.doorbell as *const Doorbell;
    // SAFETY: a doorbell in the arena, which lives as long as this code (contract); only accessed atomically.
    unsafe { &*bell }
}

/// Rings; which ring it was.
#[inline(always)]
fn number(bell: &Doorbell) -> u32 {
    // [BELL-1] Orders what this thread did before (a library mapped) before the number that the controller sees.
    // Pairs with [BELL-2].
    let mine = bell.rung.fetch_add(1, Ordering::Release).wrapping_add(1);
    let _ = futex_wake_shared(&bell.rung, u32::MAX >> 1);
    mine
}

#[inline(always)]
fn is_answered(bell: &Doorbell, mine: u32) -> bool {
    for _ in 0..WAKES_MAX {
        // [BELL-3] Orders the controller's work before what this thread does next. Pairs with [BELL-4].
        let answered = bell.answered.load(Ordering::Acquire);
        if answered == Doorbell::CLOSED || answered.wrapping_sub(mine) < u32::MAX / 2 {
            return true;
        }
        if futex_wait_shared(&bell.answered, answered, Some(PATIENCE_NS)) == Err(sys::Errno::ETIMEDOUT) {
            return false;
        }
    }
    false
}
