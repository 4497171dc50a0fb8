//! Whole probes that come and go in a live session.
//!
//! For:     whoever holds a session that was attached with room for them.
//! State:   `Session::gone`: what was taken out, and may still have a thread in it.
//! Context: control. One stop for all that come together, and one for all that go; between stops the process runs.
//! Keeps:   B1 who comes is armed by the steps of the attach; nothing stays of one that is missed.
//!          B2 no two probes of a session cover one byte.
//!          B3 the place of one that went is used for something else only after a grace period that began when it was out, once
//!             a stop has shown no thread in it or on its way back to it, and no forked child has its jump.
//!          B4 what it has counted is told then, to the last hit.
//! Checked: tests below; `torture live --probes`.

use crate::arm::attach::BLOCK_UNIT;
use crate::arm::numbers::Numbers;
use crate::enter::footing::Footing;
use crate::enter::occupants::occupants;
use crate::facts::error::Broken;
use crate::facts::room::may_come_alone;
use crate::facts::site::{Action, Armed, Consumer, Link, Missed, SitePlan, Whole};
use crate::find::identity;
use crate::find::maps::image_maps;
use crate::find::memory::Memory;
use crate::find::process;
use crate::find::proof::Gone as Ended;
use crate::hold::tracer::apart;
use crate::hold::world::{Hurry, World};
use crate::leave::detach::forget_rseq;
use crate::leave::leaving::Leaving;
use crate::leave::receipt::{Receipt, Residue};
use crate::live::change::{NotChanged, Settled};
use crate::live::lists::{ConsumerId, Gone, HookId};
use crate::live::readers::Late;
use crate::live::session::Session;
use image::Mapping;
use insn::Rung;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};
use text::Trampoline;
use wire::{RegionDesc, TrampolineHeader};

/// Between two looks whether a trampoline is empty, at most.
const PAUSE_MAX: Duration = Duration::from_millis(100);

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
struct Places {
    addr: u64,
    region: Option<usize>,
    blocks: Range<u32>,
    cells: Range<u32>,
    descriptors: Vec<Range<u32>>,
    hooks: Range<u32>,
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
        if !self.gone.is_empty() && settled.late.is_none() {
            let _hurry = Hurry::begin();
            settled.late = match self.wait_for_gone(until) {
                Err(_) | Ok(Some(Late::Over)) if Ended::proven(&self.memory).is_some() => None,
                other => other.map_err(|broken| process::cause(self.pid(), broken))?,
            };
            if settled.late.is_none() {
                settled.went = std::mem::take(&mut self.gone).into_iter().map(|g| self.reclaim(g)).collect();
            }
        }
        settled.waiting = self.gone.len();
        Ok(settled)
    }
}

