//! Where a function is left: its returns and tail jumps, and how a probe stands before each.
//!
//! For:     return probes that touch no return address.
//! State:   the function's instructions, decoded once.
//! Context: control.
//! Keeps:   G1 every near return, and every jump that leaves the function for good, is an exit, a conditional one where
//!          it is taken; a function of which that cannot be said is refused.
//!          G2 a probe before an exit is on every path to it: nothing is known to jump behind the jump to it.
//! Checked: tests/exits.rs.
//!
//! An indirect jump is taken for a tail call unless it looks like a switch: a scaled index, a notrack prefix, an
//! address that was just added up, or a frame that still stands. A wrong guess cannot corrupt anything: a probe runs
//! there or it does not, and it uses nothing that a jump within the function would need, the red zone included. Only what
//! is said of the function's calls would be wrong: where labels of the function are formed and no switch explains them,
//! nothing is said.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use crate::arch::aarch64;
use crate::arch::native::{self, Class, Depths, Leave};
use crate::code::{Code, Insn};
use crate::flow::{Flow, Guarded};
use crate::ladder::{Found, Ladder};
use crate::place::{Asked, Hook, Placement, Pun};
use crate::reason::{Reason, Refusal, Rung};

/// The most instructions outside a function's own range that are followed.
const FRAGMENT_MAX: usize = 4096;

/// Why it cannot be said where a function is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoExits {
    /// It has no return and no tail jump.
    NeverReturns,
    /// A conditional jump leaves it for another function, and its condition has no opposite or its frame still stands.
    ConditionalTailJump {
        /// The jump.
        at: u64,
    },
    /// Bytes that are no instruction.
    Undecodable {
        /// Where.
        at: u64,
    },
    /// It forms addresses of places within itself and jumps away indirectly: to one of these, or for good.
    ComputedJump {
        /// The jump.
        at: u64,
    },
    /// Its parts elsewhere are too large.
    TooLarge,
}

impl fmt::Display for NoExits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoExits::NeverReturns => write!(f, "it has no return and no tail jump"),
            NoExits::ConditionalTailJump { at } => {
                write!(f, "the conditional jump at {at:#x} leaves it for another function")
            }
            NoExits::Undecodable { at } => write!(f, "it does not decode at {at:#x}"),
            NoExits::ComputedJump { at } => {
                write!(f, "the jump at {at:#x} may lead to another place within it, or leave it")
            }
            NoExits::TooLarge => write!(f, "its parts elsewhere are too large"),
        }
    }
}

impl std::error::Error for NoExits {}

/// A function's instructions, and which of them leave it.
#[derive(Debug)]
pub struct Exits {
    /// Ascending runs: its own range, then its parts elsewhere.
    insns: Vec<Class>,
    exits: Vec<usize>,
    function: Range<u64>,
    /// It is Go code, which keeps nothing below the stack pointer.
    is_go: bool,
    /// Those of A64 code, of which nothing else is kept.
    a64: Vec<aarch64::Exit>,
}

