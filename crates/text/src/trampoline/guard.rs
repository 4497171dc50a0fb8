//! What a hit is asked before any register is saved for it.
//!
//! For:     hooks of the general path whose one consumer is a program that begins with such questions.
//! State:   none; where the flags are live, 24 bytes of the thread's stack below the red zone.
//! Context: built in control; run in a hit.
//! Keeps:   H1 as in the parent.
//!          H10 a hit is counted once: where a guard does not hold by one add to the cell that is named, as a compiled count makes
//!          it; where all hold nothing is counted here, and registers and flags are as at the site.
//! Checked: trampoline tests (`a_thread_stopped_on_any_instruction...`, `a_hit_that_is_turned_down...`);
//!          session `hits_that_a_guard_turns_down_are_handled`; `bench trig-uprobe-prog-no` (hits = calls).

use super::{Builder, HEADER_LEN, RSEQ_SIGNATURE, Rollback};
use crate::assemble::{Code, RAX, RCX, Reg};
use insn::Unreachable;

/// Questions to one hook, at most.
pub const GUARDS_MAX: usize = 2;
/// Bytes of the way of who is turned down, which stands out of line for each hook.
const LEN: usize = 192;
/// In it, behind the descriptor of its section: where who cannot take the section goes on, and where it begins.
const SLOW: usize = 36;
const WAY: usize = 56;
/// The questions themselves, in line, are no longer.
pub(super) const IN_LINE: usize = 72;

/// A register compared with a constant, as it was at the site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Number in instruction encodings; not that of the stack pointer.
    pub reg: u8,
    /// All of its bits, not the lower half.
    pub is_wide: bool,
    /// What they have in common is compared with 0, not their difference.
    pub is_masked: bool,
    /// Sign-extended.
    pub constant: i32,
    /// The condition, by its number in instruction encodings, on which the hit goes on.
    pub goes_on: u8,
}

/// A hook's questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guarded {
    /// Where a hit is counted that is turned down, as in [`Body::Count`](super::Body::Count).
    pub cell: u32,
    /// They are asked in this order.
    pub guards: [Option<Guard>; GUARDS_MAX],
}

/// Where in a block the ways of its hooks begin, and how long they are together.
pub(super) fn room(bodies: usize, is_guarded: bool) -> (usize, usize) {
    let from = super::hit::before_guards(bodies).next_multiple_of(32);
    (from, if is_guarded { bodies * LEN } else { 0 })
}

/// The entry of a block, behind those ways and the header.
pub(super) fn entry(bodies: usize, is_guarded: bool) -> usize {
    let (from, len) = room(bodies, is_guarded);
    let end = if is_guarded { from + len } else { super::hit::before_guards(bodies) };
    (end + HEADER_LEN).next_multiple_of(64)
}

impl Builder<'_> {
    fn way(&self) -> usize {
        room(self.request.bodies.len(), true).0 + self.stage * LEN
    }

    /// Asks; falls through where all hold, with everything as at the site. What [`turned_down`](Self::turned_down) is to be told.
    ///
    /// Stack: 24 bytes where the flags are live.
    pub(super) fn ask(&mut self, guarded: &Guarded) -> Result<Rollback, Unreachable> {
        let is_saving = !self.hook().flags_dead;
        if is_saving {
            self.skip_red_zone();
            self.push_always(RAX);
            self.push_always(RCX);
            self.push_flags();
        }
        let out = self.request.at + (self.way() + WAY) as u64;
        for guard in guarded.guards.iter().flatten() {
            if is_saving && Reg(guard.reg) == RAX {
                self.code.load_rsp(RAX, 16);
            }
            self.code.compare_with(Reg(guard.reg), guard.is_wide, guard.is_masked, guard.constant);
            self.code.jump_if(guard.goes_on ^ 1, out)?;
        }
        let asked = self.now.clone();
        if is_saving {
            self.pop_flags();
            self.pop_always(RCX);
            self.pop_always(RAX);
            self.leave_red_zone();
        }
        Ok(asked)
    }

    /// Writes the way of who is turned down, which comes back to here.
    pub(super) fn turned_down(&mut self, guarded: &Guarded, asked: Rollback) -> Result<(), Unreachable> {
        let (way, back) = (self.way(), self.request.at + self.code.pos() as u64);
        let mut code = Code::new(self.request.at);
        code.pad_to(way + WAY);
        let line = std::mem::replace(&mut self.code, code);
        let now = std::mem::replace(&mut self.now, asked);
        self.steps.push((way + WAY, Some(self.now.clone())));
        let done = self.count_turned_down(guarded.cell, way, back);
        let out = std::mem::replace(&mut self.code, line);
        self.now = now;
        done?;
        debug_assert!(out.pos() <= way + LEN);
        self.steps.push((out.pos(), None));
        self.steps.sort_by_key(|(from, _)| *from);
        self.code.bytes[way..out.pos()].copy_from_slice(&out.bytes[way..]);
        Ok(())
    }

    fn count_turned_down(&mut self, cell: u32, way: usize, back: u64) -> Result<(), Unreachable> {
        use percpu::emit::Form;
        let is_saved = !self.hook().flags_dead;
        if !is_saved {
            self.skip_red_zone();
            self.push(RAX);
            self.push(RCX);
        }
        let threads = self.request.ways.threads;
        let slow = match threads {
            Some(threads) => self.check_thread(threads, way + SLOW)?,
            None => way + SLOW,
        };
        let (start, end) = self.add(Form::Count, way / 32, threads, cell, slow)?;
        self.counted_from_here();
        let counted = self.now.clone();
        if is_saved {
            self.pop_flags();
            self.pop_always(RCX);
            self.pop_always(RAX);
        } else {
            self.pop(RCX);
            self.pop(RAX);
        }
        self.leave_red_zone();
        self.code.jump_to(back)?;
        if threads.is_some() {
            self.descriptor(way / 32, start, end, way + SLOW);
            self.code.bytes[way + SLOW - 4..way + SLOW].copy_from_slice(&RSEQ_SIGNATURE.to_le_bytes());
        }
        self.slow(way + SLOW, cell, end, counted)
    }
}
