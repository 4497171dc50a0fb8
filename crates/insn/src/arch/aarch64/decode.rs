//! The A64 instructions whose effect depends on where they stand, and those that choose where control goes.
//!
//! For:     relocation, emulation, the verdict; nothing else of the instruction set needs decoding.
//! State:   none.
//! Context: any; no allocation, no panic.
//! Keeps:   G1 an instruction that reads its own address, or branches, is decoded or refused by the verdict.
//!          G2 `target` is the address that the processor would compute, wrapping at 64 bits.
//! Checked: tests/aarch64_objdump.rs (all of libc and random words, both directions).
//! Source:  Arm ARM (DDI 0487), C4.1: the top-level encoding tables.

/// The register number that means zero, or no register.
pub const ZERO: u8 = 31;
/// The link register.
pub const LINK: u8 = 30;

/// What a literal load puts where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Literal {
    /// Four bytes into a general register, zero extended.
    Word,
    /// Eight bytes into a general register.
    Double,
    /// Four bytes into a general register, sign extended to eight.
    SignedWord,
    /// A prefetch: `rt` is the operation.
    Prefetch,
    /// Into a vector register: 4, 8 or 16 bytes.
    Vector {
        /// How many.
        len_bytes: u8,
    },
}

/// How a branch by register goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// br
    Jump,
    /// blr
    Call,
    /// ret
    Return,
}

/// What a branch by register authenticates first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// Nothing.
    None,
    /// The target, with zero as modifier.
    Zero,
    /// The target, with this register as modifier; 31 is the stack pointer.
    Modifier(u8),
}

/// One instruction that reads its own address or branches. Targets are absolute.
#[allow(
    missing_docs,
    reason = "rt, rd, rn are the fields of the architecture's manual; target speaks for itself"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relative {
    /// adr
    Adr { rd: u8, target: u64 },
    /// adrp; the target is the address of a page
    Adrp { rd: u8, target: u64 },
    /// ldr, ldrsw, prfm with a literal
    Load { rt: u8, literal: Literal, target: u64 },
    /// b
    Jump { target: u64 },
    /// bl
    Call { target: u64 },
    /// b.cond, and bc.cond where `is_consistent`; conditions 14 and 15 are both "always"
    JumpIf { cond: u8, is_consistent: bool, target: u64 },
    /// cbz, cbnz
    JumpZero { rt: u8, is_wide: bool, when_zero: bool, target: u64 },
    /// tbz, tbnz
    JumpBit { rt: u8, bit: u8, when_set: bool, target: u64 },
    /// br, blr, ret and their authenticating forms
    Register { by: By, rn: u8, auth: Auth },
}

impl Relative {
    /// The address that is encoded in the instruction.
    pub fn target(&self) -> Option<u64> {
        match *self {
            Relative::Adr { target, .. }
            | Relative::Adrp { target, .. }
            | Relative::Load { target, .. }
            | Relative::Jump { target }
            | Relative::Call { target }
            | Relative::JumpIf { target, .. }
            | Relative::JumpZero { target, .. }
            | Relative::JumpBit { target, .. } => Some(target),
            Relative::Register { .. } => None,
        }
    }

    /// The instruction behind it is never reached from it, unless by a return.
    pub fn ends(&self) -> bool {
        matches!(
            self,
            Relative::Jump { .. }
                | Relative::Call { .. }
                | Relative::Register { .. }
                | Relative::JumpIf { cond: 14 | 15, .. }
        )
    }
}

/// `len` bits of `word` from bit `low`.
pub(super) const fn bits(word: u32, low: u32, len: u32) -> u32 {
    (word >> low) & ((1 << len) - 1)
}

/// A signed field of `len` bits, in units of `1 << scale` bytes.
fn offset(field: u32, len: u32, scale: u32) -> u64 {
    let signed = (u64::from(field) << (64 - len)) as i64 >> (64 - len);
    (signed as u64) << scale
}

/// What `word` at `addr` is, or `None` when it does not depend on its address and does not branch.
///
/// Branches of extensions that are not known here (cb<cc>, retaasppc) give `None` too; the verdict refuses them.
pub fn decode(word: u32, addr: u64) -> Option<Relative> {
    let rt = bits(word, 0, 5) as u8;
    let near = |len, low| addr.wrapping_add(offset(bits(word, low, len), len, 2));
    Some(match word {
        _ if word & 0x1f00_0000 == 0x1000_0000 => address(word, addr),
        _ if word & 0x3b00_0000 == 0x1800_0000 => {
            Relative::Load { rt, literal: literal(word)?, target: near(19, 5) }
        }
        _ if word & 0xfc00_0000 == 0x1400_0000 => Relative::Jump { target: near(26, 0) },
        _ if word & 0xfc00_0000 == 0x9400_0000 => Relative::Call { target: near(26, 0) },
        _ if word & 0xff00_0000 == 0x5400_0000 => {
            let (cond, is_consistent) = (bits(word, 0, 4) as u8, bits(word, 4, 1) == 1);
            Relative::JumpIf { cond, is_consistent, target: near(19, 5) }
        }
        _ if word & 0x7e00_0000 == 0x3400_0000 => {
            let (is_wide, when_zero) = (bits(word, 31, 1) == 1, bits(word, 24, 1) == 0);
            Relative::JumpZero { rt, is_wide, when_zero, target: near(19, 5) }
        }
        _ if word & 0x7e00_0000 == 0x3600_0000 => {
            let bit = (bits(word, 31, 1) << 5 | bits(word, 19, 5)) as u8;
            Relative::JumpBit { rt, bit, when_set: bits(word, 24, 1) == 1, target: near(14, 5) }
        }
        _ => return by_register(word),
    })
}

