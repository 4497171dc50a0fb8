//! The displaced instructions of a site, written for the place where they will run.
//!
//! For:     `text`, which puts the bytes into a trampoline, and `session`, which moves program counters in and out.
//! State:   none outside the values returned.
//! Context: control.
//! Keeps:   G1 the bytes do what the displaced instructions did, then go on behind them.
//!          G2 `origin_of` tells, for each instruction of the copy, from where and with which stack pointer the
//!          original goes on.
//!          G3 what cannot reach its operand is refused; nothing is approximated.
//! Checked: tests/differential (G1), tests/ladder.rs (G2, G3).

use std::fmt;
use std::ops::Range;

use crate::arch::native;
use crate::place::{Hook, Placement};

/// A branch or operand that lies more than 2 GiB from the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreachable {
    /// Where the copy would have reached from.
    pub from: u64,
    /// What it has to reach.
    pub to: u64,
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} is more than 2 GiB from the copy at {:#x}", self.to, self.from)
    }
}

impl std::error::Error for Unreachable {}

/// Code for one destination that behaves as the displaced instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Displaced {
    /// To be placed at the destination that was asked for, and nowhere else.
    pub bytes: Vec<u8>,
    /// For each displaced instruction, its offset from the site and the offset of its copy.
    pub map: Vec<(u8, u16)>,
    /// There is no jump back: the last instruction is a jump, a return, a trap, or a call, which returns to the
    /// original code.
    pub ends_with_flow: bool,
    /// Offset of the jump back; `bytes.len()` when there is none.
    pub resume_offset: u16,
    /// Offsets at which the stack pointer is lower than at the original: in the copy of a call.
    pub shifted: Option<std::ops::Range<u16>>,
    pub(crate) steps: Vec<Step>,
}

/// What holds from one offset of a copy to the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) from: u16,
    pub(crate) origin: Origin,
}

/// What a program counter inside a copy stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Offset from the site of the original instruction, or of the byte behind the last.
    pub offset: u8,
    /// Nothing of the instruction's copy has run yet.
    pub is_at_start: bool,
    /// The stack pointer is lower than it was at the original, by `stack_shift_bytes`.
    pub is_stack_shifted: bool,
    /// 8 in the copy of a call, 16 in the last instructions of one through a slot below the stack pointer, else 0.
    pub stack_shift_bytes: u8,
    /// The branch at `offset` was taken already: the process goes on at this address, and not at `offset`.
    pub leads_to: Option<u64>,
    /// The original can be run from `offset` again. If not, its operand may be overwritten: the thread must run on to
    /// the end of the copy. Only in a call through rbp or an indexed rsp, or through a slot below the stack pointer.
    pub is_restartable: bool,
}

impl Displaced {
    /// The original instruction of a program counter `offset` bytes into the copy; `None` past its end.
    pub fn origin_of(&self, offset: u16) -> Option<Origin> {
        if usize::from(offset) >= self.bytes.len() {
            return None;
        }
        // Instructions without code share an offset with their successor: the last step is the one that runs.
        self.steps
            .iter()
            .rev()
            .find(|step| step.from <= offset)
            .map(|step| Origin { is_at_start: step.origin.is_at_start && step.from == offset, ..step.origin })
    }

    /// Where a thread that stands `offset` bytes behind the site goes on in the copy.
    ///
    /// `None` when no displaced instruction starts there.
    pub fn copy_of(&self, offset: u8) -> Option<u16> {
        self.map.iter().find(|(original, _)| *original == offset).map(|(_, copy)| *copy)
    }
}

impl Displaced {
    /// Adds to what stands before a hook at a conditional jump the way around the hook: a jump on the opposite condition.
    /// Returns where in the bytes its distance stands.
    ///
    /// # Panics
    /// If the instruction at the hook is no conditional jump: [`Hook::taken`] says that it is one.
    pub fn push_way_around(&mut self, placement: &Placement, hook: &Hook) -> usize {
        let at = placement.site + u64::from(hook.offset);
        let jump = placement.displaced.iter().find(|insn| insn.addr == at);
        let opposite = jump.and_then(native::opposite).expect("a hook where a conditional jump is taken");
        let from = self.bytes.len() as u16;
        self.map.push((hook.offset, from));
        self.steps.push(Step { from, origin: Origin::start(hook.offset) });
        self.bytes.extend(opposite);
        self.bytes.extend([0; 4]);
        self.resume_offset = self.bytes.len() as u16;
        self.bytes.len() - 4
    }
}

impl Origin {
    /// Before the instruction at `offset`.
    fn start(offset: u8) -> Origin {
        Origin {
            offset,
            is_at_start: true,
            is_stack_shifted: false,
            stack_shift_bytes: 0,
            leads_to: None,
            is_restartable: true,
        }
    }
}

/// A copy under construction.
pub(crate) struct Copy {
    dest: u64,
    pub(crate) bytes: Vec<u8>,
    shifted_from: Option<u16>,
    steps: Vec<Step>,
}

