//! What a jump of a given length would displace at a site, or why it may not stand there.
//!
//! For:     `place` and `coverage`.
//! State:   the facts about one site.
//! Context: control.
//! Keeps:   G1 no known target, function start or taken byte lies under the jump behind its first byte.
//!          G2 a call is the last instruction displaced, and returns behind the jump.
//!          G3 a window has the fewest instructions that cover the jump, or ends in one that never falls through
//!          and has only padding between it and the jump's end.
//!          G4 a punned jump displaces instructions as G1 to G3 allow a jump of as many bytes as it changes.
//!          G5 no byte of an instruction behind the first changes at which a parked thread may go on.
//!          G6 nor one of an instruction behind the first that may fault, where faults are to be seen where they are.
//! Checked: tests/ladder.rs and tests/parked.rs, one test for each rule.

use std::cmp::Reverse;
use std::ops::Range;

use crate::arch::native::{self, Class, JUMP_BYTES, SHORT_JUMP_BYTES};
use crate::code::{Code, Insn};
use crate::flow::Flow;
use crate::padding;
use crate::place::{Asked, Pun};
use crate::reason::{Forbidden, Reason, Refusal, Rung};

/// Pages are at least this long, and images are mapped at multiples of it.
const PAGE_BYTES: u64 = 4096;

/// A site whose first instruction may be moved.
pub(crate) struct Ladder<'a> {
    pub(crate) flow: &'a Flow,
    pub(crate) code: &'a Code<'a>,
    pub(crate) asked: &'a Asked<'a>,
    first: Class,
}

/// The instructions under a jump.
pub(crate) struct Window {
    pub(crate) insns: Vec<Insn>,
    pub(crate) ends_with_flow: bool,
    /// Bytes of the jump behind the last instruction.
    pub(crate) padding_used: u8,
}

/// The rung that fits, what it displaces, and what kept the site from higher rungs.
pub(crate) struct Found {
    pub(crate) rung: Rung,
    pub(crate) window: Window,
    pub(crate) island: Option<u64>,
    pub(crate) pun: Option<Pun>,
    pub(crate) why_not: Vec<(Rung, Reason)>,
}

impl Found {
    /// The same with what lies between the jump at `site` and `until`, which runs elsewhere too, also where the jump does not cover
    /// it. It must be nobody's: another's jump there would be passed by, and the way back would lead into the middle of it.
    pub(crate) fn up_to(
        mut self,
        (site, until): (u64, u64),
        between: impl Iterator<Item = Insn>,
        taken: &dyn Fn(Range<u64>) -> bool,
    ) -> Result<Found, Refusal> {
        let end = self.window.insns.last().map_or(site, Insn::end);
        if end < until && taken(end..until) {
            let reason = Reason::Taken { at: end, len_bytes: (until - end) as u8 };
            return Err(Refusal::NoRung { site, why_not: vec![(self.rung, reason)], needs: Rung::Trap });
        }
        let covered = self.window.insns.len();
        self.window.insns.extend(between.skip(covered));
        Ok(self)
    }

    /// Lower is better: the rung, then how few addresses a punned jump can lead to.
    pub(crate) fn order(&self) -> (Rung, Reverse<u64>) {
        (self.rung, Reverse(self.pun.map_or(0, |pun| pun.count)))
    }
}

