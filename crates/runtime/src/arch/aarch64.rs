//! AArch64.
//!
//! For:     handlers, by `arch`.
//! State:   none.
//! Context: hit.
//! Keeps:   the list of `arch`.
//! Checked: the machine's test (docs/aarch64.md).

use crate::handler::PtRegs;
use core::arch::asm;
use wire::SiteDesc;

/// Words of the kernel's `struct user_pt_regs`: x0 to x30, the stack pointer, the program counter, pstate.
pub(crate) const REGISTERS: usize = 34;
/// Where the first arguments are in the saved registers, in C and in Go.
pub(crate) const ARGUMENTS: [u32; 3] = [0, 8, 16];
pub(crate) const GO_ARGUMENTS: [u32; 3] = ARGUMENTS;
/// x0.
pub(crate) const RESULT: u32 = 0;
/// x28.
const GOROUTINE: u32 = 28 * 8;

/// The address of the goroutine that runs.
#[inline(always)]
pub(crate) fn goroutine(regs: &PtRegs) -> u64 {
    regs.at(GOROUTINE)
}

/// The thread's pointer; 0 in a thread that has none.
#[inline(always)]
fn tpidr() -> u64 {
    let pointer: u64;
    // SAFETY: reads a register that each thread has, and touches nothing else.
    unsafe {
        asm!("mrs {p}, tpidr_el0", p = out(reg) pointer, options(nomem, nostack, preserves_flags));
    }
    pointer
}

/// The pointer of a thread whose block is known.
///
/// # Safety
/// None: a register.
#[inline(always)]
pub(crate) unsafe fn pointer_of_block() -> u64 {
    tpidr()
}

/// The thread's pointer, or 0 where there is none.
///
/// # Safety
/// None: a register.
#[inline(always)]
pub(crate) unsafe fn pointer(_: &SiteDesc) -> u64 {
    tpidr()
}

/// A thread that a program made by itself may have no thread pointer.
#[inline(always)]
pub(crate) fn is_pointer_known(_: &SiteDesc) -> bool {
    tpidr() != 0
}

/// Four bytes of the thread's block.
///
/// # Safety
/// At `offset` from the thread's pointer there must be four readable bytes.
#[inline(always)]
pub(crate) unsafe fn word_of_block(offset: u64) -> u64 {
    let at = tpidr().wrapping_add(offset) as *const u32;
    // SAFETY: readable (contract).
    u64::from(unsafe { at.read() })
}

/// The counter that Linux lets every program read. It may be read some instructions early: so may the time stamp counter of
/// x86-64.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    let ticks: u64;
    // SAFETY: reads a counter, and touches nothing else. Not `nomem`: it stays where it stands among accesses.
    unsafe {
        asm!("mrs {t}, cntvct_el0", t = out(reg) ticks, options(nostack, preserves_flags));
    }
    ticks
}

/// The counter, and the CPU as the thread's rseq area has it; 0 in a thread that has no copy: no instruction tells it.
#[inline(always)]
pub(crate) fn ticks_and_cpu(site: &SiteDesc, has_copy: bool) -> (u64, u64) {
    const CPU: u64 = 4;
    let cpu = match has_copy {
        // SAFETY: with a CPU's copy the thread's area lies there (wire::SiteDesc).
        true => unsafe { word_of_block((site.rseq_offset as u64).wrapping_add(CPU)) },
        false => 0,
    };
    // Any number leads to an entry of the table (wire::table), and that of a thread without a CPU to none.
    (ticks(), cpu & 0xffff)
}
