//! x86-64.
//!
//! For:     handlers, by `arch`.
//! State:   none.
//! Context: hit.
//! Keeps:   the list of `arch`.
//! Checked: testkit `counting`, `returns`, `tracing`.

use crate::handler::PtRegs;
use core::arch::asm;
use wire::SiteDesc;

/// Words of the kernel's `struct pt_regs`.
pub(crate) const REGISTERS: usize = 21;
/// Where the first arguments are in the saved registers, in C and in Go.
pub(crate) const ARGUMENTS: [u32; 3] = [112, 104, 96];
pub(crate) const GO_ARGUMENTS: [u32; 3] = [80, 40, 88];
/// rax.
pub(crate) const RESULT: u32 = 80;
/// r14.
const GOROUTINE: u32 = 8;

/// The address of the goroutine that runs.
#[inline(always)]
pub(crate) fn goroutine(regs: &PtRegs) -> u64 {
    regs.at(GOROUTINE)
}

/// The pointer of a thread whose block is known.
///
/// # Safety
/// The thread's pointer must lead to a block of the thread's.
#[inline(always)]
pub(crate) unsafe fn pointer_of_block() -> u64 {
    let pointer: u64;
    // SAFETY: the thread's block is known (contract), and its first word is its address. Touches no flags and no stack.
    unsafe {
        asm!("mov {p}, fs:[0]", p = out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    pointer
}

/// The thread's pointer, or 0 where it cannot be told.
///
/// # Safety
/// What the site says of the processor must be true.
#[inline(always)]
pub(crate) unsafe fn pointer(site: &SiteDesc) -> u64 {
    let mut pointer = 0u64;
    if site.has_fsgsbase != 0 {
        // SAFETY: the processor and Linux have the instruction (wire::SiteDesc), which writes the named register only.
        unsafe {
            asm!("rdfsbase {p}", p = out(reg) pointer, options(nomem, nostack, preserves_flags));
        }
    }
    pointer
}

/// A thread that a program made by itself may have no thread pointer.
#[inline(always)]
pub(crate) fn is_pointer_known(site: &SiteDesc) -> bool {
    // SAFETY: asks for nothing but what the site says of the processor.
    site.has_fsgsbase == 0 || unsafe { pointer(site) } != 0
}

/// Four bytes of the thread's block.
///
/// # Safety
/// At `offset` from the thread's pointer there must be four readable bytes.
#[inline(always)]
pub(crate) unsafe fn word_of_block(offset: u64) -> u64 {
    let mut word: u64;
    // In: the offset. Out: the word. Touches no flags and no stack.
    // SAFETY: readable (contract).
    unsafe {
        asm!(
            "mov {word:e}, fs:[{at}]",
            at = in(reg) offset,
            word = out(reg) word,
            options(nostack, readonly, preserves_flags),
        );
    }
    word
}

#[inline(always)]
pub(crate) fn ticks() -> u64 {
    // SAFETY: rdtsc reads a counter; Linux lets every program run it unless it asked for a trap, and in such a process
    // no call is timed (session/tsc.rs).
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The counter, and the CPU that it was read on; of a site in a thread with a copy (`has_copy`) or without.
#[inline(always)]
pub(crate) fn ticks_and_cpu(_: &SiteDesc, _has_copy: bool) -> (u64, u64) {
    let mut aux = 0u32;
    // SAFETY: rdtscp reads a counter and the number that Linux keeps beside it; every processor that has rseq's
    // Linux has it, and the trampolines use it too where rdpid is missing.
    let ticks = unsafe { core::arch::x86_64::__rdtscp(&raw mut aux) };
    (ticks, u64::from(aux & 0xfff))
}
