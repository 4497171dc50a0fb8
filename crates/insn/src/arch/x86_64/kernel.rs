//! What a kernel uprobe runs otherwise than the processor does.
//!
//! For:     rung 7, which must leave the program as it is.
//! State:   none.
//! Context: control.
//! Keeps:   G1 of what the kernel accepts, all that it runs or counts wrong is named here.
//! Checked: tests below; tests/differential/kernel.rs, every encoding under a kernel uprobe (Linux 6.18).
//! Source:  arch/x86/kernel/uprobes.c tells instructions apart by one opcode byte. Of VEX, EVEX and XOP encodings that
//!          is the byte behind the prefix, which means something else in the one-byte map.

use std::fmt;

use iced_x86::{CpuidFeature, EncodingKind, Instruction, Mnemonic, Register};

use super::{decode_raw, prefixes};

/// Why a kernel uprobe may not stand on an instruction that the kernel accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Misrun {
    /// A vector instruction whose opcode byte is that of a jump, call, return, nop or popf.
    VectorForBranch,
    /// `xchg` of rax with r8, without its prefix a nop.
    ExchangeForNop,
    /// Mandatory and operand-size prefix in the unusual order: the kernel finds no memory operand.
    PrefixOrder,
    /// It is none of those that each kernel's tables have, so that the kernel may not see that its operand is relative to rip.
    UnknownOperand,
    /// `pushf` would push the flag by which the kernel steps.
    PushesTrapFlag,
    /// Each repetition would be a hit.
    Repeats,
    /// The kernel emulates it at its own address only (sgdt, sidt, sldt, smsw, str), or it is another system's call.
    System,
}

impl fmt::Display for Misrun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Misrun::VectorForBranch => {
                "the kernel takes this vector instruction for a jump, call, return or nop"
            }
            Misrun::ExchangeForNop => "the kernel takes this exchange for a nop",
            Misrun::PrefixOrder => "the kernel misreads the order of prefixes",
            Misrun::UnknownOperand => "the kernel may not see that its operand is relative to rip",
            Misrun::PushesTrapFlag => "under a kernel uprobe pushf pushes the trap flag",
            Misrun::Repeats => "the kernel counts each repetition",
            Misrun::System => "the kernel cannot run this system instruction out of line",
        })
    }
}

/// Whether the instruction at the start of `bytes` runs under a kernel uprobe as without, and is counted once.
///
/// What the kernel refuses by itself, and bytes that are no instruction, pass.
///
/// # Errors
/// What the kernel would do wrong.
pub fn kernel_misruns(bytes: &[u8]) -> Result<(), Misrun> {
    let Some(insn) = decode_raw(bytes, 0) else { return Ok(()) };
    let bytes = &bytes[..insn.len()];
    let is_vector = !matches!(insn.code().encoding(), EncodingKind::Legacy);
    if insn.is_ip_rel_memory_operand() && is_unknown(&insn) {
        return Err(Misrun::UnknownOperand);
    }
    if is_vector {
        return if is_branch_byte(vector_opcode(bytes)) { Err(Misrun::VectorForBranch) } else { Ok(()) };
    }
    match insn.mnemonic() {
        Mnemonic::Xchg if is_r8_with_rax(&insn, bytes) => Err(Misrun::ExchangeForNop),
        Mnemonic::Pushf | Mnemonic::Pushfq => Err(Misrun::PushesTrapFlag),
        Mnemonic::Sgdt | Mnemonic::Sidt | Mnemonic::Sldt | Mnemonic::Smsw | Mnemonic::Str => {
            Err(Misrun::System)
        }
        Mnemonic::Sysenter => Err(Misrun::System),
        _ if insn.is_string_instruction() && (insn.has_rep_prefix() || insn.has_repne_prefix()) => {
            Err(Misrun::Repeats)
        }
        _ if insn.is_ip_rel_memory_operand() && is_size_prefix_last(bytes) => Err(Misrun::PrefixOrder),
        _ => Ok(()),
    }
}

/// How a kernel uprobe gets a thread past an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelWay {
    /// The kernel does what the instruction does: one trap a hit.
    Emulates,
    /// The thread runs a copy under the trap flag: a second trap.
    Steps,
}

/// The length of the instruction at the start of `bytes`, and how the kernel gets past it; none if it is no instruction.
pub fn kernel_way(bytes: &[u8]) -> Option<(u8, KernelWay)> {
    let insn = decode_raw(bytes, 0)?;
    let bytes = &bytes[..insn.len()];
    // A push may have a REX prefix; a branch with any other prefix is stepped.
    let is_emulated = matches!(
        bytes,
        [0x50..=0x57]
            | [0x40..=0x4f, 0x50..=0x57]
            | [0x90]
            | [0xeb | 0x70..=0x7f, _]
            | [0xe8 | 0xe9, _, _, _, _]
            | [0x0f, 0x80..=0x8f, _, _, _, _]
    );
    let way = if is_emulated { KernelWay::Emulates } else { KernelWay::Steps };
    Some((bytes.len() as u8, way))
}

/// Whether arch/x86/lib/x86-opcode-map.txt may have no such instruction: the kernel then reads no operand.
///
/// Asked by a list of what has been there for as long as there have been links for uprobes: what processors learn next,
/// older kernels do not know. Not there in Linux 6.18: SSE4A, XOP and FMA4.
fn is_unknown(insn: &Instruction) -> bool {
    !insn.cpuid_features().iter().all(|feature| KNOWN.contains(feature))
}

