//! The sites where a function is left, and of one whose calls are timed.
//!
//! For:     `ur:` and `lat`.
//! State:   none.
//! Context: control; touches nothing.
//! Keeps:   C1 a function has a probe before every exit that is known, or is refused: a call that left by an
//!             exit without one would look unwound.
//! Checked: testkit `returns`.

use super::consumer::{check_faults, check_shadow_stack, check_stack, consumer, is_go_code};
use super::{Match, Placed, Planner, Verb, codes};
use crate::facts::site::{Action, Consumer, SitePlan};
use image::{ElfImage, ImageAddr, When};
use insn::{Exits, NoExits, Placement, Refusal};
use std::ops::Range;

/// A call's key has 16 bits for its function.
const FUNCTIONS_MAX: u32 = u16::MAX as u32;

impl Planner<'_> {
    pub(super) fn calls(
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
            Err(NoExits::NeverReturns) if verb == Verb::Trace => None,
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
        // One more hook for each exit that the entry's jump displaces.
        let actions = [enter].into_iter().chain(entry.hooks[1..].iter().map(|_| leave.clone())).collect();
        let mut sites = vec![self.site_plan(wanted, wanted.name.clone(), entry, actions)?];
        for (exit, placement) in exits {
            let name = format!("{} at {exit:#x}", wanted.name);
            let actions = placement.hooks.iter().map(|_| leave.clone()).collect();
            sites.push(self.site_plan(wanted, name, placement, actions)?);
        }
        placed.functions += 1;
        Ok(sites)
    }

    /// A probe before every exit.
    pub(super) fn returns(
        &self,
        wanted: &Match,
        verb: Verb,
        placed: &Placed,
    ) -> Result<Vec<SitePlan>, String> {
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

/// What is called at a function's entry and before its exits.
fn ends(verb: Verb, function: u32, is_go: bool) -> (Action, Action) {
    let trace = |is_exit| Consumer::Trace { function, is_go, is_exit };
    let (enter, leave) = match verb {
        Verb::Trace => (trace(false), trace(true)),
        _ => (Consumer::Enter { function, is_go }, Consumer::Leave { function, is_go }),
    };
    (Action::Consumers(vec![enter]), Action::Consumers(vec![leave]))
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
