//! Places of a script that the kernel has beside those in processes.
//!
//! For:     live: where some places have a jump, and others the kernel's probe alone.
//! State:   live's.
//! Context: control; the engine process, one thread.
//! Keeps:   D1 the kernel has what was named and no jump can be at, and what cannot be without that: all places of programs that share a
//!             map with it which does not add up ([`Side`]), and the entry of a function whose return it has, where it puts its trap.
//!          D2 what is to be the kernel's is out of the processes first.
//!          D3 what the kernel cannot do leaves the processes as they are, and the place is left out by name.
//! Checked: tests below; testkit `sides`.

use super::{Live, Patterns, Which, causes, running};
use crate::probes::KERNEL_PRICE;
use crate::script::loaded::{Loaded, Part};
use crate::script::place::{LeftOut, wanted};
use lang::program::{Event, Script};
use lang::run::Shared;
use lang::{Side, Targets};
use std::collections::BTreeSet;

/// What goes to the kernel.
#[derive(Debug)]
struct Division {
    places: BTreeSet<u32>,
    part: Part,
}

impl Division {
    /// That of some places, with all that cannot be without them.
    fn of(script: &Script, targets: &Targets, named: BTreeSet<u32>) -> Division {
        let mut places = named;
        loop {
            let before = places.len();
            let at_hits = programs_at(script, &places);
            let side = Side::of(script, &at_hits);
            places.extend(side.programs.iter().flat_map(|program| places_of(script, *program)));
            places.extend(entries_of_returns(script, targets, &places));
            if places.len() == before {
                return Division { places, part: Part { side, at_hits } };
            }
        }
    }
}

/// Programs that have one of these places.
fn programs_at(script: &Script, places: &BTreeSet<u32>) -> BTreeSet<usize> {
    let has_any = |program: &usize| places_of(script, *program).any(|place| places.contains(&place));
    (0..script.probes.len()).filter(has_any).collect()
}

fn places_of(script: &Script, program: usize) -> impl Iterator<Item = u32> + '_ {
    let sites = match &script.probes[program].event {
        Event::Target(target) => target.sites.as_slice(),
        _ => &[],
    };
    sites.iter().map(|(place, _)| *place)
}

/// The places where functions begin of which these are returns.
fn entries_of_returns(script: &Script, targets: &Targets, places: &BTreeSet<u32>) -> Vec<u32> {
    let at = |number: &u32| {
        let place = &targets.places()[*number as usize];
        (place.file, place.addr)
    };
    let is_return = |number: &&u32| targets.places()[**number as usize].is_return;
    let returns: BTreeSet<_> = places.iter().filter(is_return).map(at).collect();
    let all = (0..script.probes.len()).flat_map(|program| places_of(script, program));
    all.filter(|number| returns.contains(&at(number))).collect()
}

impl Live<'_> {
    /// Has the kernel's programs run where they were asked for by name and no jump can be, which is told with the price.
    ///
    /// # Errors
    /// What was taken out of a process for it cannot be put in again, or the kernel's probes cannot be put in.
    pub(super) fn divide(&mut self, script: &Script, maps: &Shared) -> Result<(), String> {
        let Some(patterns) = self.how.divides.filter(|_| self.by_kernel.is_none()) else { return Ok(()) };
        let is_named = |number: &u32| {
            let place = &self.targets.places()[*number as usize];
            patterns == Patterns::Taken || self.targets.specs()[place.spec].is_exact()
        };
        let takes = |out: &&LeftOut| out.is_curable && out.places.iter().any(is_named);
        let named: BTreeSet<u32> =
            self.left_out.iter().filter(takes).flat_map(|out| out.places.iter().copied()).collect();
        if named.is_empty() {
            return Ok(());
        }
        let Division { places, part } = Division::of(script, &self.targets, named.clone());
        let side = part.side.clone();
        let loaded = Loaded::load(script, (self.child(), self.began), self.names.clone(), Some(part));
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(why) => {
                let of = self.left_out.iter_mut().filter(|out| !out.places.is_disjoint(&named));
                of.for_each(|out| {
                    out.why = format!("{}; nor by the kernel: {why}", out.why);
                    out.is_curable = false;
                });
                return Ok(());
            }
        };
        let asked = self.left_out.iter().filter(|out| !out.places.is_disjoint(&named));
        let asked: Vec<LeftOut> = asked.cloned().collect();
        let moved = self.placed.iter().filter(|(number, _)| places.contains(number));
        let moved: Vec<String> = moved.map(|(_, name)| name.clone()).collect();
        self.apart.clone_from(&places);
        if moved.is_empty() {
            self.left_out.retain(|out| out.places.is_disjoint(&places));
        } else {
            self.enter_anew(script, maps)?;
        }
        self.hand_over(loaded, places, script, maps).map_err(|why| format!("ERROR: {why}"))?;
        if self.how.says {
            let maps: Vec<&str> = side.maps.iter().map(|map| script.maps[*map].name.as_str()).collect();
            say(&asked, &moved, &maps);
        }
        Ok(())
    }

    /// Takes everything out and puts in again what is to be in processes.
    fn enter_anew(&mut self, script: &Script, maps: &Shared) -> Result<(), String> {
        self.family.leave_all();
        self.check_out().map_err(|why| format!("ERROR: {why}"))?;
        self.placed.clear();
        self.left_out.clear();
        self.later.forget();
        match &self.which {
            Which::All => {
                for pid in running(&wanted(script, &self.targets)) {
                    self.enter_or_say(pid, script, maps);
                }
                Ok(())
            }
            _ => self.enter_named(&self.named(), script, maps),
        }
    }
}

/// Which places the kernel has, why, and what that costs: those that were asked for, and those that went with them.
fn say(asked: &[LeftOut], moved: &[String], maps: &[&str]) {
    let names: Vec<&str> = asked.iter().map(|out| out.name.as_str()).collect();
    eprintln!(
        "WARNING: {} the kernel's probe ({}), for a trap at each hit, about {KERNEL_PRICE}x dearer; --backend inproc takes none",
        have(&names),
        causes(asked)
    );
    if !moved.is_empty() {
        let names: Vec<&str> = moved.iter().map(String::as_str).collect();
        let what = match maps {
            [] => "the kernel sees a return by a probe at the function's entry".to_owned(),
            maps => format!("{} is one side's alone: its values do not add up", maps.join(", ")),
        };
        eprintln!("WARNING: {} it too: {what}", have(&names));
    }
}

/// Who has something, by name if they are few.
fn have(names: &[&str]) -> String {
    const EACH: usize = 3;
    match names {
        [name] => format!("{name} has"),
        names if names.len() <= EACH => format!("{} have", names.join(", ")),
        names => format!("{} places have", names.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_the_kernels_probe_is_named_if_that_is_short() {
        assert_eq!(have(&["a"]), "a has");
        assert_eq!(have(&["a", "b", "c"]), "a, b, c have");
        assert_eq!(have(&["a", "b", "c", "d"]), "4 places have");
    }
}
