//! Jumps that are taken out for a while and put back, while all else of their probes stays.
//!
//! For:     a budget: what is too dear is in for a part of the time.
//! State:   `Armed::is_out`.
//! Context: control. One stop for all that are lifted together, and one for all that are lowered.
//! Keeps:   L1 a function's sites are lifted together, and lowered together or not at all.
//!          L2 cells, lists and trampolines stay: a hit that is inside ends as it began, and counts go on where they were.
//!          L3 a call that began before its function was lowered is not taken for one that was seen from its entry on.
//!          L4 a detach, and whoever recovers the process, finds a lifted site as one that is restored.
//! Checked: tests below; testkit `budget`.

use crate::arm::probes::{NotDone, caused};
use crate::facts::error::Broken;
use crate::facts::site::{Armed, Link, Missed};
use crate::find::identity;
use crate::find::maps::image_maps;
use crate::hold::tracer::apart;
use crate::hold::world::Hurry;
use crate::leave::receipt::Receipt;
use crate::live::change::NotChanged;
use crate::live::lists::HookId;
use crate::live::session::Session;
use std::collections::BTreeSet;
use std::time::Duration;

/// What [`Session::lower`] has done.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// Sites that are in again.
    pub sites: usize,
    /// Those that stay out for now, and why.
    pub missed: Vec<(String, Missed)>,
    /// The longest time that a thread stood still for it.
    pub stall: Duration,
}

impl Session {
    /// Takes the jumps of the functions at these addresses out, in one stop, and leaves all else as it is. How long a thread stood
    /// still for it.
    ///
    /// Their hits are not counted until [`lower`](Self::lower). What is out already is left so.
    ///
    /// # Context
    /// Control. All threads stand still once.
    /// # Cost
    /// A stop. Afterwards the code runs as if it had no probe.
    /// # Errors
    /// [`NotDone::Refused`] if there is no jump of ours, or one of a mark, whose semaphore says that it is in; then nothing was
    /// changed. After [`NotDone::Broken`] it is not known which are out.
    pub fn lift(&mut self, addrs: &[u64]) -> Result<Duration, NotDone> {
        let _hurry = Hurry::begin();
        let pid = self.pid();
        apart(|| self.lift_here(addrs)).map_err(|why| caused(pid, why))
    }

    /// Puts jumps back that [`lift`](Self::lift) has taken out, in one stop. What cannot be put back now may be later.
    ///
    /// # Context
    /// Control. All threads stand still once.
    /// # Errors
    /// [`NotDone::Refused`] if there is no probe of ours. After [`NotDone::Broken`] those that were written are in, and the others
    /// are out.
    pub fn lower(&mut self, addrs: &[u64]) -> Result<Lowered, NotDone> {
        let _hurry = Hurry::begin();
        let pid = self.pid();
        apart(|| self.lower_here(addrs)).map_err(|why| caused(pid, why))
    }

    /// The sites of these functions.
    fn sites_of(&self, addrs: &[u64]) -> Result<BTreeSet<usize>, NotChanged> {
        let sites: BTreeSet<usize> = self.whole_of(addrs).into_iter().collect();
        let found: BTreeSet<u64> = sites.iter().map(|i| self.armed[*i].plan.addr()).collect();
        match addrs.iter().find(|addr| !found.contains(addr)) {
            Some(addr) => Err(NotChanged::NoProbe(*addr)),
            None => Ok(sites),
        }
    }

    fn lift_here(&mut self, addrs: &[u64]) -> Result<Duration, NotDone> {
        let mut going = self.sites_of(addrs)?;
        if let Some(mark) = going.iter().find(|i| self.armed[**i].plan.semaphore.is_some()) {
            return Err(NotChanged::NoProbe(self.armed[*mark].plan.addr()).into());
        }
        going.retain(|i| self.armed[*i].is_live);
        let links: Vec<Link<'_>> = going.iter().map(|i| self.armed[*i].link()).collect();
        let mut receipt = Receipt::default();
        self.take_out(&links, &mut receipt)?;
        let foreign: BTreeSet<String> = receipt.foreign().map(str::to_owned).collect();
        for i in going {
            let armed = &mut self.armed[i];
            // What somebody else has changed is left to the detach, which says so.
            let is_ours = !foreign.contains(&armed.plan.name);
            (armed.is_live, armed.is_out) = (!is_ours, is_ours);
        }
        self.longest_stall = self.longest_stall.max(receipt.longest_stall);
        Ok(receipt.longest_stall)
    }

    fn lower_here(&mut self, addrs: &[u64]) -> Result<Lowered, NotDone> {
        let mappings = image_maps(self.pid())?;
        let mut coming = self.sites_of(addrs)?;
        coming.retain(|i| self.armed[*i].is_out && identity::is_mapped(&mappings, &self.armed[*i].plan));
        let hooks = coming.iter().flat_map(|i| self.armed[*i].hooks.clone().map(HookId));
        self.begin_calls_anew(&hooks.collect::<Vec<_>>());
        // The steps of the attach see these alone, and leave them in their order.
        let mut places: Vec<Option<Armed>> = std::mem::take(&mut self.armed).into_iter().map(Some).collect();
        self.armed = coming.iter().filter_map(|i| places[*i].take()).collect();
        let (kernel, before) = (self.kernel.take(), std::mem::take(&mut self.missed));
        let done = self.arm_all();
        (self.kernel, self.missed) = (kernel, before);
        let mut lowered = Lowered { sites: 0, missed: Vec::new(), stall: Duration::ZERO };
        for (i, mut armed) in coming.into_iter().zip(std::mem::take(&mut self.armed)) {
            armed.is_out = !armed.is_live;
            lowered.sites += usize::from(armed.is_live);
            let missed = armed.missed.take();
            lowered.missed.extend(missed.map(|why| (armed.plan.name.clone(), why)));
            places[i] = Some(armed);
        }
        self.armed = places.into_iter().flatten().collect();
        lowered.stall = done.map_err(Broken::from)?;
        self.longest_stall = self.longest_stall.max(lowered.stall);
        Ok(lowered)
    }
}

#[cfg(test)]
mod tests;
