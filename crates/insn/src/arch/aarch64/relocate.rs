//! One A64 instruction written for another address.
//!
//! For:     slots and trampolines, which run what a patch displaced.
//! State:   the words so far and what each of them means.
//! Context: any; no allocation, no panic.
//! Keeps:   G1 the copy does what the original does, then goes on behind it. A call leaves the original return
//!          address in the link register, so unwinders see nothing of us.
//!          G2 no flag is written, and no register that the original does not write, except between a push of x16
//!          and x17 and the pop that gives them back: here, or in a gate.
//!          G3 `origin_of` tells for each word what of the original has happened.
//!          G4 what the copy cannot reach is an error; nothing is approximated but a prefetch, which may be dropped.
//! Checked: tests/aarch64_differential: each class, near and far, stopped and unstopped, under qemu.
//!
//! `b` reaches 128 MiB. Farther than that, control can go by register only, and no register is free at an arbitrary
//! instruction. So the copy pushes x16 and x17 and goes to a *gate*, two instructions near the target that pop them
//! and branch. A gate is in a page of ours, so a guarded page behind it sees a direct branch and wants no landing pad.

use super::decode::{Auth, By, LINK, Literal, Relative, ZERO, decode};
use super::encode::{self, NOP, POP_SCRATCH, PUSH_SCRATCH, SCRATCH};
use super::verdict::{Verdict, verdict};
use crate::reason::Forbidden;
use crate::relocate::Unreachable;

/// No copy is longer: 4 words for a return address or an inverted branch, 6 to a gate, 6 to another.
pub const COPY_MAX_WORDS: usize = 16;
/// How much lower the stack pointer is while x16 and x17 are on the stack, which are at its lower end: the 16 bytes above
/// them stay as they are, since Go keeps its caller's frame pointer there.
pub const SCRATCH_BYTES: u64 = 32;
/// Length of a gate.
pub const GATE_WORDS: usize = 2;

/// Why there is no copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotMoved {
    /// The instruction may not be moved at all.
    Forbidden(Forbidden),
    /// A target is out of reach, and no gate was given for it.
    Unreachable(Unreachable),
}

impl core::fmt::Display for NotMoved {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            NotMoved::Forbidden(what) => write!(f, "{what} cannot be moved"),
            NotMoved::Unreachable(Unreachable { from, to }) => {
                write!(
                    f,
                    "{to:#x} is more than 128 MiB from the copy at {from:#x}, and there is no gate to it"
                )
            }
        }
    }
}

impl core::error::Error for NotMoved {}

/// Registers that lie on the stack, from the stack pointer on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// None; the stack pointer is the original's.
    None,
    /// x16 and x17; the stack pointer is [`SCRATCH_BYTES`] lower than the original's.
    Scratch,
}

/// What a program counter inside a copy stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Nothing has happened yet: all registers are the original's.
    pub is_at_start: bool,
    /// The original is done: it goes on at this address.
    pub leads_to: Option<u64>,
    /// What must be popped first.
    pub saved: Saved,
    /// A register that holds neither the old nor the new value. The original writes it without reading it.
    pub spoiled: Option<u8>,
}

const START: Origin = Origin { is_at_start: true, leads_to: None, saved: Saved::None, spoiled: None };

/// Code for one destination that behaves as the original instruction.
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    words: [u32; COPY_MAX_WORDS],
    origins: [Origin; COPY_MAX_WORDS],
    len: usize,
    resume: usize,
}

impl Copied {
    /// To be placed at the destination that was asked for, and nowhere else.
    pub fn words(&self) -> &[u32] {
        &self.words[..self.len]
    }

    /// Their length.
    pub fn len_bytes(&self) -> usize {
        4 * self.len
    }

    /// Offset of the way back behind the original; `None` when the original never goes on there by itself.
    pub fn resume_offset(&self) -> Option<usize> {
        (self.resume < self.len).then_some(4 * self.resume)
    }

    /// The original's state at a program counter `offset` bytes into the copy; `None` past its end.
    pub fn origin_of(&self, offset: usize) -> Option<Origin> {
        (offset & 3 == 0 && offset / 4 < self.len).then(|| self.origins[offset / 4])
    }
}

/// A copy under construction.
struct Writer<'g> {
    at: u64,
    copied: Copied,
    now: Origin,
    gates: &'g mut dyn FnMut(u64) -> Option<u64>,
}

