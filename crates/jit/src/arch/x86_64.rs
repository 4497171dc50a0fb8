//! x86-64.
//!
//! For:     this crate, by `arch`.
//! State:   none.
//! Context: control.
//! Keeps:   the list of `arch`.
//! Checked: tests/engines.rs.

pub(crate) mod gate;

use crate::Run;
use cranelift_codegen::binemit::Reloc;

/// What Cranelift calls it.
pub(crate) const NAME: &str = "x86_64-unknown-linux-gnu";
/// What stands between functions, where nothing leads: as often as it fits.
pub(crate) const PAD: &[u8] = &[0x90];
/// Words of the kernel's `pt_regs`.
pub(crate) const CONTEXT_WORDS: u32 = 21;
/// Bytes of a jump to anywhere.
pub(crate) const FAR_LEN: usize = 16;

/// What of the processor is used beyond what all have.
pub(crate) fn extensions() -> impl Iterator<Item = &'static str> {
    std::iter::empty()
}

/// The one kind of relocation: a call's distance.
pub(crate) fn is_call(kind: Reloc, addend: i64) -> bool {
    kind == Reloc::X86CallPCRel4 && addend == -4
}

/// The four bytes at the place of a relocation, for a callee so far from them; `None`: it is too far.
pub(crate) fn call(distance: i64) -> Option<[u8; 4]> {
    i32::try_from(distance - 4).ok().map(i32::to_le_bytes)
}

/// `mov r11, imm64; jmp r11`, and three that are none.
pub(crate) fn far(to: u64) -> [u8; FAR_LEN] {
    let mut bytes = [0x90; FAR_LEN];
    bytes[..2].copy_from_slice(&[0x49, 0xbb]);
    bytes[2..10].copy_from_slice(&to.to_le_bytes());
    bytes[10..13].copy_from_slice(&[0x41, 0xff, 0xe3]);
    bytes
}

/// Divisions trap by themselves, and divisors are never 0.
pub(crate) fn without_traps(_: &mut [u8], _: &[usize]) {}

/// Calls the code.
///
/// # Safety
/// As for [`Loaded::run`](crate::Loaded::run).
pub(crate) unsafe fn enter(code: u64, args: [u64; 5], arena: u64, run: &mut Run) -> u64 {
    let r0: u64;
    // SAFETY: the code keeps the C convention (L2: the stack pointer comes back, r15 is never written; what must be
    // kept, Cranelift saves), `run` is borrowed for the call, and the program's own accesses are the caller's to answer
    // for. The stack is aligned, and no red zone of ours is in use: a block of assembly may call.
    unsafe {
        std::arch::asm!(
            "call {code}",
            code = in(reg) code,
            inout("r15") arena => _,
            inout("rdi") args[0] => _,
            inout("rsi") args[1] => _,
            inout("rdx") args[2] => _,
            inout("rcx") args[3] => _,
            inout("r8") args[4] => _,
            inout("r9") &raw mut *run => _,
            lateout("rax") r0,
            clobber_abi("C"),
        );
    }
    r0
}
