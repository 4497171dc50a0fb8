//! x86-64.
//!
//! For:     handlers, by `arch`.
//! State:   none.
//! Context: hit.
//! Keeps:   the list of `arch`.
//! Checked: testkit `counting`, `returns`, `tracing`.

use crate::around::Around;
use crate::cell::Adder;
use crate::handler::PtRegs;
use core::arch::asm;
use wire::{Hit, SiteDesc};

/// Words of the kernel's `struct pt_regs`.
pub(crate) const REGISTERS: usize = 21;
/// Where the first arguments are in the saved registers, in C and in Go.
pub(crate) const ARGUMENTS: [u32; 3] = [112, 104, 96];
pub(crate) const GO_ARGUMENTS: [u32; 3] = [80, 40, 88];
/// rax.
pub(crate) const RESULT: u32 = 80;
/// The first address that no user memory has.
pub(crate) const USER_END: u64 = 1 << 47;
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

/// The CPU that the thread runs on: a segment tells it.
#[inline(always)]
pub(crate) fn cpu(_: &SiteDesc, _has_copy: bool, _: impl FnOnce() -> bool) -> u64 {
    u64::from(percpu::cpu_by_segment())
}

/// And its node.
#[inline(always)]
pub(crate) fn node(_: impl FnOnce() -> bool) -> u64 {
    u64::from(percpu::node_by_segment())
}

/// Writes eight bytes, by no call of memset.
///
/// # Safety
/// Eight bytes must be mapped there, and writable.
#[inline(always)]
pub(crate) unsafe fn put(to: u64, word: u64) {
    // SAFETY: the caller's duty; touches what is named alone.
    unsafe {
        asm!("mov [{to}], {word}", word = in(reg) word, to = in(reg) to, options(nostack, preserves_flags))
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
        asm!("mov {t}, [{from}]", "mov [{to}], {t}", t = out(reg) _, from = in(reg) from, to = in(reg) to,
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
        asm!("mov {t}, [{from}]", "mov [{to}], {t}", t = out(reg_byte) _, from = in(reg) from, to = in(reg) to,
            options(nostack, preserves_flags));
    }
}

/// How many vector registers there are.
pub(crate) const VECTORS: usize = 16;

/// Writes the lowest sixteen bytes of each down.
///
/// # Safety
/// There must be room for them.
#[inline(always)]
pub(crate) unsafe fn store_vectors(to: *mut [u128; VECTORS]) {
    // SAFETY: room is there (contract), and nothing else has it.
    unsafe {
        asm!(
            "movups [{to}], xmm0",
            "movups [{to} + 16], xmm1",
            "movups [{to} + 32], xmm2",
            "movups [{to} + 48], xmm3",
            "movups [{to} + 64], xmm4",
            "movups [{to} + 80], xmm5",
            "movups [{to} + 96], xmm6",
            "movups [{to} + 112], xmm7",
            "movups [{to} + 128], xmm8",
            "movups [{to} + 144], xmm9",
            "movups [{to} + 160], xmm10",
            "movups [{to} + 176], xmm11",
            "movups [{to} + 192], xmm12",
            "movups [{to} + 208], xmm13",
            "movups [{to} + 224], xmm14",
            "movups [{to} + 240], xmm15",
            to = in(reg) to,
            options(nostack, preserves_flags),
        );
    }
}

/// A way into a function of a handler, which the compiler may make as it likes: the registers that a call keeps are written down
/// before it. They are as the target had them, on the first of a hit's consumers and on all others.
macro_rules! program_entry {
    ($(#[$of:meta])* $name:ident, $run:expr) => {
        $(#[$of])*
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(_: &PtRegs, _: &SiteDesc, _: &ConsumerDesc, _: u64) {
            core::arch::naked_asm!(
                "test dword ptr [rdx + {arg}], {kept}",
                "jnz 2f",
                "jmp {run}",
                "2:",
                "mov [rdi], r15",
                "mov [rdi + 8], r14",
                "mov [rdi + 16], r13",
                "mov [rdi + 24], r12",
                "mov [rdi + 32], rbp",
                "jmp {run}",
                arg = const offset_of!(ConsumerDesc, arg),
                kept = const needs::KEPT,
                run = sym $run,
            );
        }
    };
}
pub(crate) use program_entry;

/// Calls a program's code, compiled for this: r1 the saved registers, the run in r9, the arena in r15.
///
/// # Safety
/// At `entry` there must be code that passed jit's gate, and what it is given must be what it was compiled for.
#[inline(always)]
pub(crate) unsafe fn call_program(entry: u64, regs: u64, hit: *mut Hit, arena: u64) {
    // SAFETY: the code keeps the C convention (jit/arch/x86_64.rs): it comes back with the stack pointer and r15 as they were,
    // and changes general registers and flags alone.
    unsafe {
        asm!(
            "call {entry}",
            entry = in(reg) entry,
            inout("rdi") regs => _,
            inout("r9") hit => _,
            in("r15") arena,
            lateout("rsi") _,
            lateout("rdx") _,
            lateout("rcx") _,
            lateout("r8") _,
            lateout("rax") _,
            lateout("r10") _,
            lateout("r11") _,
        );
    }
}

/// What a thread of 64-bit code has in cs and ss.
const USER_CS: u64 = 0x33;
const USER_SS: u64 = 0x2b;
/// Of the flags: what is always set, and that interrupts are let in.
const FLAGS_ALWAYS: u64 = 0x202;

/// Writes what is not saved register by register: where the thread is, its stack pointer, its flags.
#[inline(always)]
pub(crate) fn fill_in(regs: &mut PtRegs, site: &SiteDesc) {
    let stack_pointer = regs.stack_pointer(site);
    let flags = FLAGS_ALWAYS | if site.has_flags != 0 { arithmetic_flags(regs) } else { 0 };
    for (offset, value) in [
        (120, u64::MAX), // orig_rax: in no system call
        (128, site.addr),
        (136, USER_CS),
        (144, flags),
        (152, stack_pointer),
        (160, USER_SS),
    ] {
        regs.set(offset, value);
    }
}

/// The flags that the trampoline saved just behind, in the form of `lahf; seto al`: those in ah, and the overflow.
#[inline(always)]
fn arithmetic_flags(regs: &PtRegs) -> u64 {
    let behind = core::ptr::from_ref(regs).wrapping_add(1).cast::<u64>();
    // SAFETY: the trampoline's frame goes on behind the registers, with the flags first where it saved them
    // (text/trampoline/hit.rs, `SLOT_FLAGS`; `SiteDesc::has_flags`).
    let ax = unsafe { behind.read() };
    ax >> 8 & 0xd5 | (ax & 1) << 11
}

/// The thread's stack, by its number.
///
/// # Safety
/// As for [`Around::user_stack`].
#[inline(always)]
pub(crate) unsafe fn user_stack<A: Adder>(around: &Around<'_>, hit: &Hit, to: u64, most: u64) -> u64 {
    // SAFETY: passed on from the caller.
    unsafe { around.user_stack::<A>(hit, to, most) }
}
