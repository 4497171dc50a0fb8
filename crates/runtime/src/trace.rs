//! Handlers that report calls: one at the entry, one before each exit.
//!
//! For:     `trace`.
//! State:   the rings, and two cells: written and lost; all in the arena.
//! Context: hit, between the reader's two counts.
//! Keeps:   T1 each hit adds to the written events or to the lost ones.
//! Checked: testkit `tracing`.

use crate::cell::Adder;
use crate::frames::Call;
use crate::handler::PtRegs;
use crate::rings::{Event, write};
use wire::rings::{ENTRY, EXIT, LEN_BYTES, Ring};
use wire::{ConsumerDesc, SiteDesc, TRACE_GO, TRACE_LOST};

/// Where the first arguments are in the saved registers, in C and in Go.
const ARGUMENTS: [u32; 3] = [112, 104, 96];
const GO_ARGUMENTS: [u32; 3] = [80, 40, 88];
/// rax, and what a second result is in.
const RESULTS: [u32; 3] = [80, 96, 88];
const GOROUTINE: u32 = 8;

/// Handler: a call begins.
///
/// # Safety
/// As for [`Adder::add`]; the consumer must own two cells, `site.rings` must be the address of a ring for each CPU,
/// and `site.tid_offset`, if not 0, that of a word in every thread's static TLS. At a Go function r14 must be saved.
pub unsafe extern "C" fn trace_enter<A: Adder>(regs: &PtRegs, site: &SiteDesc, consumer: &ConsumerDesc) {
    let registers = if consumer.arg & TRACE_GO != 0 { GO_ARGUMENTS } else { ARGUMENTS };
    // SAFETY: passed on from the caller.
    unsafe { report::<A>(regs, site, consumer, ENTRY, registers) };
}

/// Handler: a call ends.
///
/// # Safety
/// As for [`trace_enter`].
pub unsafe extern "C" fn trace_leave<A: Adder>(regs: &PtRegs, site: &SiteDesc, consumer: &ConsumerDesc) {
    // SAFETY: passed on from the caller.
    unsafe { report::<A>(regs, site, consumer, EXIT, RESULTS) };
}

/// # Safety
/// As for [`trace_enter`].
#[inline(always)]
unsafe fn report<A: Adder>(
    regs: &PtRegs,
    site: &SiteDesc,
    consumer: &ConsumerDesc,
    kind: u64,
    registers: [u32; 3],
) {
    let (stamp, cpu) = ticks_and_cpu();
    let function = consumer.arg & !TRACE_GO;
    let is_go = consumer.arg & TRACE_GO != 0;
    let event = Event {
        stamp,
        // SAFETY: passed on from the caller.
        place: if is_go { unsafe { place_in_go(regs) } } else { regs.stack_pointer() },
        what: kind | u64::from(function),
        // SAFETY: passed on from the caller.
        tid: unsafe { tid(site) },
        values: [regs.at(registers[0]), regs.at(registers[1]), regs.at(registers[2])],
    };
    // SAFETY: passed on from the caller.
    let is_written = unsafe { ring(site, cpu) }.is_some_and(|ring| write(ring, &event));
    let cell = if is_written { 0 } else { 8 * TRACE_LOST };
    // SAFETY: passed on from the caller; the cell is one of the consumer's two.
    unsafe { A::add(site, consumer.cell + cell, 1) };
}

/// The ring of a CPU; `None` in a forked child.
///
/// # Safety
/// As for [`trace_enter`].
#[inline(always)]
unsafe fn ring(site: &SiteDesc, cpu: u64) -> Option<&'static Ring> {
    let entry = (site.table + cpu * 8) as *const u64;
    // SAFETY: the table has an entry for each possible CPU; they are 0 in a forked child (wire::table).
    if unsafe { entry.read() } == 0 {
        return None;
    }
    let ring = (site.rings + cpu * LEN_BYTES as u64) as *const Ring;
    // SAFETY: the arena holds a ring for each CPU at this address (contract), and its words are atomic.
    Some(unsafe { &*ring })
}

/// # Safety
/// r14 must be saved and hold a goroutine.
#[inline(always)]
unsafe fn place_in_go(regs: &PtRegs) -> u64 {
    let g = regs.at(GOROUTINE);
    let high = (g + 8) as *const u64;
    // SAFETY: a goroutine begins with the bounds of its stack (runtime/calls.rs).
    let high = unsafe { high.read() };
    Call::in_goroutine(g, high.wrapping_sub(regs.stack_pointer()), 0).key()
}

/// The thread as its libc wrote it down, or 0.
///
/// # Safety
/// `site.tid_offset`, if not 0, must be the offset of four readable bytes from every thread's pointer.
#[inline(always)]
unsafe fn tid(site: &SiteDesc) -> u64 {
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