fn caused(pid: i32, why: NotDone) -> NotDone {
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
                    let used = self.places_of(armed).blocks;
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
        self.gone.iter().any(comes_out).then_some(Missed::Leaving)
    }

    /// Room for each of them, or for none.
    fn take_places(&mut self, sites: &[SitePlan]) -> Result<Vec<Places>, NotChanged> {
        let mut all = Vec::with_capacity(sites.len());
        for site in sites {
            match self.take_place(site) {
                Ok(place) => all.push(place),
                Err(why) => {
                    all.into_iter().for_each(|place| self.forget(place));
                    return Err(why);
                }
            }
        }
        Ok(all)
    }

    fn take_place(&mut self, site: &SitePlan) -> Result<Places, NotChanged> {
        let waiting = self.lists.waiting() + self.gone.len();
        let lists = &mut self.lists;
        let region = self.regions.regions.iter().position(|region| region.reaches(site));
        let general = site.actions.iter().filter(|action| **action != Action::Count).count() as u32;
        let blocks = (Trampoline::len_bound(&site.placement) as u64).div_ceil(BLOCK_UNIT) as u32;
        let of_region = region.and_then(|region| lists.blocks.get_mut(region));
        let mut none = Default::default();
        let wanted = [
            (of_region.unwrap_or(&mut none), blocks),
            (&mut lists.cells, site.cells()),
            (&mut lists.descriptors, site.consumers().count() as u32),
            (&mut lists.hook_places, general),
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
        let place =
            Places { addr: site.addr(), region, blocks, cells, descriptors: vec![descriptors], hooks };
        match short {
            None => Ok(place),
            Some(why) => {
                self.forget(place);
                Err(why)
            }
        }
    }

    /// Writes a trampoline for each site, where its place is.
    fn build_new(&mut self, sites: Vec<SitePlan>, places: &[Places]) -> Result<(), Broken> {
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

fn mapping_at(all: &[Mapping], addr: u64) -> Option<&Mapping> {
    all.iter().find(|m| m.range.start.0 <= addr && addr < m.range.end.0)
}

/// Who goes.
impl Session {
    fn remove_here(&mut self, addrs: &[u64]) -> Result<Receipt, NotDone> {
        let mut going = self.pick(addrs)?;
        let mut receipt = Receipt::default();
        if let Err(broken) = self.take_out(&going, &mut receipt) {
            match Ended::proven(&self.memory) {
                Some(proof) => receipt.is_gone(proof),
                None => {
                    self.armed.extend(going);
                    return Err(broken.into());
                }
            }
        }
        self.longest_stall = self.longest_stall.max(receipt.longest_stall);
        // What is not known to be out stays the session's, whose end looks again.
        let is_displaced = receipt.residues.contains(&Residue::Displaced);
        let foreign: BTreeSet<&str> = receipt.foreign().collect();
        let stays = |armed: &Armed| is_displaced || foreign.contains(armed.plan.name.as_str());
        self.armed.extend(going.extract_if(.., |armed| stays(armed)));
        let cookie = self.readers.cookie();
        for mut armed in going {
            armed.is_live = false;
            let hooks = armed.hooks.clone().filter_map(|hook| self.lists.take_off(HookId(hook))).collect();
            self.gone.push(Gone { armed, hooks, cookie });
        }
        Ok(receipt)
    }

    /// The sites at these addresses, and with an exit all others of its function.
    fn pick(&mut self, addrs: &[u64]) -> Result<Vec<Armed>, NotChanged> {
        let mut wholes = BTreeSet::new();
        for addr in addrs {
            let armed = self.armed.iter().find(|armed| armed.plan.addr() == *addr);
            let armed = armed.ok_or(NotChanged::NoProbe(*addr))?;
            if let Some(consumer) = armed.plan.consumers().find(|consumer| !may_come_alone(*consumer)) {
                return Err(NotChanged::NotAlone(consumer));
            }
            wholes.extend(armed.plan.wholes());
        }
        let is_of_whole = |whole: Whole| wholes.contains(&whole);
        let goes =
            |armed: &mut Armed| addrs.contains(&armed.plan.addr()) || armed.plan.wholes().any(is_of_whole);
        Ok(self.armed.extract_if(.., goes).collect())
    }

    fn take_out(&self, going: &[Armed], receipt: &mut Receipt) -> Result<(), Broken> {
        let began = Instant::now();
        let links: Vec<Link<'_>> = going.iter().map(Armed::link).collect();
        let footing = self.regions.footing(self.rseq_offset);
        let Session { memory, foothold, .. } = self;
        let leaving = Leaving { memory, before: &self.mappings, links: &links, footing: &footing, foothold };
        leaving.take_out(receipt)?;
        receipt.took = began.elapsed();
        Ok(())
    }

    /// Waits until no thread is in what has gone, or will come back to it, and no child has it; why not.
    fn wait_for_gone(&mut self, until: Instant) -> Result<Option<Late>, Broken> {
        let last = self.gone.iter().filter(|gone| !gone.hooks.is_empty()).map(|gone| gone.cookie).next_back();
        while let Some(last) = last.filter(|last| !self.readers.is_done(*last)) {
            let (arena, regions) = (&self.regions.arena, &self.regions.regions);
            if let Err(late) = self.readers.wait(arena, &self.memory, regions, until) {
                return Ok(Some(late));
            }
            debug_assert!(self.readers.is_done(last));
        }
        let mut pause = Duration::from_millis(1);
        loop {
            let late = match self.is_inherited() {
                true => Late::Children,
                false if apart(|| self.is_empty())? => return Ok(None),
                false => Late::HitsInside,
            };
            if Instant::now() >= until {
                return Ok(Some(late));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Whether a forked child has, or may have, something else than the file has where a probe was taken out.
    fn is_inherited(&self) -> bool {
        let Some(heirs) = self.regions.arena.heirs(self.pid()) else { return true };
        let is_clean = |child: &Memory| {
            self.gone.iter().map(|gone| gone.armed.link()).all(|link| {
                let found = child.read_vec(link.jump_at, text::JUMP_LEN);
                found.is_ok_and(|found| found == link.jump_original)
            })
        };
        let is_free = |pid: &i32| Memory::open(*pid).is_ok_and(|m| is_clean(&m)) || process::is_over(*pid);
        !heirs.iter().all(is_free)
    }

    /// Looks, in a stop, whether no thread is in what has gone.
    fn is_empty(&mut self) -> Result<bool, Broken> {
        self.memory.check()?;
        let world = World::stop(self.pid())?;
        self.memory.check()?;
        let ground = self.ground_of_gone();
        forget_rseq(&self.memory, &world, &ground)?;
        let occupants = occupants(&self.memory, &world, &ground, &image_maps(self.pid())?);
        self.longest_stall = self.longest_stall.max(world.resume());
        Ok(occupants.is_empty())
    }

    /// Where a thread can be that is still at what has gone and in no grace period's sight: its trampolines, and the routines
    /// that lead back into them.
    fn ground_of_gone(&self) -> Footing {
        let slow = self.regions.regions.iter().map(|r| r.slow..r.slow + text::SLOW_LEN as u64);
        let blocks = self.gone.iter().map(|gone| gone.armed.trampoline.at..gone.armed.trampoline.end());
        let landings = self.gone.iter().filter_map(|gone| gone.armed.plan.landing);
        let landings = landings.map(|at| at..at + text::JUMP_LEN as u64);
        let desc = |r: Range<u64>| RegionDesc { table: r.start, code: r.start, blocks: r.start, end: r.end };
        let mut regions: Vec<RegionDesc> = slow.chain(blocks).chain(landings).map(desc).collect();
        regions.sort_by_key(|region| region.code);
        Footing { regions, ..self.regions.footing(self.rseq_offset) }
    }

    /// What it has counted; its room is free.
    fn reclaim(&mut self, gone: Gone) -> Went {
        let Gone { armed, hooks, .. } = gone;
        let cells = |session: &Session, cells: &Range<u32>| -> Vec<u64> {
            cells.clone().map(|cell| session.regions.arena.sum(cell * 8)).collect()
        };
        let members = hooks.iter().flat_map(|lists| &lists.members);
        let consumers = members.map(|m| (m.id, m.consumer, cells(self, &m.cells))).collect();
        let view = self.view(&armed);
        let (hits, children_hits) = (view.hits(), view.children_hits());
        // Whoever reads the code to recover looks for its header there. Of a process that is no more nothing is left.
        let header = armed.trampoline.header_addr();
        let _ = self.memory.write(header, &[0; TrampolineHeader::LEN]);
        let mut places = self.places_of(&armed);
        places.descriptors = hooks.iter().map(|lists| lists.place.clone()).collect();
        for member in hooks.iter().flat_map(|lists| &lists.members).filter(|member| !member.is_first) {
            self.clear_cells(member.cells.clone());
        }
        self.forget(places);
        Went { plan: armed.plan, hits, children_hits, consumers }
    }

    /// What an armed site has of the room, but for its consumers' descriptors.
    fn places_of(&self, armed: &Armed) -> Places {
        let trampoline = &armed.trampoline;
        let region = self.regions.regions.iter().position(|r| r.code.contains(&trampoline.at));
        let blocks = region.map_or(0..0, |region| {
            let number = |at: u64| (at - self.regions.regions[region].blocks).div_ceil(BLOCK_UNIT) as u32;
            number(trampoline.at)..number(trampoline.end())
        });
        let first = armed.cell / 8;
        let cells = first..first + armed.plan.cells();
        let hooks = armed.hooks.clone();
        Places { addr: armed.plan.addr(), region, blocks, cells, descriptors: Vec::new(), hooks }
    }

    /// Gives back all that a probe had.
    fn forget(&mut self, place: Places) {
        place.hooks.clone().for_each(|hook| drop(self.lists.take_off(HookId(hook))));
        self.give_blocks(&place);
        self.clear_cells(place.cells);
        self.lists.hook_places.give(place.hooks);
        place.descriptors.into_iter().for_each(|range| self.lists.descriptors.give(range));
    }

    fn give_blocks(&mut self, place: &Places) {
        if let Some(blocks) = place.region.and_then(|region| self.lists.blocks.get_mut(region)) {
            blocks.give(place.blocks.clone());
        }
    }

    fn clear_cells(&mut self, cells: Range<u32>) {
        cells.clone().for_each(|cell| self.regions.arena.clear(cell * 8));
        self.lists.cells.give(cells);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::inject::tests::{Subject, sites};
    use crate::{Attach, Room};
    use std::sync::atomic::Ordering;
    use wire::{COPY_SHARED, cell};

    const LONG: Duration = Duration::from_secs(60);

    /// A session that has a probe where nobody comes by, and room for these many.
    fn attached(subject: &Subject, probes: usize) -> Session {
        let room = Room::for_counts(4).and_probes(probes);
        let attach = Attach { room, ..Attach::default() };
        Session::attach_with(subject.pid(), subject.idle_site(), attach).unwrap()
    }

    fn free(session: &Session) -> ((u32, u32), u32, u32) {
        let blocks = session.lists.blocks.iter().map(|slots| slots.free()).sum();
        (session.free_room(), session.lists.hook_places.free(), blocks)
    }

    /// As they are planned for a handler, or compiled in.
    fn busy(subject: &Subject, is_compiled: bool) -> Vec<SitePlan> {
        let mut sites = sites(subject.pid(), &["u::injected_long", "u::injected_other"]);
        for site in sites.iter_mut().filter(|_| is_compiled) {
            site.actions = vec![Action::Count];
        }
        sites
    }

    fn addrs(sites: &[SitePlan]) -> Vec<u64> {
        sites.iter().map(SitePlan::addr).collect()
    }

    fn leave(mut session: Session) {
        let receipt = session.detach().unwrap();
        assert!(receipt.is_verified() && receipt.is_unmapped(), "{receipt:?}");
    }

    #[test]
    fn probes_come_and_go_as_often_as_they_like_in_the_same_room() {
        let subject = Subject::start();
        let before = subject.seen();
        let mut session = attached(&subject, 4);
        let room = free(&session);
        let mut seen = [0; 2];
        for round in 0..8 {
            let sites = busy(&subject, round % 2 == 0);
            let came = session.add_probes(sites.clone()).unwrap();
            assert_eq!((came.armed, came.missed.len()), (addrs(&sites), 0));
            let stops = crate::stops();
            let guest = session.hooks(addrs(&sites)[0]).first().map(|hook| {
                session.change(&[(*hook, Consumer::Count)], &[]).unwrap();
            });
            assert_eq!((guest.is_some(), crate::stops()), (round % 2 == 1, stops));
            std::thread::sleep(Duration::from_millis(5));
            let receipt = session.remove_probes(&addrs(&sites)).unwrap();
            assert!(receipt.is_verified() && receipt.restored == 2, "{receipt:?}");
            let settled = session.settle_probes(LONG).unwrap();
            assert_eq!((settled.went.len(), settled.waiting), (2, 0), "{settled:?}");
            for (went, seen) in settled.went.iter().zip(&mut seen) {
                *seen += went.hits;
                // The one that came with it has counted all, who came later not more.
                let cells: Vec<u64> = went.consumers.iter().map(|(_, _, cells)| cells[0]).collect();
                assert!(cells.iter().all(|count| *count <= went.hits), "{went:?}");
            }
            assert_eq!(free(&session), room, "round {round}");
        }
        assert!(seen.iter().all(|hits| *hits > 1000), "{seen:?}");
        assert_eq!(session.sites().count(), 1);
        leave(session);
        assert!(subject.seen() == before);
    }

    #[test]
    fn a_hit_that_stands_inside_keeps_the_room_of_a_probe_that_went() {
        let subject = Subject::start();
        let mut session = attached(&subject, 4);
        let sites = busy(&subject, false);
        let enters = |session: &Session, by: u64| {
            let arena = &session.regions.arena;
            let at = arena.layout.copy(COPY_SHARED) + cell::entered(0) as usize;
            arena.view().word(at).unwrap().fetch_add(by, Ordering::Relaxed);
        };
        session.add_probes(sites.clone()).unwrap();
        enters(&session, 1);
        session.remove_probes(&addrs(&sites)).unwrap();
        let room = free(&session);
        let settled = session.settle_probes(Duration::from_millis(20)).unwrap();
        assert!(matches!(settled.late, Some(Late::HitsInside)), "{settled:?}");
        assert_eq!((settled.went.len(), settled.waiting, free(&session)), (0, 2, room));
        enters(&session, u64::MAX);
        let settled = session.settle_probes(LONG).unwrap();
        assert_eq!((settled.went.len(), settled.waiting), (2, 0));
        leave(session);
    }

    #[test]
    fn what_cannot_come_is_named_and_takes_no_room() {
        let subject = Subject::start();
        let sites = busy(&subject, false);
        let mut session = attached(&subject, 0);
        let stops = crate::stops();
        let why = session.add_probes(sites.clone()).unwrap_err();
        assert!(matches!(why, NotDone::Refused(NotChanged::NoRoom { .. })), "{why}");
        assert_eq!(crate::stops(), stops, "somebody was stopped for nothing");
        leave(session);
        let mut session = attached(&subject, 1);
        let (room, stops) = (free(&session), crate::stops());
        let mut timed = sites.clone();
        timed[0].actions =
            vec![crate::Action::Consumers(vec![Consumer::Enter { function: 0, is_go: false }])];
        let why = session.add_probes(timed).unwrap_err();
        assert!(matches!(why, NotDone::Refused(NotChanged::NotAlone(_))), "{why}");
        let why = session.remove_probes(&[1]).unwrap_err();
        assert!(matches!(why, NotDone::Refused(NotChanged::NoProbe(1))), "{why}");
        assert_eq!(crate::stops(), stops, "somebody was stopped for nothing");
        let twice = session.add_probes(subject.idle_site()).unwrap();
        assert!(matches!(twice.missed[0].1, Missed::Covered { .. }), "{twice:?}");
        let mut beside = subject.idle_site();
        beside[0].placement.site += 1;
        let beside = session.add_probes(beside).unwrap();
        assert!(matches!(beside.missed[0].1, Missed::Covered { .. }), "{beside:?}");
        let mut changed = sites[..1].to_vec();
        changed[0].original[0] ^= 1;
        let changed = session.add_probes(changed).unwrap();
        assert!(matches!(changed.missed[0].1, Missed::Changed { .. }), "{changed:?}");
        assert_eq!(free(&session), room);
        assert_eq!(session.add_probes(sites[..1].to_vec()).unwrap().armed.len(), 1);
        leave(session);
    }

    #[test]
    fn a_first_probe_can_go_too_and_come_again() {
        let subject = Subject::start();
        let mut session = attached(&subject, 2);
        let addr = subject.idle_site()[0].addr();
        for _ in 0..3 {
            assert!(session.remove_probes(&[addr]).unwrap().is_verified());
            let settled = session.settle_probes(LONG).unwrap();
            assert_eq!((settled.went.len(), settled.went[0].hits), (1, 0));
            assert_eq!(session.add_probes(subject.idle_site()).unwrap().armed, [addr]);
        }
        leave(session);
    }
}