impl Copy {
    pub(crate) fn here(&self) -> u64 {
        self.dest.wrapping_add(self.bytes.len() as u64)
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// From here on it is as if the original stood before the instruction `offset` bytes behind the site.
    pub(crate) fn begin(&mut self, offset: u8) {
        self.steps.push(Step { from: self.bytes.len() as u16, origin: Origin::start(offset) });
    }

    /// From here on the stack pointer is eight lower than before.
    pub(crate) fn shift_stack(&mut self) {
        let from = self.bytes.len() as u16;
        self.shifted_from.get_or_insert(from);
        if let Some(last) = self.steps.last() {
            let stack_shift_bytes = last.origin.stack_shift_bytes + 8;
            let origin =
                Origin { is_at_start: false, is_stack_shifted: true, stack_shift_bytes, ..last.origin };
            self.steps.push(Step { from, origin });
        }
    }

    /// From here on the operand may be gone.
    pub(crate) fn commit(&mut self) {
        if let Some(last) = self.steps.last() {
            let origin = Origin { is_at_start: false, is_restartable: false, ..last.origin };
            self.steps.push(Step { from: self.bytes.len() as u16, origin });
        }
    }

    /// From here on the branch has been taken.
    pub(crate) fn take(&mut self, offset: u8, to: u64) {
        self.begin(offset);
        if let Some(last) = self.steps.last_mut() {
            last.origin = Origin { is_at_start: false, leads_to: Some(to), ..last.origin };
        }
    }

    /// The 32-bit distance from the end of an instruction to what it refers to.
    pub(crate) fn displacement(&self, end: u64, to: u64) -> Result<[u8; 4], Unreachable> {
        match i32::try_from(to.wrapping_sub(end) as i64) {
            Ok(near) => Ok(near.to_le_bytes()),
            Err(_) => Err(Unreachable { from: self.here(), to }),
        }
    }
}

/// The code that stands at `dest` for the displaced instructions of `placement`.
///
/// `bias` is what the process adds to image addresses. The code ends in a jump to the instruction behind the
/// displaced ones, unless [`Placement::ends_with_flow`].
///
/// # Errors
/// The first branch, operand or return that `dest` cannot reach.
pub fn relocate(placement: &Placement, bias: u64, dest: u64) -> Result<Displaced, Unreachable> {
    relocate_part(placement, bias, dest, 0..u8::MAX)
}

/// The same for the instructions whose offsets from the site are in `part`, `u8::MAX` for the end: what stands
/// between two hooks. Only the last part jumps back; the others fall through.
///
/// # Errors
/// As for [`relocate`].
pub fn relocate_part(
    placement: &Placement,
    bias: u64,
    dest: u64,
    part: Range<u8>,
) -> Result<Displaced, Unreachable> {
    let mut copy = Copy { dest, bytes: Vec::new(), shifted_from: None, steps: Vec::new() };
    let mut map = Vec::with_capacity(placement.displaced.len() + 1);
    for insn in &placement.displaced {
        let offset = (insn.addr - placement.site) as u8;
        if !part.contains(&offset) {
            continue;
        }
        map.push((offset, copy.bytes.len() as u16));
        copy.begin(offset);
        native::relocate(insn, offset, bias, &mut copy)?;
    }
    let end = copy.bytes.len() as u16;
    let is_last = part.end == u8::MAX;
    // Behind a last hook that follows all displaced instructions there is nothing left but the way back.
    let ends_with_flow = is_last && placement.ends_with_flow && !map.is_empty();
    if is_last && !ends_with_flow {
        map.push((placement.displaced_len, end));
        copy.begin(placement.displaced_len);
        copy.jump(placement.site.wrapping_add(u64::from(placement.displaced_len)).wrapping_add(bias))?;
    }
    Ok(Displaced {
        map,
        ends_with_flow,
        resume_offset: end,
        shifted: copy.shifted_from.map(|from| from..end),
        steps: copy.steps,
        bytes: copy.bytes,
    })
}

/// What stands behind a hook at a conditional jump: the jump, taken, and at the returned offset what runs if it is not.
///
/// # Errors
/// As for [`relocate`].
pub fn relocate_taken(
    placement: &Placement,
    bias: u64,
    dest: u64,
    hook: &Hook,
) -> Result<(Displaced, usize), Unreachable> {
    let mut copy = Copy { dest, bytes: Vec::new(), shifted_from: None, steps: Vec::new() };
    let to = hook.taken.unwrap_or(placement.site).wrapping_add(bias);
    copy.take(hook.offset, to);
    copy.jump(to)?;
    let taken = copy.bytes.len();
    let rest = relocate_part(placement, bias, dest.wrapping_add(taken as u64), hook.offset + 1..u8::MAX)?;
    let moved = |at: u16| at + taken as u16;
    let steps = rest.steps.iter().map(|step| Step { from: moved(step.from), ..*step });
    let displaced = Displaced {
        map: rest.map.iter().map(|(original, at)| (*original, moved(*at))).collect(),
        ends_with_flow: rest.ends_with_flow,
        resume_offset: moved(rest.resume_offset),
        shifted: rest.shifted.map(|range| moved(range.start)..moved(range.end)),
        steps: copy.steps.into_iter().chain(steps).collect(),
        bytes: [copy.bytes, rest.bytes].concat(),
    };
    Ok((displaced, taken))
}

/// The most bytes that [`relocate`] returns for `placement`, whatever the destination.
pub fn relocate_len_bound(placement: &Placement) -> usize {
    // At a conditional jump with a hook: the way around it, and the jump.
    let taken = placement.hooks.iter().filter(|hook| hook.taken.is_some()).count() * 11;
    let copies = placement.displaced.iter().map(native::len_bound).sum::<usize>();
    copies + taken + usize::from(native::JUMP_BYTES)
}
