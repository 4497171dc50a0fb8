//! Whole probes that come and go in a live session.
//!
//! For:     whoever holds a session that was attached with room for them.
//! State:   in the book, what was taken out and may still have a thread in it.
//! Context: control. One stop for all that come together, and one for all that go; between stops the process runs.
//! Keeps:   B1 who comes is armed by the steps of the attach; nothing stays of one that is missed.
//!          B2 no two probes of a session cover one byte.
//!          B3 the place of one that went is used for something else only after a grace period that began when it was out, once
//!             a stop has shown no thread in it or on its way back to it, and no forked child has its jump.
//!          B4 what it has counted is told then, to the last hit.
//! Checked: tests below; `torture live --probes`.

use crate::arm::attach::BLOCK_UNIT;
use crate::arm::numbers::Numbers;
use crate::facts::error::Broken;
use crate::facts::site::{Action, Consumer, Missed, SitePlan};
use crate::find::identity;
use crate::find::maps::{image_maps, mapping_at};
use crate::find::process;
use crate::find::proof::Gone as Ended;
use crate::hold::tracer::apart;
use crate::hold::world::Hurry;
use crate::leave::receipt::Receipt;
use crate::live::change::{NotChanged, Settled};
use crate::live::lists::{ConsumerId, Gone, is_of_change};
use crate::live::readers::Late;
use crate::live::session::Session;
use image::Mapping;
use insn::Rung;
use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};
use text::Trampoline;
use wire::TrampolineHeader;

/// Why no probe came or went.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum NotDone {
    /// What was asked for cannot be; nothing was changed, and nobody stopped.
    Refused(NotChanged),
    /// The process could not be stopped or written. Probes that may have been written by then are the session's.
    Broken(Broken),
}

