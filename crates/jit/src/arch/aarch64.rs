//! AArch64.
//!
//! For:     this crate, by `arch`.
//! State:   none.
//! Context: control.
//! Keeps:   the list of `arch`.
//! Checked: tests below; tests/engines.rs under qemu (docs/aarch64.md).

pub(crate) mod gate;

use crate::Run;
use cranelift_codegen::binemit::Reloc;
use insn::aarch64::{NOP, Relative, decode};

/// What Cranelift calls it.
pub(crate) const NAME: &str = "aarch64-unknown-linux-gnu";
/// What stands between functions, where nothing leads: as often as it fits.
pub(crate) const PAD: &[u8] = &NOP.to_le_bytes();
/// Words of the kernel's `user_pt_regs`.
pub(crate) const CONTEXT_WORDS: u32 = 34;
/// Bytes of a jump to anywhere.
pub(crate) const FAR_LEN: usize = 16;
/// How far a call leads, forward; backward four bytes more.
const REACH: i64 = 1 << 27;

/// What of the processor is used beyond what all have. Without atomic instructions (Cortex-A72 has none) an atomic access is a loop of
/// an exclusive load and store, in registers that the function saves.
pub(crate) fn extensions() -> impl Iterator<Item = &'static str> {
    // The kernel tells what all processors have (AT_HWCAP): who compiles runs where the target does.
    std::arch::is_aarch64_feature_detected!("lse").then_some("has_lse").into_iter()
}

/// The one kind of relocation: a call's distance.
pub(crate) fn is_call(kind: Reloc, addend: i64) -> bool {
    kind == Reloc::Arm64Call && addend == 0
}

/// The four bytes at the place of a relocation, for a callee so far from them; `None`: it is too far.
pub(crate) fn call(distance: i64) -> Option<[u8; 4]> {
    let reaches = (-REACH..REACH).contains(&distance) && distance % 4 == 0;
    reaches.then(|| (0x9400_0000 | (distance >> 2) as u32 & 0x3ff_ffff).to_le_bytes())
}

/// `ldr x16, #8; br x16`, and the address.
pub(crate) fn far(to: u64) -> [u8; FAR_LEN] {
    let mut bytes = [0; FAR_LEN];
    bytes[..4].copy_from_slice(&0x5800_0050u32.to_le_bytes());
    bytes[4..8].copy_from_slice(&0xd61f_0200u32.to_le_bytes());
    bytes[8..].copy_from_slice(&to.to_le_bytes());
    bytes
}

/// Takes out what leads to traps. Cranelift has each divisor compared with 0 and a trap behind; the processor needs none, whose
/// division by 0 gives 0, as the program's does.
pub(crate) fn without_traps(code: &mut [u8], traps: &[usize]) {
    let word_at = |code: &[u8], at: usize| {
        let word = code.get(at..at + 4).and_then(|word| word.first_chunk());
        u32::from_le_bytes(word.copied().unwrap_or_default())
    };
    for at in (0..code.len()).step_by(4) {
        let Some(Relative::JumpZero { when_zero: true, mut target, .. }) =
            decode(word_at(code, at), at as u64)
        else {
            continue;
        };
        // In long functions by way of a branch that goes farther.
        if let Some(Relative::Jump { target: on }) = decode(word_at(code, target as usize), target) {
            target = on;
        }
        if traps.contains(&(target as usize)) {
            code[at..at + 4].copy_from_slice(&NOP.to_le_bytes());
        }
    }
}

/// Calls the code.
///
/// # Safety
/// As for [`Loaded::run`](crate::Loaded::run).
pub(crate) unsafe fn enter(code: u64, args: [u64; 5], arena: u64, run: &mut Run) -> u64 {
    let r0: u64;
    // SAFETY: the code keeps the C convention (L2: stack pointer and link register come back, x18 and x21 are never written; what
    // must be kept, Cranelift saves), `run` is borrowed for the call, and the program's own accesses are the caller's to answer
    // for. The stack is aligned: a block of assembly may call.
    unsafe {
        std::arch::asm!(
            "blr {code}",
            code = in(reg) code,
            inout("x21") arena => _,
            inout("x0") args[0] => r0,
            inout("x1") args[1] => _,
            inout("x2") args[2] => _,
            inout("x3") args[3] => _,
            inout("x4") args[4] => _,
            inout("x5") &raw mut *run => _,
            clobber_abi("C"),
        );
    }
    r0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn a_call_leads_as_far_as_its_field_and_no_farther() {
        let word = |distance| call(distance).map(u32::from_le_bytes);
        assert_eq!((word(8), word(-4)), (Some(0x9400_0002), Some(0x97ff_ffff)));
        assert_eq!((word(REACH - 4), word(-REACH)), (Some(0x95ff_ffff), Some(0x9600_0000)));
        assert_eq!((word(REACH), word(-REACH - 4), word(2)), (None, None, None));
    }

    #[test]
    fn what_leads_to_a_trap_is_taken_out_and_nothing_else() {
        // cbz x1, trap; cbz x1, end; cbnz x1, trap; ret; trap: udf
        let mut bytes = code(&[0xb400_0081, 0xb400_0041, 0xb500_0041, 0xd65f_03c0, 0]);
        without_traps(&mut bytes, &[16]);
        assert_eq!(bytes, code(&[NOP, 0xb400_0041, 0xb500_0041, 0xd65f_03c0, 0]));
        // By way of a branch.
        let mut bytes = code(&[0x3400_0041, 0xd65f_03c0, 0x1400_0001, 0]);
        without_traps(&mut bytes, &[12]);
        assert_eq!(bytes[..4], NOP.to_le_bytes());
    }
}
