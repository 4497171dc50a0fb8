//! Handlers that time calls: one at the entry, one before each exit.
//!
//! For:     `lat`.
//! State:   the table of open calls and the function's cells, both in the arena.
//! Context: hit, between the reader's two counts.
//! Keeps:   C1 each hit adds once to the entries, to a bucket, or to the unmatched returns.
//!          C2 a forked child, which shares the arena but not the stack, touches no frame.
//! Checked: testkit `returns`.

use crate::arch::{goroutine, ticks};
use crate::cell::{Adder, shared_copy};
use crate::handler::PtRegs;
use core::ptr::NonNull;
use map::{Buckets, Call, Frames, Opened};
use wire::{ConsumerDesc, SiteDesc, cell, latency};

const _: () = assert!(Buckets::DURATIONS.count() == latency::BUCKETS_LEN);

/// Handler: a call begins.
///
/// # Safety
/// As for [`Adder::add`]; the consumer must own [`latency::CELLS`] cells, and `site.frames` must be 0 or the
/// address of a live [`Frames`]. The registers must be those of a function's entry.
pub unsafe extern "C" fn enter<A: Adder>(regs: &PtRegs, site: &SiteDesc, consumer: &ConsumerDesc, copy: u64) {
    // SAFETY: passed on from the caller.
    unsafe { begin::<A>(site, consumer, copy, Call::at(regs.stack_pointer(site), consumer.arg)) };
}

/// Handler: a call ends.
///
/// # Safety
/// As for [`enter`], at an exit of the function.
pub unsafe extern "C" fn leave<A: Adder>(regs: &PtRegs, site: &SiteDesc, consumer: &ConsumerDesc, copy: u64) {
    // SAFETY: passed on from the caller.
    unsafe { end::<A>(site, consumer, copy, Call::at(regs.stack_pointer(site), consumer.arg)) };
}

/// [`enter`] in Go.
///
/// # Safety
/// As for [`enter`]; the goroutine's register (r14, x28) must be saved.
pub unsafe extern "C" fn enter_go<A: Adder>(
    regs: &PtRegs,
    site: &SiteDesc,
    consumer: &ConsumerDesc,
    copy: u64,
) {
    // SAFETY: passed on from the caller.
    let call = unsafe { call_in_go(regs, site, consumer.arg) };
    // SAFETY: passed on from the caller.
    unsafe { begin::<A>(site, consumer, copy, call) };
}

/// [`leave`] in Go.
///
/// # Safety
/// As for [`enter_go`].
pub unsafe extern "C" fn leave_go<A: Adder>(
    regs: &PtRegs,
    site: &SiteDesc,
    consumer: &ConsumerDesc,
    copy: u64,
) {
    // SAFETY: passed on from the caller.
    let call = unsafe { call_in_go(regs, site, consumer.arg) };
    // SAFETY: passed on from the caller.
    unsafe { end::<A>(site, consumer, copy, call) };
}

/// # Safety
/// The goroutine's register (r14, x28) must be saved and hold the address of one.
#[inline(always)]
pub(crate) unsafe fn call_in_go(regs: &PtRegs, site: &SiteDesc, function: u32) -> Call {
    let g = goroutine(regs);
    // A goroutine begins with the bounds of its stack, low and high.
    let high = (g + 8) as *const u64;
    // SAFETY: the goroutine is alive while it runs (contract), and its first two words are its stack's bounds in
    // every version of Go that keeps it in a register.
    let high = unsafe { high.read() };
    Call::in_goroutine(g, high.wrapping_sub(regs.stack_pointer(site)), function)
}

/// # Safety
/// As for [`enter`].
#[inline(always)]
unsafe fn begin<A: Adder>(site: &SiteDesc, consumer: &ConsumerDesc, copy: u64, call: Call) {
    // SAFETY: passed on from the caller.
    unsafe { A::add(copy, site, consumer.cell, 1) };
    // SAFETY: passed on from the caller.
    let Some(frames) = (unsafe { frames(site) }) else { return };
    let cell = match frames.open(call, ticks()) {
        Opened::New => return,
        Opened::InsteadOfOther => cell::FRAMES_REPLACED,
        Opened::NoRoom => cell::FRAMES_NO_ROOM,
    };
    // SAFETY: passed on from the caller; every copy has this cell.
    unsafe { A::add(copy, site, cell, 1) };
}

/// # Safety
/// As for [`enter`].
#[inline(always)]
unsafe fn end<A: Adder>(site: &SiteDesc, consumer: &ConsumerDesc, copy: u64, call: Call) {
    // SAFETY: passed on from the caller.
    let frames = unsafe { frames(site) };
    // Not in a forked child, which may have asked for a trap since.
    let now = frames.map_or(0, |_| ticks());
    let Some(stamp) = frames.and_then(|f| f.close(call)).filter(|stamp| *stamp >= site.since) else {
        // SAFETY: passed on from the caller; the cell is one of the consumer's.
        unsafe { A::add(copy, site, consumer.cell + 8 * latency::UNMATCHED, 1) };
        return;
    };
    // Counters of two CPUs may differ by a few ticks.
    let ticks = now.saturating_sub(stamp);
    let ns = ((u128::from(ticks) * u128::from(site.ns_per_tick)) >> 32) as u64;
    let bucket = latency::BUCKETS + Buckets::DURATIONS.of(ns);
    // SAFETY: passed on from the caller; the cell is one of the consumer's.
    unsafe { A::add(copy, site, consumer.cell + 8 * latency::TOTAL_NS, ns) };
    // SAFETY: the same.
    unsafe { A::add(copy, site, consumer.cell + 8 * bucket, 1) };
}

/// The table of frames; `None` in a forked child.
///
/// # Safety
/// As for [`enter`].
#[inline(always)]
pub(crate) unsafe fn frames(site: &SiteDesc) -> Option<Frames> {
    // SAFETY: passed on from the caller.
    unsafe { shared_copy(site) }?;
    let table = NonNull::new(site.frames as *mut u8)?;
    // SAFETY: the arena holds a table at this address for as long as a trampoline can be run (contract).
    Some(unsafe { Frames::at(table) })
}
