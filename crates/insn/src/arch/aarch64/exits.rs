//! Where a function of A64 code is left.
//!
//! For:     `Exits`, by the same rules as for x86-64.
//! State:   one look at a function.
//! Context: control.
//! Keeps:   G1 every `ret`, and every branch that leaves the function for good, is an exit; a function of which that cannot be
//!             said is refused.
//! Checked: tests below; the machine's test (docs/aarch64.md): calls that are timed all return.
//!
//! Whether a branch to elsewhere is a tail call or leads to a part that the compiler put elsewhere is told by the frame: at a
//! tail call the stack pointer is the entry's. A branch by register is a switch while a frame stands, or if its target was just
//! added up; a tail call if its target was read or passed; and else unknown.

use super::decode::{By, Relative, decode};
use super::place::word_at;
use crate::code::Code;
use crate::exits::NoExits;
use crate::flow::Flow;
use std::collections::BTreeSet;
use std::ops::Range;

const WORD: u64 = 4;
/// The most instructions outside a function's own range that are followed.
const FRAGMENT_MAX: usize = 4096;
/// How far before a branch by register the instruction is looked for that has made its target.
const BEFORE: u64 = 12;

/// An instruction by which a function is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    pub addr: u64,
    /// A branch to another function, and no return.
    pub is_jump: bool,
}

/// How far below the entry's the stack pointer and the frame pointer are, where that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Depth {
    sp: Option<u64>,
    fp: Option<u64>,
}

/// What a branch by register is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Switch,
    TailCall,
    Unknown,
}

