//! One armed site, while it counts.
//!
//! For:     whoever reads counts.
//! State:   none of its own.
//! Context: control, while hits write; stops nobody.
//! Keeps:   what is read is a sum over copies, each of which is whole.
//! Checked: testkit `counting`, `returns`.

use crate::enter::arena::Arena;
use crate::facts::program::Runs;
use crate::facts::room::may_come_alone;
use crate::facts::site::{Action, Consumer, SitePlan};
use crate::kernel::KernelProbes;
use wire::{latency, walk_cell};

/// One armed site, and what it has counted.
#[derive(Debug)]
pub struct SiteView<'a> {
    /// What it was planned as.
    pub plan: &'a SitePlan,
    /// Its jump is out for a while ([`Session::lift`]).
    pub is_out: bool,
    pub(crate) first_cell: u32,
    pub(crate) counts: Counts<'a>,
}

/// Where a site's cells are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Counts<'a> {
    Own(&'a Arena),
    Kernel(&'a KernelProbes),
}

impl Counts<'_> {
    fn sum(self, cell: u32) -> u64 {
        match self {
            Counts::Own(arena) => arena.sum(cell),
            Counts::Kernel(probes) => probes.read(cell),
        }
    }

    /// From one cell to the next.
    fn step(self) -> u32 {
        match self {
            Counts::Own(_) => 8,
            Counts::Kernel(_) => 1,
        }
    }
}

/// Where the calls of a function are counted, and their time: what it takes to read these often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    pub(crate) entries: u32,
    pub(crate) total_ns: u32,
}

/// The calls of one function so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// How often it was entered.
    pub entries: u64,
    /// Nanoseconds of all calls that returned.
    pub total_ns: u64,
    /// Returns whose entry was not seen: calls that began before the probes came or were not timed, and code that
    /// other functions jump into.
    pub unmatched: u64,
    /// Calls that returned, by duration: [`map::Buckets::DURATIONS`].
    pub buckets: Vec<u64>,
}

impl Calls {
    /// How many returned to their caller, or left by a tail call.
    pub fn returns(&self) -> u64 {
        self.buckets.iter().fold(0u64, |sum, count| sum.saturating_add(*count))
    }
}

impl SiteView<'_> {
    /// Hits so far of the target's own threads; of a return probe 0, its function's calls have them.
    pub fn hits(&self) -> u64 {
        self.own_cells().fold(0u64, |sum, cell| sum.saturating_add(self.counts.sum(cell)))
    }

    /// Hits so far in forked children; the kernel's probes count none.
    pub fn children_hits(&self) -> u64 {
        match self.counts {
            Counts::Own(arena) => {
                let cells = self.own_cells().chain(self.lost_cell());
                cells.fold(0u64, |sum, cell| sum.saturating_add(arena.children(cell)))
            }
            Counts::Kernel(_) => 0,
        }
    }

    /// What one of its cells has, by number.
    pub(super) fn cell(&self, number: u32) -> u64 {
        self.counts.sum(self.first_cell + number * self.counts.step())
    }

    /// Where a traced call is counted that could not be written down, as none can in a forked child.
    fn lost_cell(&self) -> Option<u32> {
        let is_traced = matches!(self.plan.consumers().next(), Some(Consumer::Trace { .. }));
        is_traced.then_some(self.first_cell + self.counts.step() * wire::TRACE_LOST)
    }

    /// Traced calls whose event found no room: they are no [`hits`](Self::hits), and cost what those do.
    pub fn lost(&self) -> u64 {
        self.lost_cell().map_or(0, |cell| self.counts.sum(cell))
    }

    /// The cells that a hit adds one to.
    fn own_cells(&self) -> impl Iterator<Item = u32> {
        let cells = match self.plan.consumers().next() {
            Some(Consumer::Enter { .. } | Consumer::Trace { .. }) | None => 1,
            Some(Consumer::CountStack { .. }) => walk_cell::OF_HITS,
            Some(first) => first.cells(),
        };
        let (first, step) = (self.first_cell, self.counts.step());
        (0..cells).map(move |i| first + i * step)
    }

    /// What each consumer of the first hook has counted, in all its cells: of those that count or make a histogram.
    pub fn hits_of_each(&self) -> Vec<u64> {
        let consumers = self.plan.actions.first().map_or(&[][..], Action::consumers);
        let (step, mut cell) = (self.counts.step(), self.first_cell);
        let is_counting = |c: &&Consumer| may_come_alone(**c);
        let sum = |consumer: &Consumer| {
            let first = cell;
            cell += consumer.cells() * step;
            let cells = (0..consumer.cells()).map(|i| self.counts.sum(first + i * step));
            cells.fold(0u64, u64::saturating_add)
        };
        consumers.iter().take_while(is_counting).map(sum).collect()
    }

    /// What became of the hits of each program that the site was armed with, in the order of its consumers, with its number.
    pub fn runs(&self) -> Vec<(u32, Runs)> {
        let (step, mut cell) = (self.counts.step(), self.first_cell);
        let mut runs = Vec::new();
        for consumer in self.plan.actions.iter().flat_map(Action::consumers) {
            let first = cell;
            cell += consumer.cells() * step;
            let Some((number, _)) = consumer.program() else { continue };
            let cells: Vec<u64> = (0..consumer.cells()).map(|i| self.counts.sum(first + i * step)).collect();
            runs.push((number, Runs::of(&cells)));
        }
        runs
    }

    /// The cells of the first consumer, one for each bucket of a histogram.
    pub fn cells(&self) -> Vec<u64> {
        self.own_cells().map(|cell| self.counts.sum(cell)).collect()
    }

    /// Entries and nanoseconds of the function that begins here, if its calls are timed: what [`calls`](Self::calls) has
    /// without its buckets, at two cells' price.
    pub fn timed(&self) -> Option<(u64, u64)> {
        self.plan.opens()?;
        let sum = |number: u32| self.counts.sum(self.first_cell + number * self.counts.step());
        Some((sum(latency::ENTRIES), sum(latency::TOTAL_NS)))
    }

    /// Where what [`timed`](Self::timed) gives is counted, if it is; to be read by [`Session::tallied`].
    pub fn tally(&self) -> Option<Tally> {
        self.plan.opens()?;
        let cell = |number: u32| self.first_cell + number * self.counts.step();
        let is_own = matches!(self.counts, Counts::Own(_));
        is_own.then(|| Tally { entries: cell(latency::ENTRIES), total_ns: cell(latency::TOTAL_NS) })
    }

    /// The calls of the function that begins here, if they are timed.
    pub fn calls(&self) -> Option<Calls> {
        self.plan.opens()?;
        let step = self.counts.step();
        let sum = |number: u32| self.counts.sum(self.first_cell + number * step);
        let buckets = (latency::BUCKETS..latency::CELLS).map(sum).collect();
        let (entries, unmatched) = (sum(latency::ENTRIES), sum(latency::UNMATCHED));
        Some(Calls { entries, total_ns: sum(latency::TOTAL_NS), unmatched, buckets })
    }
}
