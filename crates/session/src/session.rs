//! One attach, while it lasts.
//!
//! For:     reading counts, and knowing what is armed.
//! State:   the target's memory, our mappings in it, the sites.
//! Context: control. One OS thread: ptrace ties stops to it.
//! Keeps:   S1 dropped without `detach`, it detaches.
//! Checked: testkit.

use crate::error::Broken;
use crate::memory::Memory;
use crate::region::Regions;
use crate::site::{Action, Armed, Missed, SitePlan};
use image::Mapping;
use insn::Rung;
use std::time::Duration;

/// Probes in one process.
#[derive(Debug)]
pub struct Session {
    pub(crate) memory: Memory,
    pub(crate) mappings: Vec<Mapping>,
    pub(crate) regions: Regions,
    pub(crate) gadget: u64,
    pub(crate) rseq_offset: Option<i32>,
    pub(crate) armed: Vec<Armed>,
    pub(crate) missed: Vec<(SitePlan, Missed)>,
    pub(crate) longest_stall: Duration,
    pub(crate) attach_time: Duration,
    pub(crate) is_over: bool,
}

/// One armed site, and what it has counted.
#[derive(Debug)]
pub struct SiteView<'a> {
    /// What it was planned as.
    pub plan: &'a SitePlan,
    first_cell: u32,
    regions: &'a Regions,
}

impl SiteView<'_> {
    /// Hits so far of the target's own threads.
    pub fn hits(&self) -> u64 {
        let cells = self.plan.action.consumers().first().map_or(1, |c| c.cells());
        (0..cells).map(|i| self.regions.arena.sum(self.first_cell + i * 8)).sum()
    }

    /// Hits so far in forked children.
    pub fn children_hits(&self) -> u64 {
        let cells = self.plan.action.consumers().first().map_or(1, |c| c.cells());
        (0..cells).map(|i| self.regions.arena.children(self.first_cell + i * 8)).sum()
    }

    /// The cells of consumer `index`, one for each bucket of a histogram.
    pub fn cells(&self, index: usize) -> Vec<u64> {
        let list = match &self.plan.action {
            Action::Count => return vec![self.regions.arena.sum(self.first_cell)],
            Action::Consumers(list) => list,
        };
        let Some(consumer) = list.get(index) else { return Vec::new() };
        let before: u32 = list[..index].iter().map(|c| c.cells()).sum();
        (0..consumer.cells()).map(|i| self.regions.arena.sum(self.first_cell + (before + i) * 8)).collect()
    }
}

impl Session {
    pub(crate) fn new(memory: Memory, mappings: Vec<Mapping>, regions: Regions, gadget: u64) -> Session {
        Session {
            memory,
            mappings,
            regions,
            gadget,
            rseq_offset: None,
            armed: Vec::new(),
            missed: Vec::new(),
            longest_stall: Duration::ZERO,
            attach_time: Duration::ZERO,
            is_over: false,
        }
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.memory.pid
    }

    /// The armed sites, in the order of their plans.
    pub fn sites(&self) -> impl Iterator<Item = SiteView<'_>> {
        self.armed.iter().map(|a| SiteView { plan: &a.plan, first_cell: a.cell, regions: &self.regions })
    }

    /// Hits of the general path so far, counted before any handler ran.
    pub fn entered(&self) -> u64 {
        self.regions.arena.sum(wire::cell::READERS_ENTERED)
    }

    /// Planned sites that were not armed.
    pub fn missed(&self) -> &[(SitePlan, Missed)] {
        &self.missed
    }

    /// How many sites are armed on each rung.
    pub fn rungs(&self) -> Vec<(Rung, usize)> {
        let mut counted: Vec<(Rung, usize)> = Vec::new();
        for armed in &self.armed {
            let rung = armed.plan.placement.rung;
            match counted.iter_mut().find(|(r, _)| *r == rung) {
                Some((_, n)) => *n += 1,
                None => counted.push((rung, 1)),
            }
        }
        counted.sort_by_key(|(r, _)| *r as u8);
        counted
    }

    /// The longest time that a thread of the target has stood still for us so far.
    pub fn longest_stall(&self) -> Duration {
        self.longest_stall
    }

    /// How long the attach took.
    pub fn attach_time(&self) -> Duration {
        self.attach_time
    }

    /// True if counts are made under rseq; false if by locked adds.
    pub fn has_rseq(&self) -> bool {
        self.rseq_offset.is_some()
    }

    /// True as long as the process runs the program that we attached to.
    pub fn is_alive(&self) -> bool {
        let mut word = [0u8; 8];
        self.memory.read(self.regions.arena.remote, &mut word).is_ok()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.is_over {
            let _: Result<_, Broken> = self.detach();
        }
    }
}
