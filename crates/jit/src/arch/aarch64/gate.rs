//! A function's A64 code, followed along all its ways.
//!
//! For:     the gate.
//! State:   what was seen of one function.
//! Context: control.
//! Keeps:   those of `crate::gate`; what is not in the tables here is refused. Code has no constants, and no word is part of another.
//! Checked: tests below break each; insn's tests of what a branch is.
//! Source:  Arm ARM (DDI 0487), C4.1: the top-level encoding tables.

use crate::gate::{Found, Ground, Unfit, Walked};
use insn::aarch64::{Auth, By, LINK, NOP, Relative, ZERO, decode};
use std::collections::BTreeMap;
use std::ops::Range;

/// The arena's address, in Cranelift's pinned register.
const ARENA: u8 = 21;
/// Nobody's but the platform's.
const PLATFORM: u8 = 18;
/// The frame's address; with the link register it is a pair on the stack.
const FRAME: u8 = 29;

const ENTER: u32 = 0xa9bf_7bfd; // stp x29, x30, [sp, #-16]!
const LEAVE: u32 = 0xa8c1_7bfd; // ldp x29, x30, [sp], #16
const SET_FRAME: u32 = 0x9100_03fd; // mov x29, sp
const PAIR: u32 = 16;

/// What an instruction does to registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It writes the register in bits 0 to 4, of which 31 is none.
    Result,
    /// The same, of which 31 is the stack pointer.
    ResultOrStack,
    /// It writes flags alone.
    Flags,
    /// It writes the register in bits 16 to 20: an exclusive store's answer, or what was compared.
    Answer,
    /// It loads or stores one register, and may move its base.
    One,
    /// It loads or stores two.
    Two,
    /// It loads one and moves nothing.
    Load,
}

/// Mask, value, kind: what programs are made of.
const GENERAL: &[(u32, u32, Kind)] = &[
    // With an immediate: add and sub, and with flags; and, orr, eor; ands; movn, movz and movk; bit fields; extr.
    (0x3f80_0000, 0x1100_0000, Kind::ResultOrStack),
    (0x3f80_0000, 0x3100_0000, Kind::Result),
    (0x7f80_0000, 0x1200_0000, Kind::ResultOrStack),
    (0x7f80_0000, 0x3200_0000, Kind::ResultOrStack),
    (0x7f80_0000, 0x5200_0000, Kind::ResultOrStack),
    (0x7f80_0000, 0x7200_0000, Kind::Result),
    (0x7f80_0000, 0x1280_0000, Kind::Result),
    (0x7f80_0000, 0x5280_0000, Kind::Result),
    (0x7f80_0000, 0x7280_0000, Kind::Result),
    (0xffc0_0000, 0x1300_0000, Kind::Result),
    (0xffc0_0000, 0x9340_0000, Kind::Result),
    (0xffc0_0000, 0x3300_0000, Kind::Result),
    (0xffc0_0000, 0xb340_0000, Kind::Result),
    (0xffc0_0000, 0x5300_0000, Kind::Result),
    (0xffc0_0000, 0xd340_0000, Kind::Result),
    (0xffe0_8000, 0x1380_0000, Kind::Result),
    (0xffe0_0000, 0x93c0_0000, Kind::Result),
    // Of registers: logic; add and sub, shifted and extended; with carry; conditional compare and select.
    (0x1f00_0000, 0x0a00_0000, Kind::Result),
    (0x1f20_0000, 0x0b00_0000, Kind::Result),
    (0x3fe0_0000, 0x0b20_0000, Kind::ResultOrStack),
    (0x3fe0_0000, 0x2b20_0000, Kind::Result),
    (0x1fe0_fc00, 0x1a00_0000, Kind::Result),
    (0x3fe0_0410, 0x3a40_0000, Kind::Flags),
    (0x3fe0_0800, 0x1a80_0000, Kind::Result),
    // Divisions, shifts; rbit, rev16, rev32, rev; clz and cls; multiplications.
    (0x7fe0_f800, 0x1ac0_0800, Kind::Result),
    (0x7fe0_f000, 0x1ac0_2000, Kind::Result),
    (0x7fff_f000, 0x5ac0_0000, Kind::Result),
    (0x7fff_f800, 0x5ac0_1000, Kind::Result),
    (0x7fe0_0000, 0x1b00_0000, Kind::Result),
    (0xff60_0000, 0x9b20_0000, Kind::Result),
    (0xff60_0000, 0x9b40_0000, Kind::Result),
    // Loads and stores: an offset, a small one, one that is added to the base before or behind, a register; of two.
    (0x3f00_0000, 0x3900_0000, Kind::One),
    (0x3f20_0c00, 0x3800_0000, Kind::One),
    (0x3f20_0400, 0x3800_0400, Kind::One),
    (0x3f20_4c00, 0x3820_4800, Kind::One),
    (0x7f80_0000, 0x2880_0000, Kind::Two),
    (0x7f00_0000, 0x2900_0000, Kind::Two),
    // ldar.
    (0x3fff_fc00, 0x08df_fc00, Kind::Load),
    // ldaxr, stlxr; atomic additions, clears, exclusive ors, sets; swp; cas.
    (0x3fff_fc00, 0x085f_fc00, Kind::Load),
    (0x3fe0_fc00, 0x0800_fc00, Kind::Answer),
    (0x3f20_cc00, 0x3820_0000, Kind::Load),
    (0x3f20_fc00, 0x3820_8000, Kind::Load),
    (0x3fa0_7c00, 0x08a0_7c00, Kind::Answer),
];

