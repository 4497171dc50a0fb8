//! The displaced instructions of a site, written for the place where they will run.
//!
//! For:     `text`, which puts the bytes into a trampoline, and `session`, which moves program counters in and out.
//! State:   none outside the values returned.
//! Context: control.
//! Keeps:   G1 the bytes do what the displaced instructions did, then go on behind them.
//!          G2 `origin_of` names, for each byte offset of the copy, the instruction it came from, and by how much
//!          the stack pointer is off there.
//!          G3 what cannot reach its operand is refused; nothing is approximated.
//! Checked: tests/differential.rs (G1), tests/ladder.rs (G2, G3).

use std::fmt;

use crate::arch::native;
use crate::place::Placement;

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
    /// The last instruction never falls through: there is no jump back.
    pub ends_with_flow: bool,
    /// Offset of the jump back; `bytes.len()` when there is none.
    pub resume_offset: u16,
    /// Offsets at which the stack pointer is eight lower than at the original: in the copy of a call.
    pub shifted: Option<std::ops::Range<u16>>,
}

/// What a program counter inside a copy stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Offset from the site of the original instruction, or of the byte behind the last.
    pub offset: u8,
    /// Nothing of the instruction's copy has run yet.
    pub is_at_start: bool,
    /// The stack pointer is eight lower than it was at the original.
    pub is_stack_shifted: bool,
}

impl Displaced {
    /// The original instruction of a program counter `offset` bytes into the copy; `None` past its end.
    pub fn origin_of(&self, offset: u16) -> Option<Origin> {
        if usize::from(offset) >= self.bytes.len() {
            return None;
        }
        let is_stack_shifted = self.shifted.as_ref().is_some_and(|range| range.contains(&offset));
        // Instructions without code share an offset with their successor: the last entry is the one that runs.
        let (original, copy) = *self.map.iter().rev().find(|(_, copy)| *copy <= offset)?;
        Some(Origin { offset: original, is_at_start: copy == offset, is_stack_shifted })
    }

    /// Where a thread that stands `offset` bytes behind the site goes on in the copy.
    ///
    /// `None` when no displaced instruction starts there.
    pub fn copy_of(&self, offset: u8) -> Option<u16> {
        self.map.iter().find(|(original, _)| *original == offset).map(|(_, copy)| *copy)
    }
}

/// A copy under construction.
pub(crate) struct Copy {
    dest: u64,
    pub(crate) bytes: Vec<u8>,
    shifted_from: Option<u16>,
}

impl Copy {
    pub(crate) fn here(&self) -> u64 {
        self.dest.wrapping_add(self.bytes.len() as u64)
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// From here on the stack pointer is eight lower.
    pub(crate) fn shift_stack(&mut self) {
        self.shifted_from.get_or_insert(self.bytes.len() as u16);
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
/// displaced ones, unless the last of them never falls through.
///
/// # Errors
/// The first branch, operand or return that `dest` cannot reach.
pub fn relocate(placement: &Placement, bias: u64, dest: u64) -> Result<Displaced, Unreachable> {
    let mut copy = Copy { dest, bytes: Vec::new(), shifted_from: None };
    let mut map = Vec::with_capacity(placement.displaced.len() + 1);
    for insn in &placement.displaced {
        map.push(((insn.addr - placement.site) as u8, copy.bytes.len() as u16));
        native::relocate(insn, bias, &mut copy)?;
    }
    let end = copy.bytes.len() as u16;
    if !placement.ends_with_flow {
        map.push((placement.displaced_len, end));
        copy.jump(placement.site.wrapping_add(u64::from(placement.displaced_len)).wrapping_add(bias))?;
    }
    Ok(Displaced {
        map,
        ends_with_flow: placement.ends_with_flow,
        resume_offset: end,
        shifted: copy.shifted_from.map(|from| from..end),
        bytes: copy.bytes,
    })
}

/// The most bytes that [`relocate`] returns for `placement`, whatever the destination.
pub fn relocate_len_bound(placement: &Placement) -> usize {
    placement.displaced.iter().map(native::len_bound).sum::<usize>() + usize::from(native::JUMP_BYTES)
}