/// What the tables of Linux 6.6 have, but for rarities.
#[rustfmt::skip] // A table.
const KNOWN: [CpuidFeature; 56] = {
    use CpuidFeature::*;
    [
        INTEL8086, INTEL186, INTEL286, INTEL386, INTEL486, X64, ADX, AES, AVX, AVX2, AVX512BW, AVX512CD,
        AVX512DQ, AVX512F, AVX512VL, AVX512_BITALG, AVX512_FP16, AVX512_IFMA, AVX512_VBMI, AVX512_VBMI2,
        AVX512_VNNI, AVX512_VPOPCNTDQ, BMI1, BMI2, CLFLUSHOPT, CLFSH, CLWB, CMOV, CMPXCHG16B, CX8, F16C, FMA,
        FPU, FPU287, FPU387, FXSR, GFNI, LZCNT, MMX, MOVBE, MULTIBYTENOP, PCLMULQDQ, POPCNT, PREFETCHW, SHA,
        SSE, SSE2, SSE3, SSE4_1, SSE4_2, SSSE3, VAES, VPCLMULQDQ, XSAVE, XSAVEC, XSAVEOPT,
    ]
};

/// The one-byte opcodes that the kernel treats in a way of its own.
fn is_branch_byte(opcode: u8) -> bool {
    matches!(
        opcode,
        0x70..=0x7f | 0x90 | 0x9a | 0x9d | 0xc2 | 0xc3 | 0xca | 0xcb | 0xe8 | 0xe9 | 0xea | 0xeb | 0xff
    )
}

/// The opcode byte of an instruction with a VEX, EVEX or XOP prefix.
fn vector_opcode(bytes: &[u8]) -> u8 {
    let prefix = bytes.iter().position(|byte| matches!(byte, 0xc4 | 0xc5 | 0x62 | 0x8f)).unwrap_or(0);
    let len = match bytes[prefix] {
        0xc5 => 2,
        0x62 => 4,
        _ => 3,
    };
    bytes.get(prefix + len).copied().unwrap_or(0)
}

fn is_r8_with_rax(insn: &Instruction, bytes: &[u8]) -> bool {
    bytes.last() == Some(&0x90) && insn.op0_register().full_register() == Register::R8
}

/// Both an operand-size and a repeat prefix, and the repeat prefix is not the last of the two.
fn is_size_prefix_last(bytes: &[u8]) -> bool {
    let prefixes = prefixes(bytes);
    let last = |wanted: &[u8]| prefixes.iter().rposition(|byte| wanted.contains(byte));
    matches!((last(&[0x66]), last(&[0xf2, 0xf3])), (Some(size), Some(repeat)) if size > repeat)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by a run of each encoding under a kernel uprobe.
    #[test]
    fn an_exchange_that_the_decoder_calls_a_pause_is_no_instruction_that_we_know() {
        assert!(decode_raw(&[0xf3, 0x45, 0x90], 0).is_none() && decode_raw(&[0xf3, 0x41, 0x90], 0).is_none());
        assert!(decode_raw(&[0xf3, 0x90], 0).is_some() && decode_raw(&[0xf3, 0x44, 0x90], 0).is_some());
    }

    /// Found on an AMD processor: the store went to an address of the kernel's copy.
    #[test]
    fn what_the_kernel_has_no_table_for_is_left_out_where_its_operand_is_relative_to_rip() {
        // movntss [rip+0],xmm0; movntsd; vfmaddps xmm (FMA4); vpcmov (XOP); aadd [rip+0],eax (RAO-INT); aesenc128kl;
        // movdiri; wrssd
        let unknown: [&[u8]; 8] = [
            &[0xf3, 0x0f, 0x2b, 0x05, 0, 0, 0, 0],
            &[0xf2, 0x0f, 0x2b, 0x05, 0, 0, 0, 0],
            &[0xc4, 0xe3, 0x79, 0x68, 0x05, 0, 0, 0, 0, 0x10],
            &[0x8f, 0xe8, 0x78, 0xa2, 0x05, 0, 0, 0, 0, 0x10],
            &[0x0f, 0x38, 0xfc, 0x05, 0, 0, 0, 0],
            &[0xf3, 0x0f, 0x38, 0xdc, 0x05, 0, 0, 0, 0],
            &[0x0f, 0x38, 0xf9, 0x05, 0, 0, 0, 0],
            &[0x0f, 0x38, 0xf6, 0x05, 0, 0, 0, 0],
        ];
        for bytes in unknown {
            assert_eq!(kernel_misruns(bytes), Err(Misrun::UnknownOperand), "{bytes:02x?}");
        }
        // movntss [rax],xmm0; movntps [rip+0],xmm0
        assert_eq!(kernel_misruns(&[0xf3, 0x0f, 0x2b, 0x00]), Ok(()));
        assert_eq!(kernel_misruns(&[0x0f, 0x2b, 0x05, 0, 0, 0, 0]), Ok(()));
        // mov eax,[rip+0]; cmp dword [rip+0],1; lock cmpxchg; movdqu; pshufb; vmovdqu; vaddpd zmm; nop [rip+0]
        let known: [&[u8]; 8] = [
            &[0x8b, 0x05, 0, 0, 0, 0],
            &[0x83, 0x3d, 0, 0, 0, 0, 1],
            &[0xf0, 0x0f, 0xb1, 0x0d, 0, 0, 0, 0],
            &[0xf3, 0x0f, 0x6f, 0x05, 0, 0, 0, 0],
            &[0x66, 0x0f, 0x38, 0x00, 0x05, 0, 0, 0, 0],
            &[0xc5, 0xfa, 0x6f, 0x05, 0, 0, 0, 0],
            &[0x62, 0xf1, 0xed, 0x48, 0x58, 0x05, 0, 0, 0, 0],
            &[0x0f, 0x1f, 0x05, 0, 0, 0, 0],
        ];
        for bytes in known {
            assert_eq!(kernel_misruns(bytes), Ok(()), "{bytes:02x?}");
        }
    }
}