impl<'a> Ladder<'a> {
    pub(crate) fn new(
        flow: &'a Flow,
        code: &'a Code<'a>,
        asked: &'a Asked<'a>,
    ) -> Result<Ladder<'a>, Refusal> {
        let site = asked.site;
        let forbidden = |what| Refusal::Forbidden { site, what };
        let bytes = code.from_addr(site);
        if native::is_signal_return(code, site) {
            return Err(forbidden(Forbidden::SignalReturn));
        }
        let first = native::decode(bytes, site).ok_or(forbidden(Forbidden::Undecodable))?;
        match first.forbidden {
            Some(what) => Err(forbidden(what)),
            None => Ok(Ladder { flow, code, asked, first }),
        }
    }

    /// The highest of rungs 1 to 5 that fits.
    pub(crate) fn climb(&self) -> Result<Found, Refusal> {
        let len_bytes = self.first.insn.len_bytes() as u8;
        let short = (len_bytes < JUMP_BYTES).then_some(Reason::Short { len_bytes });
        let nop = (!self.first.is_nop).then_some(Reason::NotANop).or(short);
        let (rung, mut why_not) = match (nop, short) {
            (None, _) => (Rung::Nop, vec![]),
            (Some(nop), None) => (Rung::Jump, vec![(Rung::Nop, nop)]),
            (Some(nop), Some(short)) => (Rung::Window, vec![(Rung::Nop, nop), (Rung::Jump, short)]),
        };
        let refused = match self.window(JUMP_BYTES) {
            Ok(window) => return Ok(Found { rung, window, island: None, pun: None, why_not }),
            Err(reason) => reason,
        };
        let from = [Rung::Nop, Rung::Jump, Rung::Window].into_iter().filter(|other| *other >= rung);
        why_not.extend(from.map(|rung| (rung, refused)));
        match self.island() {
            Ok((window, at)) => {
                let island = Some(at);
                return Ok(Found { rung: Rung::Island, window, island, pun: None, why_not });
            }
            Err(reason) => why_not.push((Rung::Island, reason)),
        }
        match self.punned() {
            Ok((window, pun)) => {
                Ok(Found { rung: Rung::Punned, window, island: None, pun: Some(pun), why_not })
            }
            Err(reason) => {
                why_not.push((Rung::Punned, reason));
                Err(Refusal::NoRung { site: self.asked.site, why_not, needs: Rung::Trap })
            }
        }
    }

    /// The jump that leaves the most of its displacement free and finds room.
    fn punned(&self) -> Result<(Window, Pun), Reason> {
        let site = self.asked.site;
        let jump = site..site + u64::from(JUMP_BYTES);
        let bytes = self.code.from_addr(site).get(..usize::from(JUMP_BYTES));
        let Some(Ok(bytes)) = bytes.map(<[u8; JUMP_BYTES as usize]>::try_from) else {
            return Err(Reason::EndOfCode { at: self.code.range().end });
        };
        if (self.asked.taken)(jump) {
            return Err(Reason::Taken { at: site, len_bytes: JUMP_BYTES });
        }
        let mut why = None;
        // One address alone is a poor choice, and costs a jump more; where windows are few it is needed.
        let least = if self.flow.has_parked_threads() { 1 } else { 2 };
        for free in (least..JUMP_BYTES).rev() {
            match self.window(free) {
                Ok(window) => {
                    let pun = Pun::of(site, bytes, free);
                    if (self.asked.room)(pun) {
                        return Ok((window, pun));
                    }
                    why = Some(Reason::NoRoom { count: pun.count });
                }
                Err(reason) => why = why.or(Some(reason)),
            }
        }
        Err(why.unwrap_or(Reason::NotAnalysed))
    }

    fn island(&self) -> Result<(Window, u64), Reason> {
        let window = self.window(SHORT_JUMP_BYTES)?;
        if self.flow.has_parked_threads() {
            return Err(Reason::UnknownPadding);
        }
        let own = self.asked.site..self.asked.site + u64::from(JUMP_BYTES);
        let is_free = |range: Range<u64>| {
            let overlaps = range.start < own.end && own.start < range.end;
            !overlaps && !(self.asked.taken)(range)
        };
        let island = padding::nearest_gap(self.flow, self.code, self.asked.site, &is_free);
        island.map(|island| (window, island)).ok_or(Reason::NoIsland)
    }

    /// What a jump of `want` bytes displaces.
    fn window(&self, want: u8) -> Result<Window, Reason> {
        let site = self.asked.site;
        let end = site + u64::from(want);
        self.check_free(site..end)?;
        let mut insns = vec![self.first.insn];
        let mut last = self.first;
        while last.insn.end() < end {
            if last.ends {
                let used = self.padding(last.insn.end(), end)?;
                return Ok(Window { insns, ends_with_flow: true, padding_used: used });
            }
            if self.flow.may_be_parked(last.insn.end()) {
                return Err(Reason::Parked { at: last.insn.end() });
            }
            if let Some(from) = self.flow.vague_jump(last.insn.end()) {
                return Err(Reason::ComputedJump { at: last.insn.end(), from });
            }
            last = self.next(&last)?;
            if self.flow.keeps_faults(&last.insn) {
                return Err(Reason::MayFault { at: last.insn.addr });
            }
            insns.push(last.insn);
        }
        Ok(Window { insns, ends_with_flow: last.ends || last.is_call, padding_used: 0 })
    }

    /// Nothing comes in, and nobody else is there.
    fn check_free(&self, jump: Range<u64>) -> Result<(), Reason> {
        if (jump.start + 1).is_multiple_of(PAGE_BYTES) {
            return Err(Reason::PageEnd);
        }
        if jump.end > self.code.range().end {
            return Err(Reason::EndOfCode { at: self.code.range().end });
        }
        if !self.flow.is_analysed(jump.clone()) {
            return Err(Reason::NotAnalysed);
        }
        let next_start = self.asked.next_function.or_else(|| self.flow.next_start(jump.start));
        if let Some(at) = next_start.filter(|start| *start < jump.end) {
            return Err(Reason::FunctionStart { at });
        }
        if let Some(at) = self.flow.first_target(jump.start + 1..jump.end) {
            return Err(Reason::Target { at, from: None });
        }
        if (self.asked.taken)(jump.clone()) {
            return Err(Reason::Taken { at: jump.start, len_bytes: (jump.end - jump.start) as u8 });
        }
        Ok(())
    }

    /// The instruction behind `last`, if it may be displaced with it.
    fn next(&self, last: &Class) -> Result<Class, Reason> {
        let at = last.insn.end();
        if last.is_call {
            return Err(Reason::CallInside { at: last.insn.addr });
        }
        if self.asked.function.as_ref().is_some_and(|function| function.end == at) {
            return Err(Reason::EndOfFunction { at });
        }
        let undecodable = Reason::Immovable { at, what: Forbidden::Undecodable };
        let class = native::decode(self.code.from_addr(at), at).ok_or(undecodable)?;
        match class.forbidden {
            _ if class.is_syscall => Err(Reason::SyscallInside { at }),
            // ud2 and hlt fault wherever they stand; nothing behind them matters.
            Some(what) if !class.ends || what == Forbidden::FarBranch => Err(Reason::Immovable { at, what }),
            Some(what @ Forbidden::SixteenBitBranch) => Err(Reason::Immovable { at, what }),
            _ => Ok(class),
        }
    }

    fn padding(&self, from: u64, to: u64) -> Result<u8, Reason> {
        let len = padding::run(self.flow, self.code, from, to);
        if from + len < to {
            return Err(Reason::FollowedByCode { at: from + len });
        }
        Ok(len as u8)
    }
}