impl fmt::Display for NotDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotDone::Refused(why) => why.fmt(f),
            NotDone::Broken(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for NotDone {}

impl From<NotChanged> for NotDone {
    fn from(why: NotChanged) -> NotDone {
        NotDone::Refused(why)
    }
}

impl From<Broken> for NotDone {
    fn from(why: Broken) -> NotDone {
        NotDone::Broken(why)
    }
}

/// Probes that have come.
#[derive(Clone, Debug)]
pub struct Came {
    /// Where one stands now.
    pub armed: Vec<u64>,
    /// Those that were not armed, and why.
    pub missed: Vec<(SitePlan, Missed)>,
    /// The longest time that a thread stood still for it.
    pub stall: Duration,
}

/// A probe that went, with all that it has counted.
#[derive(Clone, Debug)]
pub struct Went {
    /// What it was planned as.
    pub plan: SitePlan,
    /// Hits, of the target's own threads.
    pub hits: u64,
    /// Hits in forked children.
    pub children_hits: u64,
    /// What each consumer that it went with has in its cells; of a count that was compiled in, none.
    pub consumers: Vec<(ConsumerId, Consumer, Vec<u64>)>,
}

/// What [`Session::settle_probes`] has found.
#[derive(Debug, Default)]
pub struct SettledProbes {
    /// Probes that no thread will come by again.
    pub went: Vec<Went>,
    /// Consumers that were taken off by [`Session::change`].
    pub consumers: Settled,
    /// Probes that are out, and of which that cannot be said yet.
    pub waiting: usize,
    /// Why.
    pub late: Option<Late>,
}

/// What one probe has of the session's room, by number.
pub(super) struct Plot {
    pub addr: u64,
    pub region: Option<usize>,
    pub blocks: Range<u32>,
    pub cells: Range<u32>,
    pub descriptors: Vec<Range<u32>>,
    pub hooks: Range<u32>,
}

impl Session {
    /// Puts probes on more sites, in one stop for all of them.
    ///
    /// They are planned as for an attach ([`plan`](crate::plan())). What times or shows calls cannot come so.
    ///
    /// # Context
    /// Control. All threads stand still once.
    /// # Errors
    /// Nothing was changed, or [`NotDone::Broken`]; single sites are missed with a reason instead.
    pub fn add_probes(&mut self, sites: Vec<SitePlan>) -> Result<Came, NotDone> {
        let _hurry = Hurry::begin();
        let pid = self.pid();
        apart(|| self.add_here(sites)).map_err(|why| caused(pid, why))
    }

    /// Takes probes out by their addresses, in one stop for all of them; of a function's returns all go together.
    ///
    /// Hits that are inside end as they began. [`settle_probes`](Self::settle_probes) says when they have, and what was counted.
    ///
    /// # Context
    /// Control. All threads stand still once.
    /// # Errors
    /// Nothing was changed, or [`NotDone::Broken`].
    pub fn remove_probes(&mut self, addrs: &[u64]) -> Result<Receipt, NotDone> {
        let _hurry = Hurry::begin();
        let pid = self.pid();
        apart(|| self.remove_here(addrs)).map_err(|why| caused(pid, why))
    }

    /// Waits until no thread can come by what was taken out, `patience` at most, and uses its room anew.
    ///
    /// # Context
    /// Control, may wait. Threads stand still for each look whether one is inside: one, as a rule; none if nothing has gone.
    /// # Errors
    /// The process could not be looked at.
    pub fn settle_probes(&mut self, patience: Duration) -> Result<SettledProbes, Broken> {
        let until = Instant::now() + patience;
        // First: of a probe's cells some may be shown for a consumer that was taken off before.
        let mut settled = SettledProbes { consumers: self.settle(patience), ..SettledProbes::default() };
        settled.late = settled.consumers.late.clone();
        if self.places.gone().next().is_some() && settled.late.is_none() {
            let _hurry = Hurry::begin();
            let waited = self.wait_for_gone(until, &mut settled.consumers);
            let out = match waited {
                Err(_) | Ok(Some(Late::Over)) if Ended::proven(&self.memory).is_some() => {
                    self.places.book.take(|off| !is_of_change(off))
                }
                other => {
                    settled.late = other.map_err(|broken| process::cause(self.pid(), broken))?;
                    self.places.book.ripe(&self.readers)
                }
            };
            let probes = self.give_back(out, &mut settled.consumers);
            settled.went = probes.into_iter().map(|gone| self.reclaim(gone)).collect();
        }
        settled.waiting = self.places.gone().count();
        Ok(settled)
    }
}

pub(super) fn caused(pid: i32, why: NotDone) -> NotDone {
    match why {
        NotDone::Broken(broken) => NotDone::Broken(process::cause(pid, broken)),
        refused => refused,
    }
}

/// Who comes.
impl Session {
    fn add_here(&mut self, sites: Vec<SitePlan>) -> Result<Came, NotDone> {
        for consumer in sites.iter().flat_map(SitePlan::consumers) {
            self.check(consumer)?;
        }
        let mappings = image_maps(self.pid())?;
        let (mut fit, mut missed): (Vec<SitePlan>, Vec<_>) = (Vec::new(), Vec::new());
        for site in sites {
            match self.against(&site, &fit, &mappings) {
                Some(why) => missed.push((site, why)),
                None => fit.push(site),
            }
        }
        let places = self.take_places(&fit)?;
        self.know_modules(&mappings, &fit);
        // The steps of the attach see the new ones alone.
        let armed = std::mem::take(&mut self.armed);
        let kernel = self.kernel.take();
        let before = std::mem::replace(&mut self.missed, missed);
        let done = self.build_new(fit, &places).and_then(|()| Ok(self.arm_all()?));
        let mut came = std::mem::replace(&mut self.armed, armed);
        let missed = std::mem::replace(&mut self.missed, before);
        self.kernel = kernel;
        for armed in came.extract_if(.., |armed| !armed.is_live) {
            // As far as it was written; nothing leads there.
            let _ = self.memory.write(armed.trampoline.header_addr(), &[0; TrampolineHeader::LEN]);
        }
        for mut place in places {
            match came.iter().find(|armed| armed.plan.addr() == place.addr) {
                Some(armed) => {
                    let used = self.plot_of(armed).blocks;
                    place.blocks.start = used.end;
                    self.give_blocks(&place);
                }
                None => self.forget(place),
            }
        }
        let addrs = came.iter().map(|armed| armed.plan.addr()).collect();
        self.armed.extend(came);
        let stall = done?;
        self.longest_stall = self.longest_stall.max(stall);
        Ok(Came { armed: addrs, missed, stall })
    }

    /// Why a site cannot be armed in this session now.
    fn against(&self, site: &SitePlan, others: &[SitePlan], mappings: &[Mapping]) -> Option<Missed> {
        if site.placement.rung == Rung::Kernel {
            return Some(Missed::Kernel("the kernel's probes come at the attach alone".into()));
        }
        if site.placement.pun.is_some() {
            return Some(Missed::NoRoom);
        }
        let known = |all: &[Mapping]| mapping_at(all, site.addr()).map(|m| m.file);
        let was = known(&self.mappings);
        if !identity::is_mapped(mappings, site) || was.is_some() && was != known(mappings) {
            return Some(Missed::Unmapped);
        }
        if !self.regions.regions.iter().any(|region| region.reaches(site)) {
            return Some(Missed::NoRegion);
        }
        let mut programs = site.consumers().filter_map(Consumer::program);
        if site.is_go && programs.any(|(n, _)| self.programs.get(n).is_some_and(|p| !p.suits_goroutine())) {
            return Some(Missed::LittleStack);
        }
        let meets = |other: &&SitePlan| {
            site.covered().any(|a| other.covered().any(|b| a.start < b.end && b.start < a.end))
        };
        if let Some(other) = self.armed.iter().map(|a| &a.plan).chain(others).find(meets) {
            return Some(Missed::Covered { by: other.name.clone() });
        }
        // Where a thread may still come out of one that has gone.
        let inside = site.addr() + 1..site.addr() + u64::from(site.placement.patch_len);
        let comes_out = |gone: &Gone| inside.contains(&gone.armed.comes_out());
        self.places.gone().any(comes_out).then_some(Missed::Leaving)
    }

    /// Room for each of them, or for none.
    fn take_places(&mut self, sites: &[SitePlan]) -> Result<Vec<Plot>, NotChanged> {
        let (mut all, waiting) = (Vec::with_capacity(sites.len()), self.places.waiting());
        for site in sites {
            match self.take_place(site, waiting) {
                Ok(place) => all.push(place),
                Err(why) => {
                    all.into_iter().for_each(|place| self.forget(place));
                    return Err(why);
                }
            }
        }
        Ok(all)
    }

    fn take_place(&mut self, site: &SitePlan, waiting: usize) -> Result<Plot, NotChanged> {
        let places = &mut self.places;
        let region = self.regions.regions.iter().position(|region| region.reaches(site));
        let general = site.actions.iter().filter(|action| **action != Action::Count).count() as u32;
        let blocks = (Trampoline::len_bound(&site.placement, site.may_be_guarded()) as u64)
            .div_ceil(BLOCK_UNIT) as u32;
        let of_region = region.and_then(|region| places.blocks.get_mut(region));
        let mut none = Default::default();
        let wanted = [
            (of_region.unwrap_or(&mut none), blocks),
            (&mut places.cells, site.cells()),
            (&mut places.descriptors, site.consumers().count() as u32),
            (&mut places.hooks, general),
        ];
        let mut short = None;
        let taken = wanted.map(|(slots, wanted)| {
            let taken = if wanted == 0 { Some(0..0) } else { slots.take(wanted) };
            taken.unwrap_or_else(|| {
                short.get_or_insert(NotChanged::NoRoom { wanted, free: slots.free(), waiting });
                0..0
            })
        });
        let [blocks, cells, descriptors, hooks] = taken;
        let place = Plot { addr: site.addr(), region, blocks, cells, descriptors: vec![descriptors], hooks };
        match short {
            None => Ok(place),
            Some(why) => {
                self.forget(place);
                Err(why)
            }
        }
    }

    /// Writes a trampoline for each site, where its place is.
    fn build_new(&mut self, sites: Vec<SitePlan>, places: &[Plot]) -> Result<(), Broken> {
        for (plan, place) in sites.into_iter().zip(places) {
            let Some(region) = place.region.and_then(|at| self.regions.regions.get_mut(at)) else { continue };
            region.next = region.blocks + u64::from(place.blocks.start) * BLOCK_UNIT;
            let descriptor = place.descriptors.first().map_or(0, |range| range.start);
            self.build_site(plan, &mut Numbers::at(place.cells.start, place.hooks.start, descriptor));
        }
        self.drop_incomplete();
        self.armed.iter().try_for_each(|a| self.memory.write(a.trampoline.at, &a.trampoline.bytes))
    }

    /// Modules that were not mapped at the attach, to be told from others that come in their place.
    fn know_modules(&mut self, mappings: &[Mapping], sites: &[SitePlan]) {
        for site in sites {
            if mapping_at(&self.mappings, site.addr()).is_none() {
                self.mappings.extend(mapping_at(mappings, site.addr()).cloned());
            }
        }
    }
}

#[cfg(test)]
mod tests;