impl Exits {
    /// Finds the exits of `function`.
    ///
    /// `is_part` tells of a function start outside `function` whether it is a part of it that the compiler put
    /// elsewhere (`foo.cold`), and of its own start whether a jump there goes on with the same call. Code outside
    /// that is reached by a jump and is no known function's start is taken for a part too.
    ///
    /// # Errors
    /// [`NoExits`].
    pub fn of(
        flow: &Flow,
        codes: &[Code<'_>],
        function: Range<u64>,
        is_part: &dyn Fn(u64) -> bool,
    ) -> Result<Exits, NoExits> {
        if flow.a64.is_some() {
            let a64 = aarch64::exits(flow, codes, &function, is_part)?;
            let (insns, exits, is_go) = (Vec::new(), Vec::new(), flow.has_parked_threads());
            return Ok(Exits { insns, exits, function, is_go, a64 });
        }
        let mut search = Search {
            flow,
            codes,
            function: &function,
            is_part,
            insns: vec![],
            exits: vec![],
            seen: BTreeSet::new(),
            has_labels: false,
            has_switch: false,
        };
        let parts = search.own_range()?;
        search.follow(parts)?;
        loop {
            let parts = search.nameless_parts();
            if parts.is_empty() {
                break;
            }
            search.follow(parts)?;
        }
        let Search { insns, mut exits, has_labels, has_switch, .. } = search;
        let depths = Depths::of(&insns, function.start);
        exits.retain(|(number, leave)| *leave != Leave::TailCall || depths.is_tail_call(*number));
        // To what was pushed.
        let is_jump = |number: usize| number > 0 && native::fills_return(&insns[number - 1].insn);
        let jump = exits.iter().find(|(number, leave)| match leave {
            Leave::TailCall => !has_switch,
            Leave::Return => is_jump(*number),
            _ => false,
        });
        if let Some((number, _)) = jump.filter(|_| has_labels) {
            return Err(NoExits::ComputedJump { at: insns[*number].insn.addr });
        }
        let is_branch = |leave: &Leave| matches!(leave, Leave::Branch(_));
        if let Some((number, _)) =
            exits.iter().find(|(n, leave)| is_branch(leave) && !depths.is_tail_call(*n))
        {
            return Err(NoExits::ConditionalTailJump { at: insns[*number].insn.addr });
        }
        let exits: Vec<usize> = exits.into_iter().map(|(number, _)| number).collect();
        match exits.is_empty() {
            true => Err(NoExits::NeverReturns),
            false => Ok(Exits { insns, exits, function, is_go: flow.has_parked_threads(), a64: Vec::new() }),
        }
    }

    /// Image addresses of the exits.
    pub fn addrs(&self) -> impl Iterator<Item = u64> + '_ {
        self.exits.iter().map(|i| self.insns[*i].insn.addr).chain(self.a64.iter().map(|exit| exit.addr))
    }

    /// Whether the exit at this address is a jump to another function: what that one returns, and when, is not seen there.
    pub fn is_jump(&self, addr: u64) -> bool {
        if self.a64.iter().any(|exit| exit.addr == addr && exit.is_jump) {
            return true;
        }
        let mut exits = self.exits.iter().map(|i| &self.insns[*i].insn);
        exits.any(|exit| exit.addr == addr && native::leave(exit, None) != Leave::Return)
    }

    /// An exit that is taken only sometimes: a conditional jump.
    pub fn conditional(&self) -> Option<u64> {
        let mut exits = self.exits.iter().map(|i| &self.insns[*i].insn);
        exits.find(|exit| matches!(native::leave(exit, None), Leave::Branch(_))).map(|exit| exit.addr)
    }

