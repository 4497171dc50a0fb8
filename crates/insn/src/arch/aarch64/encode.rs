//! The A64 instructions that copies, gates and patches are made of.
//!
//! For:     relocation here, patches in `text`; one function an instruction, so that each encoding stands once.
//! State:   none.
//! Context: any; no allocation, no panic.
//! Keeps:   G1 an encoding that cannot hold its operand is `None`, never another instruction.
//! Checked: tests below (back through `decode`), tests/aarch64_differential (run).

use super::decode::Literal;

/// nop
pub const NOP: u32 = 0xd503_201f;
/// How far `b` and `bl` reach, in bytes, either way.
pub const BRANCH_REACH: u64 = 128 << 20;

/// `distance` in units of `1 << scale` bytes as a field of `len` bits.
fn field(distance: u64, len: u32, scale: u32) -> Option<u32> {
    let distance = distance as i64;
    let units = distance >> scale;
    let limit = 1i64 << (len - 1);
    let fits = units << scale == distance && (-limit..limit).contains(&units);
    fits.then_some(units as u32 & ((1 << len) - 1))
}

/// `b target`
pub fn b(from: u64, target: u64) -> Option<u32> {
    Some(0x1400_0000 | field(target.wrapping_sub(from), 26, 2)?)
}

/// `b.cond target`, or `bc.cond`
pub(super) fn b_cond(from: u64, cond: u8, is_consistent: bool, target: u64) -> Option<u32> {
    let cond = u32::from(is_consistent) << 4 | u32::from(cond);
    Some(0x5400_0000 | field(target.wrapping_sub(from), 19, 2)? << 5 | cond)
}

/// `cbz rt, target` or `cbnz`
pub(super) fn cb(from: u64, rt: u8, is_wide: bool, when_zero: bool, target: u64) -> Option<u32> {
    let field = field(target.wrapping_sub(from), 19, 2)?;
    let kind = u32::from(is_wide) << 31 | u32::from(!when_zero) << 24;
    Some(0x3400_0000 | kind | field << 5 | u32::from(rt))
}

/// `tbz rt, #bit, target` or `tbnz`
pub(super) fn tb(from: u64, rt: u8, bit: u8, when_set: bool, target: u64) -> Option<u32> {
    let field = field(target.wrapping_sub(from), 14, 2)?;
    let bit = u32::from(bit >> 5) << 31 | u32::from(bit & 31) << 19;
    Some(0x3600_0000 | bit | u32::from(when_set) << 24 | field << 5 | u32::from(rt))
}

/// `adr rd, target`
pub(super) fn adr(from: u64, rd: u8, target: u64) -> Option<u32> {
    let field = field(target.wrapping_sub(from), 21, 0)?;
    Some(0x1000_0000 | (field & 3) << 29 | field >> 2 << 5 | u32::from(rd))
}

/// `adrp rd, target`, of which the low twelve bits are left to an `add`
pub(super) fn adrp(from: u64, rd: u8, target: u64) -> Option<u32> {
    let field = field((target & !0xfff).wrapping_sub(from & !0xfff), 21, 12)?;
    Some(0x9000_0000 | (field & 3) << 29 | field >> 2 << 5 | u32::from(rd))
}

/// `add rd, rd, #low`, `low` below 4096
pub(super) fn add(rd: u8, low: u32) -> u32 {
    0x9100_0000 | (low & 0xfff) << 10 | u32::from(rd) << 5 | u32::from(rd)
}

/// `movz rd, #half, lsl #(16 * place)`
pub(super) fn movz(rd: u8, half: u16, place: u32) -> u32 {
    0xd280_0000 | place << 21 | u32::from(half) << 5 | u32::from(rd)
}

/// `movk rd, #half, lsl #(16 * place)`
pub(super) fn movk(rd: u8, half: u16, place: u32) -> u32 {
    0xf280_0000 | place << 21 | u32::from(half) << 5 | u32::from(rd)
}

/// The same literal load as `word`, from another place.
pub(super) fn load_literal(word: u32, from: u64, target: u64) -> Option<u32> {
    Some(word & !(0x7_ffff << 5) | field(target.wrapping_sub(from), 19, 2)? << 5)
}

/// The load of `literal` into `rt` from `[base]`. A prefetch is one too.
pub(super) fn load(literal: Literal, rt: u8, base: u8) -> u32 {
    let opcode = match literal {
        Literal::Word => 0xb940_0000,
        Literal::Double => 0xf940_0000,
        Literal::SignedWord => 0xb980_0000,
        Literal::Prefetch => 0xf980_0000,
        Literal::Vector { len_bytes: 4 } => 0xbd40_0000,
        Literal::Vector { len_bytes: 8 } => 0xfd40_0000,
        Literal::Vector { .. } => 0x3dc0_0000,
    };
    opcode | u32::from(base) << 5 | u32::from(rt)
}

/// `br rn`
pub(super) fn br(rn: u8) -> u32 {
    0xd61f_0000 | u32::from(rn) << 5
}

/// `stp x16, x17, [sp, #-32]!`: in Go the word below the stack pointer is the caller's frame pointer.
pub(super) const PUSH_SCRATCH: u32 = 0xa9be_47f0;
/// `ldp x16, x17, [sp], #32`
pub(super) const POP_SCRATCH: u32 = 0xa8c2_47f0;
/// The register that far code computes in, once saved.
pub(super) const SCRATCH: u8 = 16;

#[cfg(test)]
mod tests {
    use super::super::decode::{Relative, decode};
    use super::*;

    #[test]
    fn an_operand_that_does_not_fit_is_no_instruction() {
        assert!(b(0, BRANCH_REACH - 4).is_some() && b(0, BRANCH_REACH).is_none());
        assert!(b(BRANCH_REACH, 0).is_some() && b(BRANCH_REACH + 4, 0).is_none());
        assert!(b(0, 2).is_none());
        assert!(b_cond(0, 0, false, 0x10_0000).is_none() && tb(0, 0, 0, true, 0x8000).is_none());
        assert!(adr(0, 0, 0x10_0000).is_none() && adrp(0, 0, 1 << 32).is_none());
    }

    #[test]
    fn what_is_encoded_decodes_to_the_same_operands() {
        let from = 0x7000_0000_0000u64;
        for step in [-0x8000i64, -4, 0, 4, 0x7ffc] {
            let target = from.wrapping_add_signed(step);
            let at = |word: Option<u32>| decode(word.unwrap(), from).unwrap();
            assert_eq!(at(b(from, target)), Relative::Jump { target });
            let cond = Relative::JumpIf { cond: 5, is_consistent: true, target };
            assert_eq!(at(b_cond(from, 5, true, target)), cond);
            let zero = Relative::JumpZero { rt: 9, is_wide: true, when_zero: false, target };
            assert_eq!(at(cb(from, 9, true, false, target)), zero);
            let bit = Relative::JumpBit { rt: 9, bit: 45, when_set: true, target };
            assert_eq!(at(tb(from, 9, 45, true, target)), bit);
            assert_eq!(at(adr(from, 3, target + 1)), Relative::Adr { rd: 3, target: target + 1 });
            let page = target & !0xfff;
            assert_eq!(at(adrp(from, 3, target)), Relative::Adrp { rd: 3, target: page });
        }
    }
}
