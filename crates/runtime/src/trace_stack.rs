//! The handler that reports a call with its stack.
//!
//! For:     `trace --stack`.
//! State:   as of `trace` and of `stack`.
//! Context: hit, between the reader's two counts.
//! Keeps:   T1 of `trace`.
//! Checked: testkit `tracing`.

use crate::cell::Adder;
use crate::handler::PtRegs;
use crate::stack::{Walker, save_kept_and_go};
use crate::trace::{arguments, report};
use core::marker::PhantomData;
use wire::{ConsumerDesc, Event, STACK_FRAMES, SiteDesc, TRACE_GO, WALK_AT_ENTRY, WALK_IN_GO, WalkDesc};

/// Handler: a call begins, and who has made it. Saves the registers that calls keep beside those that the trampoline has saved.
///
/// # Safety
/// As for [`crate::trace_enter`] and [`crate::count_stack`], but for the cells.
#[unsafe(naked)]
pub unsafe extern "C" fn trace_enter_stack<A: Adder>(
    regs: &PtRegs,
    site: &SiteDesc,
    consumer: &ConsumerDesc,
    copy: u64,
) {
    save_kept_and_go!(enter_with_stack::<A>)
}

/// # Safety
/// As for [`trace_enter_stack`], with all these registers saved.
unsafe extern "C" fn enter_with_stack<A: Adder>(
    regs: &PtRegs,
    site: &SiteDesc,
    consumer: &ConsumerDesc,
    copy: u64,
) {
    let values = arguments(regs, consumer);
    // SAFETY: passed on from the caller.
    let stack = || unsafe { stack::<A>(regs, site, consumer, copy) };
    // SAFETY: passed on from the caller.
    unsafe { report::<A>(regs, site, consumer, copy, Event::ENTRY, values, stack) };
}

/// The stack of the hit, as an event has it.
///
/// # Safety
/// As for [`trace_enter_stack`], of the hit that runs.
#[inline(never)]
unsafe fn stack<A: Adder>(regs: &PtRegs, site: &SiteDesc, consumer: &ConsumerDesc, copy: u64) -> u64 {
    // SAFETY: a description in the arena, which lives as long as this code (contract).
    let desc = unsafe { &*(consumer.walk as *const WalkDesc) };
    let in_go = if consumer.arg & TRACE_GO != 0 { WALK_IN_GO } else { 0 };
    let walker = Walker::<A> { regs, site, flags: WALK_AT_ENTRY | in_go, copy, desc, adder: PhantomData };
    // SAFETY: passed on from the caller.
    let (number, stop) = unsafe { walker.number(STACK_FRAMES) };
    let (number, why) = match number {
        Ok((number, _)) => (number + 1, stop as u32),
        Err(cell) => (0, cell),
    };
    u64::from(number | why << Event::WHY_SHIFT) << Event::STACK_SHIFT
}
