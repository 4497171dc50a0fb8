//! AArch64.
//!
//! For:     handlers, by `arch`.
//! State:   none.
//! Context: hit.
//! Keeps:   the list of `arch`.
//! Checked: the machine's test (docs/aarch64.md).

use crate::around::{Around, errno};
use crate::cell::Adder;
use crate::handler::PtRegs;
use core::arch::asm;
use wire::maps::HelperError;
use wire::{Hit, SiteDesc};

/// Words of the kernel's `struct user_pt_regs`: x0 to x30, the stack pointer, the program counter, pstate.
pub(crate) const REGISTERS: usize = 34;
/// Where the first arguments are in the saved registers, in C and in Go.
pub(crate) const ARGUMENTS: [u32; 3] = [0, 8, 16];
pub(crate) const GO_ARGUMENTS: [u32; 3] = ARGUMENTS;
/// x0.
pub(crate) const RESULT: u32 = 0;
/// The first address that no user memory has: programs and stacks lie in the upper half of what is before it.
pub(crate) const USER_END: u64 = 1 << 48;
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
    let cpu = if has_copy { cpu_of_area(site) } else { 0 };
    // Any number leads to an entry of the table (wire::table), and that of a thread without a CPU to none.
    (ticks(), cpu & 0xffff)
}

/// The CPU that the thread runs on, as its area has it; one that has no copy, and so no area, asks by a system call, if it may be
/// made.
#[inline(always)]
pub(crate) fn cpu(site: &SiteDesc, has_copy: bool, may_call: impl FnOnce() -> bool) -> u64 {
    if has_copy { cpu_of_area(site) } else { asked(may_call).0 }
}

/// What the thread's area says.
#[inline(always)]
fn cpu_of_area(site: &SiteDesc) -> u64 {
    const CPU: u64 = 4;
    // SAFETY: with a CPU's copy the thread's area lies there (wire::SiteDesc).
    unsafe { word_of_block((site.rseq_offset as u64).wrapping_add(CPU)) }
}

/// And its node, by a system call.
#[inline(always)]
pub(crate) fn node(may_call: impl FnOnce() -> bool) -> u64 {
    asked(may_call).1
}

#[inline(always)]
fn asked(may_call: impl FnOnce() -> bool) -> (u64, u64) {
    let told = if may_call() { sys::cpu_and_node().unwrap_or_default() } else { (0, 0) };
    (told.0.into(), told.1.into())
}

/// Writes eight bytes, by no call of memset.
///
/// # Safety
/// Eight bytes must be mapped there, and writable.
#[inline(always)]
pub(crate) unsafe fn put(to: u64, word: u64) {
    // SAFETY: the caller's duty; touches what is named alone.
    unsafe {
        asm!("str {word}, [{to}]", word = in(reg) word, to = in(reg) to, options(nostack, preserves_flags))
    };
}

/// Copies eight bytes, by no call of memcpy.
///
/// # Safety
/// Both must be mapped for eight bytes, `to` writable.
#[inline(always)]
pub(crate) unsafe fn word(to: u64, from: u64) {
    // SAFETY: the caller's duty; touches what is named alone.
    unsafe {
        asm!("ldr {t}, [{from}]", "str {t}, [{to}]", t = out(reg) _, from = in(reg) from, to = in(reg) to,
            options(nostack, preserves_flags));
    }
}

/// Copies a byte.
///
/// # Safety
/// Both must be mapped for a byte, `to` writable.
#[inline(always)]
pub(crate) unsafe fn byte(to: u64, from: u64) {
    // SAFETY: the caller's duty; touches what is named alone.
    unsafe {
        asm!("ldrb {t:w}, [{from}]", "strb {t:w}, [{to}]", t = out(reg) _, from = in(reg) from, to = in(reg) to,
            options(nostack, preserves_flags));
    }
}

/// How many vector registers there are.
pub(crate) const VECTORS: usize = 32;

/// Writes the lowest sixteen bytes of each down: `stp` of each two, as words, since the agent is built without these registers.
///
/// # Safety
/// There must be room for them.
#[inline(always)]
pub(crate) unsafe fn store_vectors(to: *mut [u128; VECTORS]) {
    // SAFETY: room is there (contract), and nothing else has it.
    unsafe {
        asm!(
            ".inst 0xad000400", // stp q0, q1, [x0, #0]
            ".inst 0xad010c02", // stp q2, q3, [x0, #32]
            ".inst 0xad021404", // stp q4, q5, [x0, #64]
            ".inst 0xad031c06", // stp q6, q7, [x0, #96]
            ".inst 0xad042408", // stp q8, q9, [x0, #128]
            ".inst 0xad052c0a", // stp q10, q11, [x0, #160]
            ".inst 0xad06340c", // stp q12, q13, [x0, #192]
            ".inst 0xad073c0e", // stp q14, q15, [x0, #224]
            ".inst 0xad084410", // stp q16, q17, [x0, #256]
            ".inst 0xad094c12", // stp q18, q19, [x0, #288]
            ".inst 0xad0a5414", // stp q20, q21, [x0, #320]
            ".inst 0xad0b5c16", // stp q22, q23, [x0, #352]
            ".inst 0xad0c6418", // stp q24, q25, [x0, #384]
            ".inst 0xad0d6c1a", // stp q26, q27, [x0, #416]
            ".inst 0xad0e741c", // stp q28, q29, [x0, #448]
            ".inst 0xad0f7c1e", // stp q30, q31, [x0, #480]
            in("x0") to,
            options(nostack, preserves_flags),
        );
    }
}

/// A way into a function of a handler: all registers are saved before it.
macro_rules! program_entry {
    ($(#[$of:meta])* $name:ident, $run:expr) => {
        $(#[$of])*
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(_: &PtRegs, _: &SiteDesc, _: &ConsumerDesc, _: u64) {
            core::arch::naked_asm!("b {run}", run = sym $run);
        }
    };
}
pub(crate) use program_entry;

/// Calls a program's code, compiled for this: r1 the saved registers, the run in x5, the arena in x21.
///
/// # Safety
/// At `entry` there must be code that passed jit's gate, and what it is given must be what it was compiled for.
#[inline(always)]
pub(crate) unsafe fn call_program(entry: u64, regs: u64, hit: *mut Hit, arena: u64) {
    // SAFETY: the code keeps the C convention (jit/arch/aarch64.rs): it comes back with the stack pointer, x18 and x21 as they were,
    // and changes general registers and flags alone; so do helpers, which are the agent's.
    unsafe {
        asm!(
            "blr {entry}",
            entry = in(reg) entry,
            in("x21") arena,
            inout("x0") regs => _,
            inout("x5") hit => _,
            clobber_abi("C"),
        );
    }
}

/// Writes what is not saved register by register: where the thread is, and its stack pointer. Of pstate there are the flags.
#[inline(always)]
pub(crate) fn fill_in(regs: &mut PtRegs, site: &SiteDesc) {
    regs.set(8 * 31, regs.stack_pointer(site));
    regs.set(8 * 32, site.addr);
}

/// Nothing walks a stack here: the session refuses programs that ask for one.
///
/// # Safety
/// None.
#[inline(always)]
pub(crate) unsafe fn user_stack<A: Adder>(around: &Around<'_>, _: &Hit, _: u64, _: u64) -> u64 {
    around.refused(HelperError::NoHelper, errno::ENOSYS)
}
