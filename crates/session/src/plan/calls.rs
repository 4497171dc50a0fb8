//! The sites where a function is left, and of one whose calls are timed.
//!
//! For:     `ur:` and `lat`.
//! State:   none.
//! Context: control; touches nothing.
//! Keeps:   C1 a function has a probe before every exit that is known, or is refused: a call that left by an
//!             exit without one would look unwound.
//! Checked: testkit `returns`.

use super::consumer::{check_faults, check_shadow_stack, check_stack, consumer, is_go_code};
use super::no_jump::NoJump;
use super::site::kernel_placement;
use super::{Match, Placed, Planner, Verb, codes};
use crate::facts::site::{Action, Consumer, SitePlan};
use image::{ElfImage, ImageAddr, When};
use insn::{Exits, Hook, NoExits, Placement, Refusal};
use std::ops::Range;

/// A call's key has 16 bits for its function.
const FUNCTIONS_MAX: u32 = u16::MAX as u32;

/// Where a probe of the kernel may stand: before an exit, or at the entry.
struct KernelPlace {
    addr: u64,
    /// There stands a jump to another function.
    is_jump: bool,
}

impl Planner<'_> {
    /// The entry and all exits, by jumps or, where one of them has no room for that, by the kernel.
    pub(super) fn calls(
        &self,
        wanted: &Match,
        verb: Verb,
        placed: &mut Placed,
    ) -> Result<Vec<SitePlan>, String> {
        self.calls_by_jumps(wanted, verb, placed)
            .or_else(|why| self.calls_by_kernel(wanted, verb, placed).ok_or(why))
    }

    /// None if the kernel cannot either: it has the same exits, and cannot tell whether a conditional jump is taken. In Go
    /// stacks move, and a call is not known by its place.
    fn calls_by_kernel(&self, wanted: &Match, verb: Verb, placed: &mut Placed) -> Option<Vec<SitePlan>> {
        let number = placed.functions;
        let exits = match self.exits_for_kernel(wanted) {
            Err(NoExits::NeverReturns) if matches!(verb, Verb::Trace { .. }) => Vec::new(),
            other => other.ok()?,
        };
        if number > FUNCTIONS_MAX
            || wanted.mark.is_some()
            // Its programs walk no stacks.
            || verb == (Verb::Trace { has_stacks: true })
            || is_go_code(&self.images[&wanted.module].image, wanted)
        {
            return None;
        }
        match self.placement(wanted, placed) {
            Ok(_) | Err(NoJump::Refused(Refusal::NoRung { .. }) | NoJump::ShadowStack(_)) => {}
            // Nobody may stand there.
            Err(_) => return None,
        }
        let (enter, leave) = ends(verb, number, false);
        let mut at_entry = vec![enter];
        // One that begins with its exit has both there.
        let first = exits.iter().find(|exit| exit.addr == wanted.addr);
        at_entry.extend(first.map(|exit| leave(exit.is_jump)));
        let begins = KernelPlace { addr: wanted.addr, is_jump: first.is_some_and(|exit| exit.is_jump) };
        let mut sites = vec![self.kernel_site(wanted, &begins, wanted.name.clone(), at_entry, placed)?];
        for exit in exits.iter().filter(|exit| exit.addr != wanted.addr) {
            let name = format!("{} at {:#x}", wanted.name, exit.addr);
            sites.push(self.kernel_site(wanted, exit, name, vec![leave(exit.is_jump)], placed)?);
        }
        placed.functions += 1;
        Some(sites)
    }

    /// The exits before which the kernel's probes may stand.
    fn exits_for_kernel(&self, wanted: &Match) -> Result<Vec<KernelPlace>, NoExits> {
        let loaded = &self.images[&wanted.module];
        let function = whole_function(wanted).map_err(|_| NoExits::NeverReturns)?;
        let exits = find_exits(&loaded.image, &loaded.flow, function, false)?;
        match exits.conditional() {
            Some(at) => Err(NoExits::ConditionalTailJump { at }),
            None => {
                Ok(exits.addrs().map(|addr| KernelPlace { addr, is_jump: exits.is_jump(addr) }).collect())
            }
        }
    }

    fn kernel_site(
        &self,
        wanted: &Match,
        place: &KernelPlace,
        name: String,
        consumers: Vec<Consumer>,
        placed: &Placed,
    ) -> Option<SitePlan> {
        let loaded = &self.images[&wanted.module];
        let placement = kernel_placement(&loaded.image, place.addr, |range| {
            placed.is_taken(range, self.module(wanted.module).bias.0)
        })?;
        let site = self.site_plan(wanted, name, placement, vec![Action::Consumers(consumers)]).ok()?;
        Some(SitePlan { is_tail_call: place.is_jump, ..site })
    }

    fn calls_by_jumps(
        &self,
        wanted: &Match,
        verb: Verb,
        placed: &mut Placed,
    ) -> Result<Vec<SitePlan>, String> {
        let loaded = &self.images[&wanted.module];
        let function = whole_function(wanted)?;
        check_stack(&loaded.image, wanted).map_err(|why| why.to_string())?;
        let is_go = is_go_code(&loaded.image, wanted);
        let mut entry = self.placement(wanted, placed).map_err(|why| why.to_string())?;
        let exits = match find_exits(&loaded.image, &loaded.flow, function, is_go) {
            // Calls of `abort` and the like can be seen, not timed.
            Err(NoExits::NeverReturns) if matches!(verb, Verb::Trace { .. }) => None,
            other => Some(other.map_err(|why| unknown_exits(&why))?),
        };
        let number = placed.functions;
        if number > FUNCTIONS_MAX {
            return Err(format!("more than {FUNCTIONS_MAX} functions"));
        }
        let (enter, leave) = ends(verb, number, is_go);
        let exits = match exits {
            Some(exits) => self.before_exits(wanted, &exits, Some(&mut entry), placed)?,
            None => Vec::new(),
        };
        let at_exit = |hook: &Hook| Action::Consumers(vec![leave(hook.is_tail_call)]);
        // One more hook for each exit that the entry's jump displaces.
        let at_entry = std::iter::once(Action::Consumers(vec![enter]));
        let actions = at_entry.chain(entry.hooks[1..].iter().map(at_exit)).collect();
        let mut sites = vec![self.site_plan(wanted, wanted.name.clone(), entry, actions)?];
        for (exit, placement) in exits {
            let name = format!("{} at {exit:#x}", wanted.name);
            let actions = placement.hooks.iter().map(at_exit).collect();
            sites.push(self.site_plan(wanted, name, placement, actions)?);
        }
        placed.functions += 1;
        Ok(sites)
    }

    /// A probe before every exit, by jumps or all by the kernel.
    pub(super) fn returns(
        &self,
        wanted: &Match,
        verb: Verb,
        placed: &Placed,
    ) -> Result<Vec<SitePlan>, String> {
        let by_jumps = self.returns_by_jumps(wanted, verb, placed);
        by_jumps.or_else(|why| self.returns_by_kernel(wanted, verb, placed).ok_or(why))
    }

    fn returns_by_kernel(&self, wanted: &Match, verb: Verb, placed: &Placed) -> Option<Vec<SitePlan>> {
        let image = &self.images[&wanted.module].image;
        let consumer = consumer(verb, When::Return, image, wanted).ok()??;
        let name = format!("{}%return", wanted.name);
        let site = |exit: KernelPlace| {
            let mut site = self.kernel_site(wanted, &exit, name.clone(), vec![consumer], placed)?;
            site.exit_of = Some(wanted.addr.wrapping_add(site.bias));
            Some(site)
        };
        self.exits_for_kernel(wanted).ok()?.into_iter().map(site).collect()
    }

    fn returns_by_jumps(&self, wanted: &Match, verb: Verb, placed: &Placed) -> Result<Vec<SitePlan>, String> {
        let loaded = &self.images[&wanted.module];
        let function = whole_function(wanted)?;
        let consumer = consumer(verb, When::Return, &loaded.image, wanted)?;
        check_stack(&loaded.image, wanted).map_err(|why| why.to_string())?;
        let action = Action::Consumers(consumer.into_iter().collect());
        let is_go = is_go_code(&loaded.image, wanted);
        let exits = find_exits(&loaded.image, &loaded.flow, function, is_go);
        let exits = exits.map_err(|why| unknown_exits(&why))?;
        let name = format!("{}%return", wanted.name);
        let mut sites = Vec::new();
        for (_, placement) in self.before_exits(wanted, &exits, None, placed)? {
            let actions = placement.hooks.iter().map(|_| action.clone()).collect();
            let mut site = self.site_plan(wanted, name.clone(), placement, actions)?;
            site.exit_of = Some(wanted.addr.wrapping_add(site.bias));
            sites.push(site);
        }
        Ok(sites)
    }

    fn before_exits(
        &self,
        wanted: &Match,
        exits: &Exits,
        entry: Option<&mut Placement>,
        placed: &Placed,
    ) -> Result<Vec<(u64, Placement)>, String> {
        let loaded = &self.images[&wanted.module];
        let bias = self.module(wanted.module).bias.0;
        let taken = |range: Range<u64>| placed.is_taken(range, bias);
        let room = |pun| self.has_room(wanted, pun);
        let placements = exits
            .place_all(&loaded.flow, &codes(&loaded.image), entry, &taken, &room)
            .map_err(|(exit, why)| refused_exit(exit, &why))?;
        let faults = |p: &Placement| check_faults(&loaded.image, wanted, p).map_err(|why| why.to_string());
        placements.iter().try_for_each(|(_, p)| faults(p))?;
        let pid = self.process.pid;
        let shadow = |p: &Placement| check_shadow_stack(pid, p).map_err(|why| why.to_string());
        placements.iter().try_for_each(|(_, p)| shadow(p))?;
        Ok(placements)
    }
}