fn address(word: u32, addr: u64) -> Relative {
    let rd = bits(word, 0, 5) as u8;
    let field = bits(word, 5, 19) << 2 | bits(word, 29, 2);
    match bits(word, 31, 1) {
        0 => Relative::Adr { rd, target: addr.wrapping_add(offset(field, 21, 0)) },
        _ => Relative::Adrp { rd, target: (addr & !0xfff).wrapping_add(offset(field, 21, 12)) },
    }
}

fn literal(word: u32) -> Option<Literal> {
    let (size, is_vector) = (bits(word, 30, 2), bits(word, 26, 1) == 1);
    Some(match (is_vector, size) {
        (false, 0) => Literal::Word,
        (false, 1) => Literal::Double,
        (false, 2) => Literal::SignedWord,
        (false, _) => Literal::Prefetch,
        (true, 3) => return None,
        (true, _) => Literal::Vector { len_bytes: 4 << size },
    })
}

fn by_register(word: u32) -> Option<Relative> {
    let by = match bits(word, 21, 2) {
        0 => By::Jump,
        1 => By::Call,
        2 => By::Return,
        _ => return None,
    };
    let (rn, rm) = (bits(word, 5, 5) as u8, bits(word, 0, 5) as u8);
    let auth = match (word >> 23, word & 0x001f_f800) {
        // 0xd6: one register; bit 10 is the key.
        (0x1ac, 0x001f_0000) if word & 0x41f == 0 => Auth::None,
        (0x1ac, 0x001f_0800) if by == By::Return && rn == ZERO && rm == ZERO => {
            return Some(Relative::Register { by, rn: LINK, auth: Auth::Modifier(31) });
        }
        (0x1ac, 0x001f_0800) if by != By::Return && rm == ZERO => Auth::Zero,
        // 0xd7: target and modifier.
        (0x1ae, 0x001f_0800) if by != By::Return => Auth::Modifier(rm),
        _ => return None,
    };
    Some(Relative::Register { by, rn, auth })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_of_the_manual_decode_to_their_targets() {
        let at = 0x40_0000;
        let cases = [
            (0x1000_0020, Relative::Adr { rd: 0, target: at + 4 }),
            (0xb000_0001, Relative::Adrp { rd: 1, target: at + 0x1000 }),
            (0xf0ff_ffe2, Relative::Adrp { rd: 2, target: at - 0x1000 }),
            (0x5800_0043, Relative::Load { rt: 3, literal: Literal::Double, target: at + 8 }),
            (
                0x9cff_ffe4,
                Relative::Load { rt: 4, literal: Literal::Vector { len_bytes: 16 }, target: at - 4 },
            ),
            (0x17ff_ffff, Relative::Jump { target: at - 4 }),
            (0x9400_0002, Relative::Call { target: at + 8 }),
            (0x5400_0041, Relative::JumpIf { cond: 1, is_consistent: false, target: at + 8 }),
            (0x5400_0051, Relative::JumpIf { cond: 1, is_consistent: true, target: at + 8 }),
            (0xb500_0045, Relative::JumpZero { rt: 5, is_wide: true, when_zero: false, target: at + 8 }),
            (0xb700_0046, Relative::JumpBit { rt: 6, bit: 32, when_set: true, target: at + 8 }),
            (0xd65f_03c0, Relative::Register { by: By::Return, rn: 30, auth: Auth::None }),
            (0xd65f_0bff, Relative::Register { by: By::Return, rn: 30, auth: Auth::Modifier(31) }),
            (0xd73f_0c62, Relative::Register { by: By::Call, rn: 3, auth: Auth::Modifier(2) }),
            (0xd61f_083f, Relative::Register { by: By::Jump, rn: 1, auth: Auth::Zero }),
        ];
        for (word, expected) in cases {
            assert_eq!(decode(word, at), Some(expected), "{word:#x}");
        }
    }

    #[test]
    fn what_stays_the_same_elsewhere_is_no_relative_instruction() {
        // nop, ret's neighbour eret, add, ldr [x0], an unallocated vector literal, svc
        for word in [0xd503_201f, 0xd69f_03e0, 0x9100_0400, 0xf940_0000, 0xdc00_0000, 0xd400_0001] {
            assert_eq!(decode(word, 0), None, "{word:#x}");
        }
    }
}
