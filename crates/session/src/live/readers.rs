//! The hits that are inside, and the wait for them: grace periods of another process's readers.
//!
//! For:     `live::change`, before it uses the room of replaced lists for something else.
//! State:   number and rank of the grace periods, here; what hits have counted, in the arena.
//! Context: control. Stops no thread, unless the kernel has no fence for us.
//! Keeps:   G1 to G5 of rcu's grace period: every hit that was inside when it began has left when it ends.
//!          R1 it ends, or gives up by its deadline: whatever a target writes into the counts, and whether its threads run.
//!          R2 a target that lies about them loses counts of its own; nothing here follows what it says.
//!          R3 readers of children that died inside a hit are forgotten, once no process is left that could be one.
//! Checked: rcu's models and mutants (the same code); torture `tests/live.rs`; `torture live --broken wrong-rank`.

use crate::enter::arena::Arena;
use crate::enter::fence::Fence;
use crate::enter::region::Region;
use crate::facts::error::Broken;
use crate::find::memory::Memory;
use crate::live::lists::{LOOK, Remote, Ticket};
use probe::book::Clock;
use rcu::{GpState, Rank, Ranks, Waiting};
use std::time::{Duration, Instant};
use wire::{COPY_CHILDREN, COPY_CPU0, COPY_SHARED, cell};

/// Ways to get it wrong on purpose, for the torture test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LiveBroken {
    /// As the grace periods of `rcu` can be.
    Grace(rcu::Broken),
    /// The readers of the other rank are summed.
    WrongRank,
    /// A list is changed where it stands.
    InPlace,
}

/// Why a grace period has not ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Late {
    /// Its time was over: hits are inside, of a process that is stopped, or that says so.
    HitsInside,
    /// A forked child has the jump of a probe that was taken out.
    Children,
    /// The process is no more.
    Over,
    /// No fence could be made, or the rank not be changed.
    Broken(Broken),
}

/// The grace periods of one session.
#[derive(Debug)]
pub(crate) struct Readers {
    gp: GpState,
    rank: Rank,
    pub fence: Fence,
    /// Of each rank, those that entered in children that are no more.
    forgotten: [u64; 2],
    /// The last whole grace period took so long.
    pub took: Option<Duration>,
    /// The longest time that a thread stood still for a fence.
    pub stall: Duration,
    /// Stops that have shown no thread in any probe that was out by then.
    pub looks: u64,
    pub broken: Option<LiveBroken>,
}

impl Clock<Remote> for Readers {
    fn ticket(&self, wait: usize) -> Ticket {
        match wait {
            LOOK => Ticket::Look(self.looks),
            _ => Ticket::Hits(self.gp.snap()),
        }
    }

    fn is_over(&self, _: usize, ticket: Ticket) -> bool {
        match ticket {
            Ticket::Hits(cookie) => self.gp.poll(cookie),
            Ticket::Look(before) => self.looks > before,
        }
    }
}

impl Readers {
    pub fn new(fence: Fence) -> Readers {
        Readers {
            gp: GpState::new(),
            rank: Rank::from_index(0),
            fence,
            forgotten: [0; 2],
            took: None,
            stall: Duration::ZERO,
            looks: 0,
            broken: None,
        }
    }

    /// Grace periods so far, and the fences that they took.
    pub fn counts(&self) -> (u64, u64) {
        (self.gp.periods(), self.gp.heavy_fences())
    }

    /// Waits for the hits that are inside; `until` at most.
    pub fn wait(
        &mut self,
        arena: &Arena,
        memory: &Memory,
        regions: &[Region],
        until: Instant,
    ) -> Result<(), Late> {
        let began = Instant::now();
        let Readers { gp, rank, fence, forgotten, stall, broken, .. } = self;
        let (fence, broken) = (*fence, *broken);
        let mut driver = Driver { rank, forgotten, stall, fence, broken, arena, memory, regions, until };
        gp.run(&mut driver, true)?;
        self.took = Some(began.elapsed());
        Ok(())
    }
}