/// What is called at a function's entry and before its exits; at an exit that is a jump to another function, or not.
fn ends(verb: Verb, function: u32, is_go: bool) -> (Consumer, impl Fn(bool) -> Consumer) {
    let has_stacks = verb == Verb::Trace { has_stacks: true };
    let trace = move |is_exit: bool, is_jump| Consumer::Trace {
        function,
        is_go,
        is_exit,
        walks: has_stacks && !is_exit,
        is_jump,
    };
    let enter = match verb {
        Verb::Trace { .. } => trace(false, false),
        _ => Consumer::Enter { function, is_go },
    };
    let leave = move |is_jump| match verb {
        Verb::Trace { .. } => trace(true, is_jump),
        _ => Consumer::Leave { function, is_go },
    };
    (enter, leave)
}

fn whole_function(wanted: &Match) -> Result<Range<u64>, String> {
    let function = wanted.function.clone().filter(|f| f.start == wanted.addr && f.end > f.start);
    function.ok_or_else(|| "it is not the start of a function whose end is known".into())
}

pub(super) fn find_exits(
    image: &ElfImage,
    flow: &insn::Flow,
    function: Range<u64>,
    is_go: bool,
) -> Result<Exits, NoExits> {
    let start = function.start;
    // gcc and clang put what is rarely run into a function of its own name's; and Go begins a function again when
    // its stack has grown.
    let is_part = |at: u64| {
        let names = image.function_at(ImageAddr(at)).map_or(&[][..], |f| f.names.as_slice());
        is_go && at == start || names.iter().any(|n| n.text.contains(".cold"))
    };
    Exits::of(flow, &codes(image), function, &is_part)
}

/// Why an exit cannot have a probe.
pub(super) fn refused_exit(exit: u64, why: &Refusal) -> String {
    format!("it is left at {exit:#x}, and there {why}")
}

pub(super) fn unknown_exits(why: &NoExits) -> String {
    format!("its exits are unknown: {why}")
}
