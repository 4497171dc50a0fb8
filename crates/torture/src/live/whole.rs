//! Whole probes that come and go in the session.
//!
//! For:     `world`, after the consumers.
//! State:   plans of the functions that the session was not attached with.
//! Context: control; each round stops the target to arm, to take out, and to look whether it is empty.
//! Keeps:   as in the parent.
//! Checked: `--broken no-wait` and `wrong-rank` give places back too early; the room is compared after each round.

use super::oracle::Oracle;
use super::target::BUSY;
use super::world::{LATE, SETTLE, World, plan};
use session::{Action, Came, Consumer, SitePlan, Went};
use std::collections::BTreeMap;

impl World<'_> {
    /// Entries and exits of functions come in one stop and go in one, and have counted all calls between.
    pub(super) fn whole(&mut self) -> Result<(), String> {
        if self.options.probes == 0 {
            return Ok(());
        }
        let plans = plan(self.target.pid(), &LATE)?;
        let room = self.session.free_room();
        for round in 0..self.options.probes {
            let mut sites = plans.clone();
            // Compiled in, in every second round.
            for site in sites.iter_mut().filter(|_| round % 2 == 1) {
                site.actions = vec![Action::Count; site.actions.len().min(1)];
            }
            self.one_round(sites)?;
            if self.session.free_room() != room {
                return Err(format!("room was lost: {room:?} became {:?}", self.session.free_room()));
            }
            self.tally.probes += plans.len() as u64;
        }
        Ok(())
    }

    fn one_round(&mut self, sites: Vec<SitePlan>) -> Result<(), String> {
        let over = Oracle::before(self.shared);
        let wanted = sites.len();
        let Came { armed, missed, .. } = self.session.add_probes(sites).map_err(|e| e.to_string())?;
        let begun: [u64; BUSY] = std::array::from_fn(|f| self.shared.begun(f));
        if armed.len() != wanted {
            return Err(format!("{} of {wanted} probes came: {missed:?}", armed.len()));
        }
        let guests: Vec<_> =
            armed.iter().flat_map(|at| self.session.hooks(*at)).map(|h| (h, Consumer::Count)).collect();
        self.session.change(&guests, &[]).map_err(|e| e.to_string())?;
        std::thread::sleep(std::time::Duration::from_millis(self.rng.below(3)));
        let last = Oracle::before(self.shared);
        let receipt = self.session.remove_probes(&armed).map_err(|e| e.to_string())?;
        if !receipt.is_verified() || receipt.restored != wanted {
            return Err(format!("{receipt:?}"));
        }
        let settled = self.session.settle_probes(SETTLE).map_err(|e| e.to_string())?;
        if let Some(late) = settled.late {
            return Err(format!("probes that went were not settled within {SETTLE:?}: {late:?}"));
        }
        let most: [u64; BUSY] = std::array::from_fn(|f| self.shared.begun(f));
        let mut exits: BTreeMap<u64, (usize, u64)> = BTreeMap::new();
        for Went { plan, hits, .. } in settled.went {
            let function = function_of(&plan)?;
            // A function's returns are counted at all its exits together.
            let at = plan.exit_of.map_or(plan.addr(), |entry| entry + 1);
            exits.entry(at).or_insert((function, 0)).1 += hits;
        }
        for (function, hits) in exits.into_values() {
            let of = |counts: &[u64; BUSY]| counts.get(function).copied().unwrap_or(0);
            let least = of(&last).saturating_sub(of(&begun));
            let most = of(&most).saturating_sub(of(&over));
            if !(least..=most).contains(&hits) {
                return Err(format!("a probe of function {function} counted {hits}, not {least} to {most}"));
            }
            self.tally.checked += 1;
        }
        Ok(())
    }
}

/// The number of a site's function.
pub(super) fn function_of(plan: &SitePlan) -> Result<usize, String> {
    let digit = plan.name.split_once("live_fn_").and_then(|(_, number)| number.chars().next());
    Ok(digit.and_then(|d| d.to_digit(10)).ok_or("a site without a number")? as usize)
}