/// One grace period.
struct Driver<'a> {
    rank: &'a mut Rank,
    forgotten: &'a mut [u64; 2],
    stall: &'a mut Duration,
    fence: Fence,
    broken: Option<LiveBroken>,
    arena: &'a Arena,
    memory: &'a Memory,
    regions: &'a [Region],
    until: Instant,
}

/// Polls between two looks for children that have died in a hit: about 0.1 s.
const LOOK_FOR_CHILDREN: u32 = 128;

impl Driver<'_> {
    fn sum(&self, cell: u32) -> u64 {
        let copies = 0..COPY_CPU0 + self.arena.layout.cpus;
        copies.fold(0, |sum: u64, copy| sum.wrapping_add(self.arena.raw(copy, cell)))
    }

    /// The rank that is summed for this one.
    fn summed(&self, rank: Rank) -> Rank {
        if self.broken == Some(LiveBroken::WrongRank) { rank.other() } else { rank }
    }

    /// A child that was killed in a hit never leaves it. Those inside now are forgotten if no process is left that was
    /// forked from this one: who comes after the first look here was not inside then.
    fn forget_dead_children(&mut self, rank: Rank) {
        let index = rank.index();
        let entered = self.arena.raw(COPY_CHILDREN, cell::entered(index));
        let inside = entered.wrapping_sub(self.arena.raw(COPY_CHILDREN, cell::left(index)));
        if inside != self.forgotten[index as usize] && self.arena.has_no_heir(self.memory.pid) {
            self.forgotten[index as usize] = inside;
        }
    }
}

impl Ranks for Driver<'_> {
    type Stop = Late;

    fn rank(&self) -> Rank {
        *self.rank
    }

    fn flip(&mut self, to: Rank) -> Result<(), Late> {
        for copy in [COPY_SHARED, COPY_CHILDREN] {
            self.arena.set_rank(copy, to.index());
        }
        let entries = self.arena.entries(to.index());
        for region in self.regions {
            let at = region.table + wire::table::CPU0 as u64;
            self.memory.write(at, &entries).map_err(|broken| self.late(broken))?;
        }
        *self.rank = to;
        Ok(())
    }

    fn entered(&self, rank: Rank) -> u64 {
        self.sum(cell::entered(self.summed(rank).index()))
    }

    fn left(&self, rank: Rank) -> u64 {
        let rank = self.summed(rank);
        self.sum(cell::left(rank.index())).wrapping_add(self.forgotten[rank.index() as usize])
    }

    fn needs_heavy_fence(&self) -> bool {
        true
    }

    fn heavy_fence(&mut self) -> Result<(), Late> {
        let stall = self.fence.make(self.memory.pid).map_err(|broken| self.late(broken))?;
        *self.stall = (*self.stall).max(stall);
        Ok(())
    }

    fn pause(&mut self, waiting: &Waiting) -> Result<(), Late> {
        if waiting.polls > 8 && self.memory.is_over() {
            return Err(Late::Over);
        }
        if Instant::now() >= self.until {
            return Err(Late::HitsInside);
        }
        if waiting.polls.is_multiple_of(LOOK_FOR_CHILDREN) {
            self.forget_dead_children(waiting.rank);
        }
        match waiting.polls {
            0..=8 => std::thread::yield_now(),
            polls => std::thread::sleep(Duration::from_micros(50) * polls.min(20)),
        }
        Ok(())
    }

    fn broken(&self) -> Option<rcu::Broken> {
        match self.broken {
            Some(LiveBroken::Grace(broken)) => Some(broken),
            _ => None,
        }
    }
}

impl Driver<'_> {
    fn late(&self, broken: Broken) -> Late {
        if self.memory.is_over() { Late::Over } else { Late::Broken(broken) }
    }
}