    /// How probes stand before all exits, each with its address: as hooks of `entry`, a probe at the function's
    /// first instruction, where that displaces the exit, and else with a jump of their own.
    ///
    /// # Errors
    /// The first exit that cannot have one, and why.
    pub fn place_all(
        &self,
        flow: &Flow,
        codes: &[Code<'_>],
        mut entry: Option<&mut Placement>,
        taken: &dyn Fn(Range<u64>) -> bool,
        room: &dyn Fn(Pun) -> bool,
    ) -> Result<Vec<(u64, Placement)>, (u64, Refusal)> {
        // What a copy runs instead of the original is its own too: a jump there would be passed by, or come back into.
        let all = |p: &Placement| [Some(p.range()), p.island_patch()].into_iter().flatten();
        if let Some(guarded) = flow.a64 {
            return self.place_all_a64(guarded, codes, entry, taken, room);
        }
        let mut own: Vec<Range<u64>> = entry.iter().flat_map(|e| all(e)).collect();
        let mut placed: Vec<(u64, Placement)> = Vec::new();
        for exit in self.addrs() {
            let before = placed.iter_mut().map(|(_, placement)| placement);
            if entry.as_deref_mut().into_iter().chain(before).any(|p| self.share(codes, p, exit)) {
                continue;
            }
            let is_own = |range: &Range<u64>| own.iter().any(|o| o.start < range.end && range.start < o.end);
            let taken = |range: Range<u64>| is_own(&range) || taken(range);
            let refused = match self.place(flow, codes, exit, &taken, room) {
                Ok(placement) => {
                    own.extend(all(&placement));
                    placed.push((exit, placement));
                    continue;
                }
                Err(why) => (exit, why),
            };
            // No room for a jump of its own: the entry's copy goes on to the exit, if they lie close together.
            let entry = entry.as_mut().ok_or(refused.clone())?;
            if !(self.extend(flow, entry, exit, &taken) && self.share(codes, entry, exit)) {
                return Err(refused);
            }
            own.push(entry.range());
        }
        Ok(placed)
    }

    /// The same in A64 code: each has a branch of its own, but that the function begins with, which has both probes.
    fn place_all_a64(
        &self,
        guarded: Guarded,
        codes: &[Code<'_>],
        mut entry: Option<&mut Placement>,
        taken: &dyn Fn(Range<u64>) -> bool,
        room: &dyn Fn(Pun) -> bool,
    ) -> Result<Vec<(u64, Placement)>, (u64, Refusal)> {
        let mut placed = Vec::new();
        for exit in &self.a64 {
            if let Some(entry) = entry.as_deref_mut().filter(|entry| entry.site == exit.addr) {
                let hook = entry.hooks[0];
                entry.hooks.push(Hook { is_tail_call: exit.is_jump, ..hook });
                continue;
            }
            let function = self.function.contains(&exit.addr).then(|| self.function.clone());
            let asked = Asked { site: exit.addr, function, next_function: None, taken, room };
            let placement = aarch64::place_exit(guarded, codes, &asked, exit.is_jump);
            placed.push((exit.addr, placement.map_err(|why| (exit.addr, why))?));
        }
        Ok(placed)
    }

    /// How a probe stands before the exit at `exit`, one of [`Exits::addrs`].
    ///
    /// The jump to it may stand some instructions earlier: these run first.
    ///
    /// # Errors
    /// The refusal of the place nearest to the exit.
    pub fn place(
        &self,
        flow: &Flow,
        codes: &[Code<'_>],
        exit: u64,
        taken: &dyn Fn(Range<u64>) -> bool,
        room: &dyn Fn(Pun) -> bool,
    ) -> Result<Placement, Refusal> {
        let outside = Refusal::OutsideCode { site: exit };
        let last = self.exits.iter().copied().find(|i| self.insns[*i].insn.addr == exit).ok_or(outside)?;
        let mut refused = None;
        let mut lower: Option<(u64, Found)> = None;
        for first in self.candidates(flow, last) {
            let site = self.insns[first].insn.addr;
            let code = Code::holding(codes, site).ok_or(Refusal::OutsideCode { site })?;
            let function = self.function.contains(&site).then(|| self.function.clone());
            let asked = Asked { site, function, next_function: None, taken, room };
            let climbed = Ladder::new(flow, code, &asked).and_then(|ladder| ladder.climb());
            let between = self.insns[first..last].iter().map(|class| class.insn);
            match climbed.and_then(|found| found.up_to((site, exit), between, taken)) {
                Ok(found) if found.rung <= Rung::Window => {
                    return Ok(Placement::of(site, found, self.hook(codes, site, exit)));
                }
                Ok(found) if lower.as_ref().is_some_and(|(_, best)| best.order() <= found.order()) => {}
                Ok(found) => lower = Some((site, found)),
                Err(refusal) => refused = refused.or(Some(refusal)),
            }
        }
        match lower {
            Some((site, found)) => Ok(Placement::of(site, found, self.hook(codes, site, exit))),
            None => Err(refused.unwrap_or(Refusal::NoRung {
                site: exit,
                why_not: vec![(Rung::Window, Reason::Target { at: exit, from: None })],
                needs: Rung::Trap,
            })),
        }
    }

    fn hook(&self, codes: &[Code<'_>], site: u64, exit: u64) -> Hook {
        let class = self.exits.iter().map(|i| &self.insns[*i]).find(|class| class.insn.addr == exit);
        let leave = class.map_or(Leave::No, |class| native::leave(&class.insn, None));
        let taken = match leave {
            Leave::Branch(to) => Some(to),
            _ => None,
        };
        let is_red_zone_free = self.is_go && leave == Leave::Return;
        let is_tail_call = self.is_jump(exit);
        Hook { taken, is_tail_call, ..Hook::new(codes, site, exit, is_red_zone_free) }
    }

    /// Adds to the placement of another probe of the function a hook before the exit, if it displaces the exit.
    pub fn share(&self, codes: &[Code<'_>], placement: &mut Placement, exit: u64) -> bool {
        let is_displaced = placement.displaced.iter().any(|insn| insn.addr == exit);
        let is_later = match placement.hooks.as_slice() {
            // A function that begins with its exit has both before one instruction.
            [entry] => u64::from(entry.offset) + placement.site <= exit,
            hooks => hooks.last().is_none_or(|h| u64::from(h.offset) + placement.site < exit),
        };
        if is_displaced && is_later {
            placement.hooks.push(self.hook(codes, placement.site, exit));
        }
        is_displaced && is_later
    }

    /// Displaces with another probe of the function what lies between it and the exit, and the exit, if nothing jumps
    /// there and there is only a little.
    fn extend(
        &self,
        flow: &Flow,
        placement: &mut Placement,
        exit: u64,
        taken: &dyn Fn(Range<u64>) -> bool,
    ) -> bool {
        const FARTHEST: u64 = 32;
        let end = placement.displaced.last().map_or(placement.site, Insn::end);
        let Some(first) = self.insns.iter().position(|class| class.insn.addr == end) else { return false };
        let between = || self.insns[first..].iter().take_while(|class| class.insn.addr <= exit);
        let is_straight = between().all(|class| {
            let is_exit = class.insn.addr == exit;
            let leads_on = is_exit || native::falls_through(&class.insn);
            class.forbidden.is_none() && leads_on && !flow.is_target(class.insn.addr)
        });
        let leads_on = placement.displaced.last().is_some_and(native::falls_through);
        // Another exit there has a jump of its own, which the copy would pass by.
        let is_alone = !self.addrs().any(|other| (end..exit).contains(&other));
        let is_near = exit >= end && exit - placement.site < FARTHEST && is_alone;
        let does = is_near
            && leads_on
            && is_straight
            && between().last().is_some_and(|c| c.insn.addr == exit)
            && !taken(end..exit + 1);
        if does {
            placement.displaced.extend(between().map(|class| class.insn));
            placement.displaced_len = placement.displaced.iter().map(|insn| insn.len_bytes() as u8).sum();
            placement.ends_with_flow = between().last().is_some_and(|class| class.ends);
        }
        does
    }

    /// Where the jump might stand, the exit itself first: instructions that lead to it and that nothing jumps behind.
    fn candidates(&self, flow: &Flow, last: usize) -> Vec<usize> {
        let exit = self.insns[last].insn.addr;
        let mut found = vec![last];
        let mut first = last;
        while !flow.is_target(self.insns[first].insn.addr)
            && exit - self.insns[first].insn.addr < u64::from(native::JUMP_BYTES)
            && let Some(before) = first.checked_sub(1)
            && self.insns[before].insn.end() == self.insns[first].insn.addr
            && self.insns[before].forbidden.is_none()
            && !self.exits.contains(&before)
            && native::falls_through(&self.insns[before].insn)
        {
            first = before;
            found.push(first);
        }
        found
    }
}

struct Search<'a> {
    flow: &'a Flow,
    codes: &'a [Code<'a>],
    function: &'a Range<u64>,
    is_part: &'a dyn Fn(u64) -> bool,
    insns: Vec<Class>,
    exits: Vec<(usize, Leave)>,
    /// Instructions outside the function's own range.
    seen: BTreeSet<u64>,
    /// It forms the address of a place within it.
    has_labels: bool,
    /// It has an indirect jump that is a switch.
    has_switch: bool,
}

impl Search<'_> {
    /// Reads the function from start to end. Returns what it jumps to outside.
    fn own_range(&mut self) -> Result<Vec<u64>, NoExits> {
        let mut outside = Vec::new();
        let mut at = self.function.start;
        while at < self.function.end {
            let class = match self.decode(at) {
                // Data or padding behind the last instruction.
                None if self.insns.last().is_some_and(|last| last.ends) => break,
                None => return Err(NoExits::Undecodable { at }),
                Some(class) => class,
            };
            at = class.insn.end();
            outside.extend(self.visit(class)?);
        }
        Ok(outside)
    }

    /// Reads the parts elsewhere.
    fn follow(&mut self, mut parts: Vec<u64>) -> Result<(), NoExits> {
        while let Some(part) = parts.pop() {
            let mut at = part;
            while !self.function.contains(&at) && self.seen.insert(at) {
                if self.seen.len() > FRAGMENT_MAX {
                    return Err(NoExits::TooLarge);
                }
                let class = self.decode(at).ok_or(NoExits::Undecodable { at })?;
                parts.extend(self.visit(class)?);
                if class.ends {
                    break;
                }
                at = class.insn.end();
                // A call that does not return may be the last instruction.
                if self.flow.next_start(class.insn.addr) == Some(at) {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Where jumps lead that are no exits, for the frame still stands: to parts elsewhere that have no name, as in
    /// stripped files.
    fn nameless_parts(&mut self) -> Vec<u64> {
        let depths = Depths::of(&self.insns, self.function.start);
        let mut parts = Vec::new();
        self.exits.retain(|(number, leave)| match leave {
            Leave::Jump(to) | Leave::Branch(to)
                if *to != self.function.start && !depths.is_tail_call(*number) =>
            {
                parts.push(*to);
                false
            }
            _ => true,
        });
        parts
    }

    fn decode(&self, at: u64) -> Option<Class> {
        native::decode(Code::holding(self.codes, at)?.from_addr(at), at)
    }

    /// Takes an instruction in. Returns where it leads outside of what is known to be the function.
    fn visit(&mut self, class: Class) -> Result<Option<u64>, NoExits> {
        let leave = native::leave(&class.insn, self.insns.last().map(|before| &before.insn));
        let label = native::address_formed(&class.insn);
        self.has_labels |= label.is_some_and(|to| to != self.function.start && self.function.contains(&to));
        self.has_switch |= leave == Leave::No && native::is_indirect_jump(&class.insn);
        self.insns.push(class);
        let number = self.insns.len() - 1;
        match leave {
            Leave::No => Ok(None),
            Leave::Return | Leave::TailCall => {
                self.exits.push((number, leave));
                Ok(None)
            }
            Leave::Jump(to) if self.is_restart(to) || self.is_elsewhere(to) => {
                self.exits.push((number, leave));
                Ok(None)
            }
            Leave::Branch(to) if self.is_elsewhere(to) => match native::opposite(&class.insn) {
                Some(_) => {
                    self.exits.push((number, leave));
                    Ok(None)
                }
                None => Err(NoExits::ConditionalTailJump { at: class.insn.addr }),
            },
            Leave::Jump(to) | Leave::Branch(to) if self.function.contains(&to) => Ok(None),
            Leave::Jump(to) | Leave::Branch(to) => Ok(Some(to)),
        }
    }

    /// A tail call of itself.
    fn is_restart(&self, to: u64) -> bool {
        to == self.function.start && !(self.is_part)(to)
    }

    /// Another function's start, or a stub that leads to one and that everyone who calls it passes.
    fn is_elsewhere(&self, to: u64) -> bool {
        let is_start = || self.flow.start_before(to) == Some(to) && !(self.is_part)(to);
        let is_stub = || Code::holding(self.codes, to).is_some_and(|c| native::is_stub(c.from_addr(to), to));
        !self.function.contains(&to) && (is_start() || is_stub())
    }
}