/// Registers of an instruction that a C function may change and that are named in `Passed::clobbers`.
const CALLER_SAVED: u32 = 0xffff;

const fn field(word: u32, low: u32) -> u8 {
    (word >> low & 31) as u8
}

/// Follows the function in this range.
///
/// # Errors
/// The first instruction that is not let through.
pub(crate) fn walk(ground: &Ground<'_>, range: Range<usize>) -> Result<Walked, Unfit> {
    let mut walk = Walk { ground, range, seen: BTreeMap::new(), walked: Walked::default(), written: 0 };
    walk.run()?;
    let Walk { seen, walked, written, .. } = walk;
    Ok(Walked { clobbers: (written & CALLER_SAVED) as u16, instructions: seen.len() as u32, ..walked })
}

/// What is on the stack, and whether the pair of frame and link register is saved there, its lowest part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Depth {
    bytes: u32,
    is_framed: bool,
}

struct Walk<'a> {
    ground: &'a Ground<'a>,
    range: Range<usize>,
    /// Instructions, and the stack before each.
    seen: BTreeMap<usize, Depth>,
    walked: Walked,
    written: u32,
}

impl Walk<'_> {
    fn run(&mut self) -> Result<(), Unfit> {
        let mut open = vec![(self.range.start, Depth::default())];
        while let Some((at, depth)) = open.pop() {
            let fail = |found| Unfit { at, found };
            if let Some(known) = self.seen.get(&at) {
                // G4
                if *known != depth {
                    return Err(fail(Found::Stack));
                }
                continue;
            }
            let word = self.word(at).ok_or(fail(Found::NoInstruction))?;
            self.seen.insert(at, depth);
            let (after, ways) = match decode(word, at as u64) {
                Some(way) => (depth, self.ways(&way, at, depth).map_err(fail)?),
                None => {
                    let after = self.general(word, depth).map_err(fail)?;
                    (after, [Some(self.inside(at + 4, Found::NoEnd).map_err(fail)?), None])
                }
            };
            self.walked.deepest = self.walked.deepest.max(after.bytes);
            open.extend(ways.into_iter().flatten().map(|to| (to, after)));
        }
        Ok(())
    }

    fn word(&self, at: usize) -> Option<u32> {
        let bytes = self.ground.bytes.get(at..at + 4)?;
        let is_inside = self.range.contains(&at) && at + 4 <= self.range.end && at.is_multiple_of(4);
        is_inside.then(|| bytes.first_chunk().map(|word| u32::from_le_bytes(*word)))?
    }

    fn inside(&self, to: usize, found: Found) -> Result<usize, Found> {
        self.range.contains(&to).then_some(to).ok_or(found)
    }

    /// G2: where control goes from a branch.
    fn ways(&mut self, way: &Relative, at: usize, depth: Depth) -> Result<[Option<usize>; 2], Found> {
        let next = self.inside(at + 4, Found::NoEnd);
        let to = |target: u64| self.inside(usize::try_from(target).unwrap_or(usize::MAX), Found::Way);
        match *way {
            Relative::Jump { target } => Ok([Some(to(target)?), None]),
            Relative::JumpIf { is_consistent: false, target, .. }
            | Relative::JumpZero { target, .. }
            | Relative::JumpBit { target, .. } => Ok([Some(next?), Some(to(target)?)]),
            Relative::Call { target } => {
                // G4: it writes the link register.
                depth.is_framed.then_some(()).ok_or(Found::Stack)?;
                if !self.ground.listed.contains(&at) {
                    let to = usize::try_from(target).unwrap_or(usize::MAX);
                    self.ground.starts.contains(&to).then_some(()).ok_or(Found::Way)?;
                    let known = self.walked.calls.entry(to).or_default();
                    *known = depth.bytes.max(*known);
                }
                Ok([Some(next?), None])
            }
            Relative::Register { by: By::Return, rn: LINK, auth: Auth::None } => {
                (depth == Depth::default()).then_some([None, None]).ok_or(Found::Stack)
            }
            Relative::Adr { .. } | Relative::Adrp { .. } | Relative::Load { .. } => Err(Found::Constant),
            _ => Err(Found::Way),
        }
    }

    /// G1, G4, G5: the stack after an instruction that is no branch.
    fn general(&mut self, word: u32, depth: Depth) -> Result<Depth, Found> {
        match (word, depth) {
            (NOP, _) => return Ok(depth),
            (ENTER, Depth { bytes: 0, is_framed: false }) => {
                return Ok(Depth { bytes: PAIR, is_framed: true });
            }
            (LEAVE, Depth { bytes: PAIR, is_framed: true }) => return Ok(Depth::default()),
            (SET_FRAME, Depth { is_framed: true, .. }) => return Ok(depth),
            _ => {}
        }
        let known = GENERAL.iter().find(|(mask, value, _)| word & mask == *value);
        let kind = known.map(|(.., kind)| *kind).filter(|_| is_one(word)).ok_or(Found::NotGeneral)?;
        let (first, base, second, answer) =
            (field(word, 0), field(word, 5), field(word, 10), field(word, 16));
        let is_load = word >> 22 & 3 != 0;
        match kind {
            Kind::Flags => {}
            Kind::ResultOrStack if first == ZERO => return stack_after(word, depth),
            Kind::Result | Kind::ResultOrStack | Kind::Load => self.writes(first)?,
            Kind::Answer => self.writes(answer)?,
            Kind::One => {
                if is_load {
                    self.writes(first)?;
                }
                // Not an offset of 12 bits, and one that is added to the base.
                if word & 0x0100_0000 == 0 && word & 0x20_0400 == 0x400 {
                    let by = (word << 11).cast_signed() >> 23;
                    return self.moves(base, by, is_load, word & 0x800 != 0, depth);
                }
            }
            Kind::Two => {
                if word & 1 << 22 != 0 {
                    self.writes(first)?;
                    self.writes(second)?;
                }
                if word & 1 << 23 != 0 {
                    let scale = if word >> 31 == 1 { 8 } else { 4 };
                    let by = ((word << 10).cast_signed() >> 25) * scale;
                    return self.moves(base, by, word & 1 << 22 != 0, word & 1 << 24 != 0, depth);
                }
            }
        }
        Ok(depth)
    }

    /// A register is written.
    fn writes(&mut self, register: u8) -> Result<(), Found> {
        match register {
            ARENA | PLATFORM => Err(Found::Arena),
            FRAME | LINK => Err(Found::Stack),
            ZERO => Ok(()),
            _ => {
                self.written |= 1 << register;
                Ok(())
            }
        }
    }

    /// An access moves its base, which is `ZERO` for the stack pointer: down before a store, up behind a load.
    fn moves(
        &mut self,
        base: u8,
        by: i32,
        is_load: bool,
        is_before: bool,
        depth: Depth,
    ) -> Result<Depth, Found> {
        if base != ZERO {
            self.writes(base)?;
            return Ok(depth);
        }
        let is_push = !is_load && is_before && by < 0;
        let is_pop = is_load && !is_before && by > 0;
        match (is_push, is_pop) {
            (true, _) => deeper(depth, by.unsigned_abs()),
            (_, true) => shallower(depth, by.unsigned_abs()),
            _ => Err(Found::Stack),
        }
    }
}

