//! Handlers that report calls: one at the entry, one before each exit.
//!
//! For:     `trace`; with stacks too, by `trace_stack`.
//! State:   the rings, the table of open calls, and two cells: written and lost; all in the arena.
//! Context: hit, between the reader's two counts; signal included: a handler that interrupts a write takes the next record.
//! Keeps:   T1 each hit adds to the written events or to the lost ones.
//! Checked: testkit `tracing`.
//!
//! A record is reserved by a locked compare-and-exchange on a line that belongs to this CPU: a thread that is moved to
//! another CPU in between pays for it in time, not in a record.

use crate::arch::{ARGUMENTS, GO_ARGUMENTS, RESULT, ticks_and_cpu, word_of_block};
use crate::calls::{call_in_go, frames};
use crate::cell::Adder;
use crate::handler::PtRegs;
use core::ptr::NonNull;
use map::{Call, Ring};
use wire::{ConsumerDesc, Event, SiteDesc, TRACE_GO, TRACE_JUMP, TRACE_LOST};

const _: () = assert!(Ring::bytes_for(Event::RING_BYTES) <= Event::RING_STRIDE);

/// Handler: a call begins.
///
/// # Safety
/// As for [`crate::enter`], but for two cells; `site.rings` must be the address of a ring of events for each CPU, and
/// `site.tid_offset`, if not 0, that of four readable bytes from every thread's pointer. In Go the
/// goroutine's register (r14, x28) must be saved.
pub unsafe extern "C" fn trace_enter<A: Adder>(
    regs: &PtRegs,
    site: &SiteDesc,
    consumer: &ConsumerDesc,
    copy: u64,
) {
    let values = arguments(regs, consumer);
    // SAFETY: passed on from the caller.
    unsafe { report::<A>(regs, site, consumer, copy, Event::ENTRY, values, || 0) };
}

/// Handler: a call ends.
///
/// # Safety
/// As for [`trace_enter`].
pub unsafe extern "C" fn trace_leave<A: Adder>(
    regs: &PtRegs,
    site: &SiteDesc,
    consumer: &ConsumerDesc,
    copy: u64,
) {
    // SAFETY: passed on from the caller.
    unsafe { report::<A>(regs, site, consumer, copy, Event::EXIT, [regs.at(RESULT), 0, 0], || 0) };
}

/// The first arguments of the call that begins.
#[inline(always)]
pub(crate) fn arguments(regs: &PtRegs, consumer: &ConsumerDesc) -> [u64; 3] {
    let is_go = consumer.arg & TRACE_GO != 0;
    let registers = if is_go { GO_ARGUMENTS } else { ARGUMENTS };
    registers.map(|register| regs.at(register))
}

/// `stack` is asked when the call is reported.
///
/// # Safety
/// As for [`trace_enter`].
#[inline(always)]
pub(crate) unsafe fn report<A: Adder>(
    regs: &PtRegs,
    site: &SiteDesc,
    consumer: &ConsumerDesc,
    copy: u64,
    kind: u64,
    mut values: [u64; 3],
    stack: impl FnOnce() -> u64,
) {
    // SAFETY: passed on from the caller.
    let Some(frames) = (unsafe { frames(site) }) else {
        // A forked child, which may have asked for a trap of the counter since.
        // SAFETY: passed on from the caller; the cell is one of the consumer's two.
        return unsafe { A::add(copy, site, consumer.cell + 8 * TRACE_LOST, 1) };
    };
    let stack = stack();
    let (stamp, cpu) = ticks_and_cpu(site, copy > wire::COPY_NONE);
    let function = consumer.arg & !(TRACE_GO | TRACE_JUMP);
    let call = match consumer.arg & TRACE_GO {
        0 => Call::at(regs.stack_pointer(site), function),
        // SAFETY: passed on from the caller.
        _ => unsafe { call_in_go(regs, site, function) },
    };
    // An exit says which entry it belongs to, by its stamp: events between them may be lost.
    if kind == Event::EXIT {
        values[1] = frames.close(call).unwrap_or(0);
    }
    // SAFETY: passed on from the caller.
    let tid = if A::is_known(copy, site) { unsafe { tid(site) } } else { 0 };
    let event = Event {
        stamp,
        place: call.key(),
        what: kind | u64::from(consumer.arg & !TRACE_GO),
        tid: tid | stack,
        values,
    };
    // SAFETY: passed on from the caller.
    let is_written = unsafe { ring(site, cpu) }.is_some_and(|ring| ring.output_words(event.words()).is_ok());
    if kind == Event::ENTRY {
        // An entry that was lost must not leave an older call's stamp to its exit.
        match is_written {
            true => drop(frames.open(call, stamp)),
            false => drop(frames.close(call)),
        }
    }
    let cell = if is_written { 0 } else { 8 * TRACE_LOST };
    // SAFETY: passed on from the caller; the cell is one of the consumer's two.
    unsafe { A::add(copy, site, consumer.cell + cell, 1) };
}

/// The ring of a CPU; `None` in a forked child.
///
/// # Safety
/// As for [`trace_enter`].
#[inline(always)]
unsafe fn ring(site: &SiteDesc, cpu: u64) -> Option<Ring> {
    let entry = (site.table + cpu * 8) as *const u64;
    // SAFETY: the table has an entry for each possible CPU; they are 0 in a forked child (wire::table).
    if unsafe { entry.read() } == 0 {
        return None;
    }
    let ring = NonNull::new((site.rings + cpu * Event::RING_STRIDE as u64) as *mut u8)?;
    // SAFETY: the arena holds a ring of this size for each CPU there, for as long as a trampoline can be run (contract).
    Some(unsafe { Ring::at(ring, Event::RING_BYTES) })
}

/// The thread as its libc wrote it down, or 0.
///
/// # Safety
/// `site.tid_offset`, if not 0, must be the offset of four readable bytes from every thread's pointer.
#[inline(always)]
pub(crate) unsafe fn tid(site: &SiteDesc) -> u64 {
    match site.tid_offset {
        0 => 0,
        // SAFETY: readable (contract).
        offset => unsafe { word_of_block(offset) },
    }
}