/// The exits of `function`, ascending; as [`crate::Exits::of`].
pub(crate) fn exits(
    flow: &Flow,
    codes: &[Code<'_>],
    function: &Range<u64>,
    is_part: &dyn Fn(u64) -> bool,
) -> Result<Vec<Exit>, NoExits> {
    let literals = literals(codes, function);
    let mut search = Search {
        flow,
        codes,
        function,
        is_part,
        literals,
        seen: BTreeSet::new(),
        outside: 0,
        open: Vec::new(),
        exits: Vec::new(),
    };
    search.open.push((function.start, Depth { sp: Some(0), fp: None }));
    let mut own = (function.start..function.end).step_by(WORD as usize);
    let mut at_switch = Depth::default();
    loop {
        while let Some((at, depth)) = search.open.pop() {
            if let Some(depth) = search.follow(at, depth)? {
                at_switch = depth;
            }
        }
        // Where only a switch leads, the frame is the switch's.
        match own.find(|at| !search.seen.contains(at) && !search.literals.contains(at)) {
            Some(at) => search.open.push((at, at_switch)),
            None => break,
        }
    }
    let mut exits = search.exits;
    exits.sort_by_key(|exit| exit.addr);
    if exits.is_empty() { Err(NoExits::NeverReturns) } else { Ok(exits) }
}

/// The words that the function loads as literals.
fn literals(codes: &[Code<'_>], function: &Range<u64>) -> BTreeSet<u64> {
    let loads = words(codes, function).filter_map(|(at, word)| match decode(word, at)? {
        Relative::Load { target, .. } => Some(target),
        _ => None,
    });
    loads.flat_map(|target| (target..target + 16).step_by(WORD as usize)).collect()
}

fn words<'a>(codes: &'a [Code<'_>], range: &Range<u64>) -> impl Iterator<Item = (u64, u32)> + 'a {
    let all = (range.start..range.end).step_by(WORD as usize);
    all.filter_map(move |at| Some((at, word_of(codes, at)?)))
}

fn word_of(codes: &[Code<'_>], at: u64) -> Option<u32> {
    word_at(Code::holding(codes, at)?, at)
}

struct Search<'a> {
    flow: &'a Flow,
    codes: &'a [Code<'a>],
    function: &'a Range<u64>,
    is_part: &'a dyn Fn(u64) -> bool,
    literals: BTreeSet<u64>,
    /// Instructions that were read.
    seen: BTreeSet<u64>,
    /// So many of them outside the function's own range.
    outside: usize,
    /// Where to read on.
    open: Vec<(u64, Depth)>,
    exits: Vec<Exit>,
}

impl Search<'_> {
    /// Reads on as long as one instruction leads to the next. The depth at a switch that it ends with.
    fn follow(&mut self, mut at: u64, mut depth: Depth) -> Result<Option<Depth>, NoExits> {
        while self.seen.insert(at) {
            self.outside += usize::from(!self.function.contains(&at));
            if self.outside > FRAGMENT_MAX {
                return Err(NoExits::TooLarge);
            }
            let word = word_of(self.codes, at).ok_or(NoExits::Undecodable { at })?;
            let is_trap = word >> 16 == 0 || word & 0xffe0_001f == 0xd420_0000; // udf, brk
            if is_trap {
                return Ok(None);
            }
            let leaves = |is_jump| Exit { addr: at, is_jump };
            match decode(word, at) {
                Some(Relative::Register { by: By::Return, .. }) => {
                    self.exits.push(leaves(false));
                    return Ok(None);
                }
                Some(Relative::Register { by: By::Jump, rn, .. }) => match self.way(at, rn, depth) {
                    Way::Switch => return Ok(Some(depth)),
                    Way::TailCall => {
                        self.exits.push(leaves(true));
                        return Ok(None);
                    }
                    Way::Unknown => return Err(NoExits::ComputedJump { at }),
                },
                Some(Relative::Jump { target } | Relative::JumpIf { cond: 14 | 15, target, .. }) => {
                    match self.leads_away(target, depth) {
                        true => self.exits.push(leaves(true)),
                        false => self.open.push((target, depth)),
                    }
                    return Ok(None);
                }
                Some(
                    Relative::JumpIf { target, .. }
                    | Relative::JumpZero { target, .. }
                    | Relative::JumpBit { target, .. },
                ) => match self.leads_away(target, depth) {
                    true => return Err(NoExits::ConditionalTailJump { at }),
                    false => self.open.push((target, depth)),
                },
                _ => {}
            }
            depth = behind(word, depth);
            at += WORD;
            // A call that does not return may be the last instruction.
            let is_over = at == self.function.end
                || !self.function.contains(&at) && self.flow.start_before(at) == Some(at);
            if is_over {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Whether a branch there leaves the function for good.
    fn leads_away(&self, to: u64, depth: Depth) -> bool {
        if self.function.contains(&to) {
            return to == self.function.start && !(self.is_part)(to);
        }
        let is_start = self.flow.start_before(to) == Some(to) || word_of(self.codes, to).is_none();
        !(self.is_part)(to) && (is_start || depth.sp == Some(0)) && depth.sp.is_none_or(|sp| sp == 0)
    }

    /// What a branch by this register is.
    fn way(&self, at: u64, register: u8, depth: Depth) -> Way {
        if depth.sp.is_some_and(|sp| sp != 0) {
            return Way::Switch;
        }
        for before in (1..=BEFORE).map(|n| at.wrapping_sub(WORD * n)) {
            if before < self.function.start && self.function.contains(&at) {
                break;
            }
            let Some(word) = word_of(self.codes, before) else { break };
            if (word & 31) as u8 != register && !is_pair_of(word, register) {
                continue;
            }
            return match word {
                // add of registers, shifted or extended
                _ if word & 0xff00_0000 == 0x8b00_0000 => Way::Switch,
                // ldr x, from an address with a constant; ldp; mov
                _ if word & 0xffc0_0000 == 0xf940_0000 || word & 0xffe0_0400 == 0xf840_0400 => Way::TailCall,
                _ if word & 0xffe0_0c00 == 0xf840_0000 || is_pair_of(word, register) => Way::TailCall,
                _ if word & 0xffe0_ffe0 == 0xaa00_03e0 => Way::TailCall,
                // What stores it, compares it or branches by it has made nothing.
                _ if makes_nothing(word) => continue,
                _ => Way::Unknown,
            };
        }
        // Passed to the function, or made far before.
        if depth.sp == Some(0) && register < 18 { Way::TailCall } else { Way::Unknown }
    }
}

/// ldp of two of 64 bits, one of which is this.
fn is_pair_of(word: u32, register: u8) -> bool {
    let is_load = word & 0xfe40_0000 == 0xa840_0000;
    is_load && [(word & 31) as u8, (word >> 10 & 31) as u8].contains(&register)
}

/// Stores, branches and comparisons: their lowest five bits name no result.
fn makes_nothing(word: u32) -> bool {
    let is_store = word & 0x3b40_0000 == 0x3800_0000 || word & 0x3ac0_0000 == 0x3800_0000;
    let is_store_pair = word & 0x3a40_0000 == 0x2800_0000;
    let is_branch = word & 0x1c00_0000 == 0x1400_0000;
    is_store || is_store_pair || is_branch
}

/// The depths behind an instruction.
fn behind(word: u32, mut depth: Depth) -> Depth {
    let (rd, rn) = (word & 31, word >> 5 & 31);
    let immediate = u64::from(word >> 10 & 0xfff) << if word & 1 << 22 != 0 { 12 } else { 0 };
    let is_add = word & 0xff80_0000 == 0x9100_0000;
    let is_sub = word & 0xff80_0000 == 0xd100_0000;
    // Pairs and single registers with the base written back; 7 bits in units of the size, and 9 bits.
    let is_pair = word & 0x3a80_0000 == 0x2880_0000;
    let is_single = word & 0x3b20_0400 == 0x3800_0400;
    let is_written_back = (is_pair || is_single) && rn == 31;
    match word {
        _ if (is_add || is_sub) && rd == 31 => {
            let from = if rn == 31 {
                depth.sp
            } else if rn == 29 {
                depth.fp
            } else {
                None
            };
            let signed = if is_add { immediate.wrapping_neg() } else { immediate };
            depth.sp = from.map(|from| from.wrapping_add(signed));
        }
        _ if is_add && rd == 29 && rn == 31 => depth.fp = depth.sp.map(|sp| sp.wrapping_sub(immediate)),
        _ if is_written_back => {
            let scale = if word & 1 << 26 != 0 { 2 + (word >> 30) } else { 2 + (word >> 31) };
            let by = match is_pair {
                true => (i64::from(((word >> 15 << 25).cast_signed()) >> 25)) << scale,
                false => i64::from(((word >> 12 << 23).cast_signed()) >> 23),
            };
            depth.sp = depth.sp.map(|sp| sp.wrapping_sub(by.cast_unsigned()));
        }
        // Any other result in the stack pointer: sub sp, sp, x; and sp, x, #...
        _ if rd == 31 && (word & 0xffe0_0000 == 0xcb20_0000 || word & 0xff80_0000 == 0x9200_0000) => {
            depth.sp = None
        }
        _ => {}
    }
    depth
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x1000;
    const RET: u32 = 0xd65f_03c0;
    const NOP: u32 = 0xd503_201f;
    /// stp x29, x30, [sp, #-32]!
    const PUSH: u32 = 0xa9be_7bfd;
    /// ldp x29, x30, [sp], #32
    const POP: u32 = 0xa8c2_7bfd;

    /// The exits of a function of these words; others begin behind it, and at 0x2000.
    fn of(words: &[u32]) -> Result<Vec<(u64, bool)>, NoExits> {
        let end = BASE + 4 * words.len() as u64;
        let mut all = words.to_vec();
        all.resize(0x2000, NOP);
        all[0x400] = RET;
        let bytes: Vec<u8> = all.iter().flat_map(|word| word.to_le_bytes()).collect();
        let flow = Flow::of_a64(&[BASE, end, 0x2000], false);
        let codes = [Code { base: BASE, bytes: &bytes }];
        let found = exits(&flow, &codes, &(BASE..end), &|_| false)?;
        Ok(found.into_iter().map(|exit| (exit.addr - BASE, exit.is_jump)).collect())
    }

    /// b from the word of this number to an address
    fn b(number: u64, to: u64) -> u32 {
        0x1400_0000 | ((to.wrapping_sub(BASE + 4 * number) >> 2) as u32 & 0x3ff_ffff)
    }

    #[test]
    fn returns_and_tail_calls_are_exits_and_loops_are_none() {
        // cbz x0, +12; ret; nop; retaa
        assert_eq!(of(&[0xb400_0060, RET, NOP, 0xd65f_0bff]), Ok(vec![(4, false), (12, false)]));
        assert_eq!(of(&[NOP, b(1, 0x2000)]), Ok(vec![(4, true)]));
        assert_eq!(of(&[PUSH, POP, b(2, 0x2000)]), Ok(vec![(8, true)]));
        assert_eq!(of(&[NOP, NOP, 0xb5ff_ffe0, RET]), Ok(vec![(12, false)]));
        assert_eq!(of(&[NOP, b(1, BASE)]), Ok(vec![(4, true)]), "a tail call of itself");
        assert_eq!(of(&[NOP, b(1, BASE + 4)]), Err(NoExits::NeverReturns));
    }

    #[test]
    fn with_a_frame_a_branch_leads_to_a_part_elsewhere() {
        let elsewhere = of(&[PUSH, 0xb400_0060, POP, RET, b(4, 0x2000)]);
        assert_eq!(elsewhere, Ok(vec![(12, false), (0x1000, false)]));
        // b.eq to another function
        assert!(matches!(of(&[0x5400_8000, RET]), Err(NoExits::ConditionalTailJump { at: BASE })));
    }

    #[test]
    fn a_branch_by_register_is_a_switch_or_a_tail_call_or_unknown() {
        let br = |rn: u32| 0xd61f_0000 | rn << 5;
        // adr x1, .; add x1, x1, w0, sxth #2; br x1; then its cases
        assert_eq!(of(&[0x1000_0001, 0x8b20_a821, br(1), RET, NOP, RET]), Ok(vec![(12, false), (20, false)]));
        // ldr x1, [x0, #8]; br x1; mov x16, x2; br x16
        assert_eq!(of(&[0xf940_0401, br(1)]), Ok(vec![(4, true)]));
        assert_eq!(of(&[0xaa02_03f0, br(16)]), Ok(vec![(4, true)]));
        assert_eq!(of(&[br(3)]), Ok(vec![(0, true)]), "what was passed");
        // ldr x1, [x1, x0, lsl #3]; br x1: a table of functions, or of places
        assert!(matches!(of(&[0xf860_7821, br(1)]), Err(NoExits::ComputedJump { .. })));
        // With a frame it can only be a switch: its case has the epilogue.
        assert_eq!(of(&[PUSH, 0xf860_7821, br(1), POP, RET]), Ok(vec![(16, false)]));
    }

    #[test]
    fn the_frame_is_followed_through_all_that_moves_the_stack_pointer() {
        let depth = Depth { sp: Some(0), fp: None };
        // sub sp, sp, #0x1, lsl #12; sub sp, sp, #0x20; stp d8, d9, [sp, #-16]!; str x19, [sp, #-16]!
        let words = [0xd140_07ff, 0xd100_83ff, 0x6dbf_27e8, 0xf81f_0ff3];
        let down = words.iter().fold(depth, |depth, word| behind(*word, depth));
        assert_eq!(down.sp, Some(0x1000 + 0x20 + 16 + 16));
        // mov x29, sp; ldr x19, [sp], #16; then mov sp, x29 and back: ldr x19, [sp], #16; ldp d8, d9, [sp], #16
        let words = [0x9100_03fd, 0xf841_07f3, 0x9100_03bf, 0xf841_07f3, 0x6cc1_27e8];
        let up = words.iter().fold(down, |depth, word| behind(*word, depth));
        assert_eq!((up.sp, up.fp), (Some(0x1020), Some(0x1040)));
        // add sp, sp, #0x20; add sp, sp, #0x1, lsl #12
        let zero = [0x9100_83ff, 0x9140_07ff].iter().fold(up, |depth, word| behind(*word, depth));
        assert_eq!(zero.sp, Some(0));
        assert_eq!(behind(0xcb20_63ff, up).sp, None, "sub sp, sp, x0");
    }
}