fn deeper(depth: Depth, by: u32) -> Result<Depth, Found> {
    let bytes = depth.bytes.checked_add(by).filter(|bytes| bytes.is_multiple_of(16));
    Ok(Depth { bytes: bytes.ok_or(Found::Stack)?, ..depth })
}

fn shallower(depth: Depth, by: u32) -> Result<Depth, Found> {
    let least = if depth.is_framed { PAIR } else { 0 };
    let bytes = depth.bytes.checked_sub(by).filter(|bytes| *bytes >= least && bytes.is_multiple_of(16));
    Ok(Depth { bytes: bytes.ok_or(Found::Stack)?, ..depth })
}

/// After an instruction whose result is the stack pointer: it plus or minus a constant, of 64 bits.
fn stack_after(word: u32, depth: Depth) -> Result<Depth, Found> {
    let by = (word >> 10 & 0xfff) << if word & 1 << 22 != 0 { 12 } else { 0 };
    match word & 0xff80_03e0 {
        0xd100_03e0 => deeper(depth, by),
        0x9100_03e0 => shallower(depth, by),
        _ => Err(Found::Stack),
    }
}

/// Whether a word of the tables is an instruction: of some forms not all fields may be as they like.
fn is_one(word: u32) -> bool {
    let (is_wide, size) = (word >> 31 == 1, word >> 30);
    match word >> 23 & 0x3f {
        // Logic with an immediate: no pattern of 64 bits in a word; not all ones, which is none.
        0x24 => (is_wide || word & 1 << 22 == 0) && word & 0x0040_fc00 != 0x0000_fc00,
        // A wide move: only to the lower halves of a word.
        0x25 => is_wide || word & 1 << 22 == 0,
        _ if word & 0x3b00_0000 == 0x3900_0000 || word & 0x3b20_0000 == 0x3800_0000 => {
            // A prefetch is none of ours; a word is extended to eight bytes alone.
            matches!((size, word >> 22 & 3), (_, 0 | 1) | (0..=2, 2) | (0 | 1, 3))
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::pass;
    use crate::{Passed, Relocation};

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn of(words: &[u32]) -> Result<Passed, Found> {
        let code = bytes(words);
        pass(&code, std::slice::from_ref(&(0..code.len())), &[]).map_err(|unfit| unfit.found)
    }

    const RET: u32 = 0xd65f_03c0;

    #[test]
    fn plain_code_passes_and_says_what_it_writes() {
        // enter; mov x29, sp; sub sp, sp, #32; stp x19, x20, [sp]; mov x9, #7; ldp x19, x20, [sp]; add sp, sp, #32; leave; ret
        let code =
            [ENTER, SET_FRAME, 0xd100_83ff, 0xa900_53f3, 0xd280_00e9, 0xa940_53f3, 0x9100_83ff, LEAVE, RET];
        let passed = of(&code).unwrap();
        assert_eq!((passed.stack, passed.instructions), (48, 9));
        assert_eq!(passed.clobbers.iter().collect::<Vec<_>>(), [9]);
        // str x19, [sp, #-16]!; ldr x19, [sp], #16: a leaf
        assert_eq!(of(&[0xf81f_0ff3, 0xf841_07f3, RET]).map(|passed| passed.stack), Ok(16));
        assert_eq!(of(&[RET]).map(|passed| passed.stack), Ok(0));
    }

    /// Each row of the table by an instruction that an assembler made.
    #[test]
    fn what_programs_are_made_of_passes() {
        let words = [
            0x9100_0421,
            0xf100_043f,
            0x1200_1c20,
            0xb240_03e0,
            0xd240_0020,
            0xf240_003f,
            0x9280_0000,
            0xd280_0020,
            0xf2a0_0020,
            0x1300_1c20,
            0x9340_1c20,
            0x3300_1c20,
            0xb340_1c20,
            0x5300_1c20,
            0xd340_fc20,
            0x1382_0c20,
            0x93c2_0c20,
            0x8a02_0020,
            0xaa22_0020,
            0xca02_0020,
            0x8b02_0020,
            0xcb02_0c20,
            0x8b22_4020,
            0xeb22_603f,
            0x9a02_0020,
            0xfa42_0024,
            0x9a82_0020,
            0x9a9f_07e0,
            0x9ac2_0820,
            0x1ac2_0c20,
            0x9ac2_2020,
            0x9ac2_2820,
            0xdac0_0020,
            0x5ac0_0420,
            0xdac0_0c20,
            0xdac0_1020,
            0x9b02_0c20,
            0x9b02_8c20,
            0x9bc2_7c20,
            0x9b42_7c20,
            0x9b22_0c20,
            0xf940_0020,
            0x3900_0020,
            0x79c0_0020,
            0xb980_0020,
            0xf85f_8020,
            0xb800_1020,
            0xf862_6820,
            0xb822_7820,
            0xa940_0820,
            0x2901_0820,
            0xc85f_fc20,
            0x8803_fc20,
            0xf8e2_0020,
            0xb8e2_1020,
            0xf8e2_2020,
            0xf8e2_3020,
            0xf8e2_8020,
            0xc8e2_fc20,
            NOP,
        ];
        for word in words {
            assert_eq!(of(&[word, RET]).map(|passed| passed.instructions), Ok(2), "{word:#x}");
        }
    }

    #[test]
    fn what_a_program_does_not_need_is_refused() {
        let cases: [(&[u32], Found); 36] = [
            (&[0xd400_0001, RET], Found::NotGeneral),         // svc
            (&[0xd420_0000, RET], Found::NotGeneral),         // brk
            (&[0xd440_0000, RET], Found::NotGeneral),         // hlt
            (&[0x0000_0000, RET], Found::NotGeneral),         // udf
            (&[0xd53b_d040, RET], Found::NotGeneral),         // mrs x0, tpidr_el0
            (&[0xd51b_4200, RET], Found::NotGeneral),         // msr nzcv, x0
            (&[0xd50b_7520, RET], Found::NotGeneral),         // ic ivau
            (&[0xd503_3fdf, RET], Found::NotGeneral),         // isb
            (&[0xd503_203f, RET], Found::NotGeneral),         // yield
            (&[0x4ea1_1c20, RET], Found::NotGeneral),         // mov v0, v1
            (&[0x9e67_0000, RET], Found::NotGeneral),         // fmov d0, x0
            (&[0x3dc0_0000, RET], Found::NotGeneral),         // ldr q0, [x0]
            (&[0xfd40_0000, RET], Found::NotGeneral),         // ldr d0, [x0]
            (&[0x6d40_0400, RET], Found::NotGeneral),         // ldp d0, d1, [x0]
            (&[0xf980_0000, RET], Found::NotGeneral),         // prfm
            (&[0x9ac2_4c20, RET], Found::NotGeneral),         // crc32x
            (&[0x1240_0020, RET], Found::NotGeneral),         // a logical immediate that is none
            (&[0xd61f_0000], Found::Way),                     // br x0
            (&[ENTER, 0xd63f_0000, LEAVE, RET], Found::Way),  // blr x0
            (&[0xd65f_0000], Found::Way),                     // ret x0
            (&[0xd65f_0bff], Found::Way),                     // retaa
            (&[ENTER, 0x9400_0002, LEAVE, RET], Found::Way),  // a call of no function
            (&[0x1400_0002, RET], Found::Way),                // b outside
            (&[0x5800_0040, RET, 0, 0], Found::Constant),     // ldr x0, #8
            (&[0x1000_0000, RET], Found::Constant),           // adr
            (&[NOP], Found::NoEnd),                           // nothing behind it
            (&[0x9400_0000, RET], Found::Stack),              // bl, with the link register not saved
            (&[ENTER, RET], Found::Stack),                    // saved, and not taken back
            (&[0xf81f_0ff3, RET], Found::Stack),              // a push without a pop
            (&[0x9100_001f, RET], Found::Stack),              // mov sp, x0
            (&[0xb400_0041, 0xf81f_0ff3, RET], Found::Stack), // two ways, two depths
            (&[0xf841_07f3, RET], Found::Stack),              // a pop of what is the caller's
            (&[0xd280_001e, RET], Found::Stack),              // mov x30, #0
            (&[0xf940_001e, RET], Found::Stack),              // ldr x30, [x0]
            (&[0xd280_0015, RET], Found::Arena),              // mov x21, #0
            (&[0xa940_0812, RET], Found::Arena),              // ldp x18, x2, [x0]
        ];
        for (code, found) in cases {
            assert_eq!(of(code).err(), Some(found), "{code:x?}");
        }
    }

    #[test]
    fn a_listed_call_may_lead_anywhere_and_functions_add_up() {
        let code = bytes(&[ENTER, 0x9400_0000, LEAVE, RET]);
        let calls = [Relocation { at: 4, helper: 1 }];
        assert_eq!(pass(&code, std::slice::from_ref(&(0..16)), &calls).map(|p| p.stack), Ok(16));
        // A call of the second, which takes 32 bytes.
        let code = bytes(&[ENTER, 0x9400_0003, LEAVE, RET, 0xd100_83ff, 0x9100_83ff, RET]);
        assert_eq!(pass(&code, &[0..16, 16..28], &[]).map(|p| p.stack), Ok(48));
    }
}
