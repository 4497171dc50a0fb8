//! Probes that leave a live session.
//!
//! For:     `arm::probes`.
//! State:   the book's.
//! Context: control. A stop to take out, and one to look whether nobody is inside.
//! Keeps:   B3 and B4 of `arm::probes`.
//! Checked: as there.

use crate::arm::attach::BLOCK_UNIT;
use crate::arm::probes::{NotDone, Plot, Went};
use crate::enter::footing::Footing;
use crate::enter::occupants::occupants;
use crate::facts::error::Broken;
use crate::facts::room::may_come_alone;
use crate::facts::site::{Armed, Link, Whole};
use crate::find::maps::image_maps;
use crate::find::memory::Memory;
use crate::find::process;
use crate::find::proof::Gone as Ended;
use crate::hold::tracer::apart;
use crate::hold::world::World;
use crate::leave::detach::forget_rseq;
use crate::leave::leaving::Leaving;
use crate::leave::receipt::{Receipt, Residue};
use crate::live::change::{NotChanged, Settled};
use crate::live::lists::{Gone, HITS, HookId, is_of_change};
use crate::live::readers::Late;
use crate::live::session::Session;
use probe::book::{Clock, Off};
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};
use wire::{RegionDesc, TrampolineHeader};

/// Between two looks whether a trampoline is empty, at most.
const PAUSE_MAX: Duration = Duration::from_millis(100);

impl Session {
    pub(super) fn remove_here(&mut self, addrs: &[u64]) -> Result<Receipt, NotDone> {
        let mut going = self.pick(addrs)?;
        let mut receipt = Receipt::default();
        let links: Vec<Link<'_>> = going.iter().map(Armed::link).collect();
        if let Err(broken) = self.take_out(&links, &mut receipt) {
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
        for mut armed in going {
            armed.is_live = false;
            let hooks = armed.hooks.clone().filter_map(|hook| self.places.book.close(HookId(hook))).collect();
            self.places.book.take_off(Off::Probe(Box::new(Gone { armed, hooks })));
        }
        self.places.book.begin(&self.readers);
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

    pub(super) fn take_out(&self, links: &[Link<'_>], receipt: &mut Receipt) -> Result<(), Broken> {
        let began = Instant::now();
        let footing = self.regions.footing(self.rseq_offset);
        let Session { memory, foothold, .. } = self;
        let leaving = Leaving { memory, before: &self.mappings, links, footing: &footing, foothold };
        leaving.take_out(receipt)?;
        receipt.took = began.elapsed();
        Ok(())
    }

    /// Waits until no thread is in what has gone, or will come back to it, and no child has it; why not.
    pub(super) fn wait_for_gone(
        &mut self,
        until: Instant,
        settled: &mut Settled,
    ) -> Result<Option<Late>, Broken> {
        while let Some(last) = self.places.book.awaited(HITS, |off| !is_of_change(off)) {
            let (arena, regions) = (&self.regions.arena, &self.regions.regions);
            if !self.readers.is_over(HITS, last)
                && let Err(late) = self.readers.wait(arena, &self.memory, regions, until)
            {
                return Ok(Some(late));
            }
            let out = self.places.book.ripe(&self.readers);
            let probes = self.give_back(out, settled);
            debug_assert!(probes.is_empty(), "nobody has looked yet");
        }
        let mut pause = Duration::from_millis(1);
        loop {
            let late = match self.is_inherited() {
                true => Late::Children,
                false if apart(|| self.is_empty())? => {
                    self.readers.looks += 1;
                    return Ok(None);
                }
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
            self.places.gone().map(|gone| gone.armed.link()).all(|link| {
                let found = child.read_vec(link.jump_at, text::JUMP_LEN);
                found.is_ok_and(|found| found == link.jump_original)
            })
        };
        let is_free = |pid: &i32| Memory::open(*pid).is_ok_and(|m| is_clean(&m)) || process::is_over(*pid);
        !heirs.iter().all(is_free)
    }

    /// Looks, in a stop, whether no thread is in what has gone.
    pub(super) fn is_empty(&mut self) -> Result<bool, Broken> {
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
        let blocks = self.places.gone().map(|gone| gone.armed.trampoline.at..gone.armed.trampoline.end());
        let landings = self.places.gone().filter_map(|gone| gone.armed.plan.landing);
        let landings = landings.map(|at| at..at + text::JUMP_LEN as u64);
        let desc = |r: Range<u64>| RegionDesc { table: r.start, code: r.start, blocks: r.start, end: r.end };
        let mut regions: Vec<RegionDesc> = slow.chain(blocks).chain(landings).map(desc).collect();
        regions.sort_by_key(|region| region.code);
        Footing { regions, ..self.regions.footing(self.rseq_offset) }
    }

    /// What it has counted; its room is free.
    pub(super) fn reclaim(&mut self, gone: Gone) -> Went {
        let Gone { armed, hooks, .. } = gone;
        let cells = |session: &Session, cells: &Range<u32>| -> Vec<u64> {
            cells.clone().map(|cell| session.regions.arena.sum(cell * 8)).collect()
        };
        let members = hooks.iter().flat_map(|at| &at.members);
        let consumers = members.map(|(id, m)| (*id, m.consumer, cells(self, &m.cells))).collect();
        let view = self.view(&armed);
        let (hits, children_hits) = (view.hits(), view.children_hits());
        // Whoever reads the code to recover looks for its header there. Of a process that is no more nothing is left.
        let header = armed.trampoline.header_addr();
        let _ = self.memory.write(header, &[0; TrampolineHeader::LEN]);
        let mut plot = self.plot_of(&armed);
        plot.descriptors = hooks.iter().map(|at| at.site.place.clone()).collect();
        for member in hooks.iter().flat_map(|at| at.members.values()).filter(|member| !member.is_first) {
            self.places.give_cells(&self.regions.arena, member.cells.clone());
        }
        self.forget(plot);
        Went { plan: armed.plan, hits, children_hits, consumers }
    }

    /// What an armed site has of the room, but for its consumers' descriptors.
    pub(super) fn plot_of(&self, armed: &Armed) -> Plot {
        let trampoline = &armed.trampoline;
        let region = self.regions.regions.iter().position(|r| r.code.contains(&trampoline.at));
        let blocks = region.map_or(0..0, |region| {
            let number = |at: u64| (at - self.regions.regions[region].blocks).div_ceil(BLOCK_UNIT) as u32;
            number(trampoline.at)..number(trampoline.end())
        });
        let first = armed.cell / 8;
        let cells = first..first + armed.plan.cells();
        let hooks = armed.hooks.clone();
        Plot { addr: armed.plan.addr(), region, blocks, cells, descriptors: Vec::new(), hooks }
    }

    /// Gives back all that a probe had.
    pub(super) fn forget(&mut self, plot: Plot) {
        plot.hooks.clone().for_each(|hook| drop(self.places.book.close(HookId(hook))));
        self.give_blocks(&plot);
        self.places.give_cells(&self.regions.arena, plot.cells);
        self.places.hooks.give(plot.hooks);
        plot.descriptors.into_iter().for_each(|range| self.places.descriptors.give(range));
    }

    pub(super) fn give_blocks(&mut self, plot: &Plot) {
        if let Some(blocks) = plot.region.and_then(|region| self.places.blocks.get_mut(region)) {
            blocks.give(plot.blocks.clone());
        }
    }
}