impl<'g> Writer<'g> {
    fn new(at: u64, gates: &'g mut dyn FnMut(u64) -> Option<u64>) -> Writer<'g> {
        let copied = Copied {
            words: [0; COPY_MAX_WORDS],
            origins: [START; COPY_MAX_WORDS],
            len: 0,
            resume: COPY_MAX_WORDS,
        };
        Writer { at, copied, now: START, gates }
    }

    fn here(&self) -> u64 {
        self.at.wrapping_add(4 * self.copied.len as u64)
    }

    /// Appends a word; what holds before it is `now`.
    fn put(&mut self, word: u32) {
        let at = self.copied.len;
        debug_assert!(at < COPY_MAX_WORDS);
        self.copied.words[at] = word;
        self.copied.origins[at] = self.now;
        self.copied.len += 1;
        self.now.is_at_start = false;
    }

    /// The value into a register by moves, which never fail and touch nothing else.
    fn set(&mut self, rd: u8, value: u64) {
        let half = |place: u32| (value >> (16 * place)) as u16;
        let first = (0..4).find(|place| half(*place) != 0).unwrap_or(0);
        self.put(encode::movz(rd, half(first), first));
        if self.now.saved == Saved::None {
            self.now.spoiled = Some(rd);
        }
        (first + 1..4)
            .filter(|place| half(*place) != 0)
            .for_each(|place| self.put(encode::movk(rd, half(place), place)));
    }

    /// An address into a register, in as few words as it takes.
    fn set_address(&mut self, rd: u8, value: u64) {
        if let Some(word) = encode::adr(self.here(), rd, value) {
            return self.put(word);
        }
        match encode::adrp(self.here(), rd, value) {
            Some(word) => {
                self.put(word);
                self.now.spoiled = Some(rd);
                if value & 0xfff != 0 {
                    self.put(encode::add(rd, value as u32 & 0xfff));
                }
            }
            None => self.set(rd, value),
        }
    }

    /// x16 and x17 go onto the stack.
    fn push_scratch(&mut self) {
        self.put(PUSH_SCRATCH);
        self.now.saved = Saved::Scratch;
    }

    /// Control goes to `to`, where the original would have brought it.
    fn go(&mut self, to: u64) -> Result<(), NotMoved> {
        self.now.leads_to = Some(to);
        if let Some(word) = encode::b(self.here(), to) {
            self.put(word);
            return Ok(());
        }
        let Some(gate) = (self.gates)(to) else {
            return Err(NotMoved::Unreachable(Unreachable { from: self.here(), to }));
        };
        self.push_scratch();
        self.set_address(SCRATCH, gate);
        self.put(encode::br(SCRATCH));
        self.now = Origin { is_at_start: false, ..START };
        Ok(())
    }

    /// A conditional branch: the same one when it reaches, else the opposite one over a long way.
    fn branch(
        &mut self,
        to: u64,
        same: impl Fn(u64, u64) -> Option<u32>,
        opposite: impl Fn(u64, u64) -> Option<u32>,
    ) -> Result<(), NotMoved> {
        if let Some(word) = same(self.here(), to) {
            self.put(word);
            return Ok(());
        }
        let at = self.copied.len;
        let from = self.here();
        self.put(NOP);
        self.go(to)?;
        // The distance is small and a multiple of four, so the branch exists.
        self.copied.words[at] = opposite(from, self.here()).unwrap_or(NOP);
        self.now = Origin { is_at_start: false, ..START };
        Ok(())
    }

    fn load(&mut self, word: u32, rt: u8, literal: Literal, target: u64) {
        if let Some(word) = encode::load_literal(word, self.here(), target) {
            return self.put(word);
        }
        match literal {
            Literal::Prefetch => self.put(NOP),
            Literal::Vector { .. } => self.load_through_scratch(rt, literal, target),
            _ if rt == ZERO => self.load_through_scratch(rt, literal, target),
            _ => {
                self.set_address(rt, target);
                self.now.spoiled = Some(rt);
                self.put(encode::load(literal, rt, rt));
            }
        }
    }

    /// For a load that has no general register of its own. It may fault, with the stack pointer lower.
    fn load_through_scratch(&mut self, rt: u8, literal: Literal, target: u64) {
        self.push_scratch();
        self.set_address(SCRATCH, target);
        self.now.spoiled = None;
        self.put(encode::load(literal, rt, SCRATCH));
        self.put(POP_SCRATCH);
        self.now.saved = Saved::None;
    }
}

/// The code that stands at `to` for the instruction `word` of `from`, and then goes on behind it.
///
/// `gates` is asked for the address of a [`gate`] to a target that no branch reaches.
///
/// # Errors
/// The instruction may not be moved, or a target is out of reach and has no gate.
pub fn relocate(
    word: u32,
    from: u64,
    to: u64,
    gates: &mut dyn FnMut(u64) -> Option<u64>,
) -> Result<Copied, NotMoved> {
    if (from | to) & 3 != 0 {
        return Err(NotMoved::Forbidden(Forbidden::Misaligned));
    }
    if let Verdict::Refused(what) = verdict(word) {
        return Err(NotMoved::Forbidden(what));
    }
    let mut out = Writer::new(to, gates);
    let behind = from.wrapping_add(4);
    let relative = decode(word, from);
    match relative {
        Some(relative) => one(&mut out, word, behind, relative)?,
        None => out.put(word),
    }
    if !relative.is_some_and(|relative| relative.ends()) {
        out.copied.resume = out.copied.len;
        out.now = Origin { is_at_start: false, ..START };
        out.go(behind)?;
    }
    Ok(out.copied)
}

fn one(out: &mut Writer<'_>, word: u32, behind: u64, relative: Relative) -> Result<(), NotMoved> {
    match relative {
        Relative::Adr { rd: ZERO, .. } | Relative::Adrp { rd: ZERO, .. } => out.put(NOP),
        Relative::Adr { rd, target } | Relative::Adrp { rd, target } => out.set_address(rd, target),
        Relative::Load { rt, literal, target } => out.load(word, rt, literal, target),
        // Conditions 14 and 15 both mean "always" and have no opposite.
        Relative::Jump { target } | Relative::JumpIf { cond: 14 | 15, target, .. } => return out.go(target),
        Relative::Call { target } => {
            out.set(LINK, behind);
            return out.go(target);
        }
        Relative::JumpIf { cond, is_consistent, target } => {
            let branch = |cond| move |from, to| encode::b_cond(from, cond, is_consistent, to);
            return out.branch(target, branch(cond), branch(cond ^ 1));
        }
        Relative::JumpZero { rt, is_wide, when_zero, target } => {
            let branch = |when_zero| move |from, to| encode::cb(from, rt, is_wide, when_zero, to);
            return out.branch(target, branch(when_zero), branch(!when_zero));
        }
        Relative::JumpBit { rt, bit, when_set, target } => {
            let branch = |when_set| move |from, to| encode::tb(from, rt, bit, when_set, to);
            return out.branch(target, branch(when_set), branch(!when_set));
        }
        Relative::Register { by: By::Call, rn, auth } => {
            if rn == LINK || auth == Auth::Modifier(LINK) {
                return Err(NotMoved::Forbidden(Forbidden::CallOfLinkRegister));
            }
            out.set(LINK, behind);
            // Bit 21 makes the call of a branch.
            out.put(word & !(1 << 21));
        }
        Relative::Register { .. } => out.put(word),
    }
    Ok(())
}

/// The most words of [`far`].
pub const FAR_WORDS: usize = 6;

/// Code at `at` that pushes x16 and x17 and goes to `to` by x16, wherever that is; zeros fill it up.
pub fn far(at: u64, to: u64) -> [u32; FAR_WORDS] {
    let mut no_gates = |_| None;
    let mut out = Writer::new(at, &mut no_gates);
    out.push_scratch();
    out.set_address(SCRATCH, to);
    out.put(encode::br(SCRATCH));
    core::array::from_fn(|index| out.copied.words[index])
}

/// The code of a gate at `at` to `target`: what was pushed comes back, and control goes on.
///
/// `None` if `target` is more than 128 MiB away.
pub fn gate(at: u64, target: u64) -> Option<[u32; GATE_WORDS]> {
    Some([POP_SCRATCH, encode::b(at.wrapping_add(4), target)?])
}

/// What a program counter `offset` bytes into a gate to `target` stands for; `None` past its end.
pub fn resume(offset: usize, target: u64) -> Option<Origin> {
    let saved = match offset {
        0 => Saved::Scratch,
        4 => Saved::None,
        _ => return None,
    };
    Some(Origin { is_at_start: false, leads_to: Some(target), saved, spoiled: None })
}

#[cfg(test)]
mod tests;
