//! Handlers that report calls: one at the entry, one before each exit.
//!
//! For:     `trace`, with stacks or without.
//! State:   the rings, the table of open calls, and two cells: written and lost; all in the arena.
//! Context: hit, between the reader's two counts; signal included: a handler that interrupts a write takes the next record.
//! Keeps:   T1 each hit adds to the written events or to the lost ones.
//! Checked: testkit `tracing`.
//!
//! A record is reserved by a locked compare-and-exchange on a line that belongs to this CPU: a thread that is moved to
//! another CPU in between pays for it in time, not in a record.

use crate::calls::{call_in_go, frames};
use crate::cell::Adder;
use crate::handler::PtRegs;
use crate::stack::Walker;
use core::marker::PhantomData;
use core::ptr::NonNull;
use map::{Call, Ring};
use wire::{
    ConsumerDesc, Event, STACK_FRAMES, SiteDesc, TRACE_GO, TRACE_JUMP, TRACE_LOST, WALK_AT_ENTRY, WALK_IN_GO,
    WalkDesc,
};

/// Where the first arguments are in the saved registers, in C and in Go.
const ARGUMENTS: [u32; 3] = [112, 104, 96];
const GO_ARGUMENTS: [u32; 3] = [80, 40, 88];
/// rax.
const RESULT: u32 = 80;

const _: () = assert!(Ring::bytes_for(Event::RING_BYTES) <= Event::RING_STRIDE);

/// Handler: a call begins.
///
/// # Safety
/// As for [`crate::enter`], but for two cells; `site.rings` must be the address of a ring of events for each CPU, and
/// `site.tid_offset`, if not 0, that of four readable bytes from every thread's pointer. In Go r14 must be saved and
/// hold the goroutine.
pub unsafe extern "C" fn trace_enter<A: Adder>(
    regs: &PtRegs,
    site: &SiteDesc,
    consumer: &ConsumerDesc,
    copy: u64,
) {
    let is_go = consumer.arg & TRACE_GO != 0;
    let values = read_all(regs, if is_go { GO_ARGUMENTS } else { ARGUMENTS });
    // SAFETY: passed on from the caller.
    unsafe { report::<A, false>(regs, site, consumer, copy, Event::ENTRY, values) };
}

/// Handler: a call begins, and who has made it. Saves the registers that calls keep beside those that the trampoline has saved.
///
/// # Safety
/// As for [`trace_enter`] and [`crate::count_stack`], but for the cells.
#[unsafe(naked)]
pub unsafe extern "C" fn trace_enter_stack<A: Adder>(
    regs: &PtRegs,
    site: &SiteDesc,
    consumer: &ConsumerDesc,
    copy: u64,
) {
    core::arch::naked_asm!(
        "mov [rdi], r15",
        "mov [rdi + 8], r14",
        "mov [rdi + 16], r13",
        "mov [rdi + 24], r12",
        "mov [rdi + 32], rbp",
        "jmp {handler}",
        handler = sym enter_with_stack::<A>,
    )
}

/// # Safety
/// As for [`trace_enter_stack`], with all these registers saved.
unsafe extern "C" fn enter_with_stack<A: Adder>(
    regs: &PtRegs,
    site: &SiteDesc,
    consumer: &ConsumerDesc,
    copy: u64,
) {
    let is_go = consumer.arg & TRACE_GO != 0;
    let values = read_all(regs, if is_go { GO_ARGUMENTS } else { ARGUMENTS });
    // SAFETY: passed on from the caller.
    unsafe { report::<A, true>(regs, site, consumer, copy, Event::ENTRY, values) };
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
    unsafe { report::<A, false>(regs, site, consumer, copy, Event::EXIT, [regs.at(RESULT), 0, 0]) };
}

#[inline(always)]
fn read_all(regs: &PtRegs, registers: [u32; 3]) -> [u64; 3] {
    [regs.at(registers[0]), regs.at(registers[1]), regs.at(registers[2])]
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

/// # Safety
/// As for [`trace_enter`]; with `WALKS` as for [`trace_enter_stack`].
#[inline(always)]
unsafe fn report<A: Adder, const WALKS: bool>(
    regs: &PtRegs,
    site: &SiteDesc,
    consumer: &ConsumerDesc,
    copy: u64,
    kind: u64,
    mut values: [u64; 3],
) {
    // SAFETY: passed on from the caller.
    let Some(frames) = (unsafe { frames(site) }) else {
        // A forked child, which may have asked for a trap of the counter since.
        // SAFETY: passed on from the caller; the cell is one of the consumer's two.
        return unsafe { A::add(copy, site, consumer.cell + 8 * TRACE_LOST, 1) };
    };
    // SAFETY: passed on from the caller.
    let stack = if WALKS { unsafe { stack::<A>(regs, site, consumer, copy) } } else { 0 };
    let (stamp, cpu) = ticks_and_cpu();
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
    let mut tid: u64 = 0;
    if site.tid_offset != 0 {
        // In: the offset. Out: the word. Touches no flags and no stack.
        // SAFETY: readable (contract).
        unsafe {
            core::arch::asm!(
                "mov {tid:e}, fs:[{at}]",
                at = in(reg) site.tid_offset,
                tid = out(reg) tid,
                options(nostack, readonly, preserves_flags),
            );
        }
    }
    tid
}

#[inline(always)]
fn ticks_and_cpu() -> (u64, u64) {
    let mut aux = 0u32;
    // SAFETY: rdtscp reads a counter and the number that Linux keeps beside it; every processor that has rseq's
    // Linux has it, and the trampolines use it too where rdpid is missing.
    let ticks = unsafe { core::arch::x86_64::__rdtscp(&raw mut aux) };
    (ticks, u64::from(aux & 0xfff))
}
