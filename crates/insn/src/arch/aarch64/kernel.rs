//! What the kernel's uprobes make of an A64 instruction.
//!
//! For:     sites that no branch fits, and scripts that the kernel runs.
//! State:   none.
//! Context: any; no allocation, no panic, no unsafe code.
//! Keeps:   K1 what the kernel refuses, or accepts and runs otherwise than the processor, is refused here, whichever kernel it is.
//! Checked: tests below; scripts/aarch64-live --kernel runs both ways.
//! Source:  arch/arm64/kernel/probes/decode-insn.c. Literal loads were accepted before 6.12 (6.1.114, 6.6.58) and read by the
//!          kernel's own rights; between exclusives a uprobe is accepted, and the store never succeeds.

use super::decode::{Auth, By, Relative, decode};
use super::place::word_at;
use super::verdict::{Verdict, verdict_at};
use crate::arch::x86_64::KernelWay;
use crate::code::Code;
use crate::reason::Forbidden;
use core::fmt;

/// Why the kernel's probe may not stand on an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotByKernel {
    /// Nor may any other.
    Forbidden(Forbidden),
    /// The kernel refuses it, or, in older ones, loads it by its own rights.
    Literal,
    /// The kernel refuses branches that check a signed pointer.
    Signed,
}

impl fmt::Display for NotByKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotByKernel::Forbidden(what) => write!(f, "there stands {what}"),
            NotByKernel::Literal => write!(f, "the kernel's uprobes cannot stand on a load of a literal"),
            NotByKernel::Signed => {
                write!(f, "the kernel's uprobes cannot stand on a branch that checks a signed pointer")
            }
        }
    }
}

/// How a kernel uprobe gets a thread past the instruction at `addr`.
///
/// # Errors
/// Why it may not stand there.
pub fn kernel_way(code: &Code<'_>, addr: u64) -> Result<KernelWay, NotByKernel> {
    if let Verdict::Refused(what) = verdict_at(code, addr) {
        return Err(NotByKernel::Forbidden(what));
    }
    match word_at(code, addr).and_then(|word| decode(word, addr)) {
        Some(Relative::Load { .. }) => Err(NotByKernel::Literal),
        Some(Relative::Register { by: By::Jump | By::Call | By::Return, auth, .. }) if auth != Auth::None => {
            Err(NotByKernel::Signed)
        }
        Some(_) => Ok(KernelWay::Emulates),
        None => Ok(KernelWay::Steps),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(words: &[u32]) -> Result<KernelWay, NotByKernel> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        kernel_way(&Code { base: 0x1000, bytes: &bytes }, 0x1000)
    }

    #[test]
    fn branches_and_addresses_are_emulated_and_all_else_is_stepped() {
        // ret, cbz, tbz, b.eq, bl, adrp
        for word in [0xd65f_03c0, 0xb400_0040, 0x3600_0040, 0x5400_0040, 0x9400_0002, 0x9000_0000] {
            assert_eq!(way(&[word, 0xd65f_03c0]), Ok(KernelWay::Emulates), "{word:#x}");
        }
        // bti c, paciasp, stp x29,x30,[sp,#-16]!, add, nop
        for word in [0xd503_245f, 0xd503_233f, 0xa9bf_7bfd, 0x9100_0400, 0xd503_201f] {
            assert_eq!(way(&[word, 0xd65f_03c0]), Ok(KernelWay::Steps), "{word:#x}");
        }
    }

    #[test]
    fn what_the_kernel_refuses_or_runs_otherwise_is_refused() {
        assert_eq!(way(&[0x5800_0040]), Err(NotByKernel::Literal));
        assert_eq!(way(&[0xd65f_0bff]), Err(NotByKernel::Signed), "retaa");
        assert!(matches!(way(&[0xd400_0001]), Err(NotByKernel::Forbidden(_))), "svc");
        // ldxr, add, stxr: the kernel takes the add between.
        let pair = [0x9100_0421, 0xc802_7c01, 0x35ff_ffc2, 0xd65f_03c0];
        assert_eq!(way(&pair), Err(NotByKernel::Forbidden(Forbidden::InExclusive)));
        assert!(way(&[0xc85f_7c01]).is_err(), "ldxr itself");
    }
}
