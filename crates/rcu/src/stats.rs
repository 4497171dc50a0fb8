//! The state of a domain as one line.
//!
//! For:     torture's report, a program's status page.
//! State:   a copy, taken when asked.
//! Context: target, control.
//! Keeps:   nothing: the values are read one after the other.
//! Checked: `tests/grace_periods.rs`.
//! Source:  kernel `srcu_torture_stats_print` for what the line holds.

use crate::prim::Relaxed;
use crate::{Domain, Fences, FlavourSet, Phase, seq};
use core::fmt;
use std::string::{String, ToString};
use std::vec::Vec;

/// A domain's numbers.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Its name.
    pub domain: String,
    /// The number of the grace period, with its phase.
    pub gp: u64,
    /// Grace periods that have ended.
    pub periods: u64,
    /// Process-wide fences that they took.
    pub heavy_fences: u64,
    /// Flavours seen.
    pub recorded: FlavourSet,
    /// How readers are ordered here.
    pub fences: Fences,
    /// Readers inside per CPU, and behind the CPUs those of all seats: on the old rank and on the current one; may be
    /// negative by themselves.
    pub readers: Vec<(i64, i64)>,
    /// Callbacks waiting per list.
    pub callbacks: Vec<usize>,
    /// Callbacks called so far, those of barriers among them; and run so far.
    pub called: u64,
    /// See `called`.
    pub invoked: u64,
    /// Waits by kind: plain, expedited by request, expedited by themselves (counted in plain too).
    pub waits: [u64; 3],
    /// Stall reports so far.
    pub stalls: u64,
}

impl Domain {
    /// The domain's numbers now.
    pub fn stats(&self) -> Stats {
        let (block, counts) = (self.block, &self.updater.counts);
        let current = block.rank().index() as usize;
        let by_cpu = |cpu| {
            let ranks = block.readers_of_copy(cpu);
            (ranks[1 - current], ranks[current])
        };
        let seats = (1..=block.head().seats.load(Relaxed)).map(|seat| block.readers_of_seat(seat));
        let seated = seats.fold((0, 0), |t, ranks| (t.0 + ranks[1 - current], t.1 + ranks[current]));
        Stats {
            domain: self.name().to_string(),
            gp: block.gp_seq(),
            periods: block.periods(),
            heavy_fences: block.heavy_fences(),
            recorded: block.recorded(),
            fences: self.fences(),
            readers: (0..block.copies()).map(by_cpu).chain([seated]).collect(),
            callbacks: self.callbacks_by_list(),
            called: counts.called.load(Relaxed),
            invoked: counts.invoked.load(Relaxed),
            waits: [&counts.synchronized, &counts.expedited, &counts.auto_expedited].map(|c| c.load(Relaxed)),
            stalls: counts.stalls.load(Relaxed),
        }
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match seq::phase(self.gp) {
            Phase::Idle => "idle",
            Phase::Scan1 => "scan1",
            Phase::Scan2 => "scan2",
        };
        write!(
            f,
            "domain {} [{}] gp {:#x} {state} per-cpu(old,current):",
            self.domain, self.recorded, self.gp
        )?;
        for (cpu, (old, current)) in self.readers.iter().enumerate() {
            let callbacks = self.callbacks.get(cpu).is_some_and(|n| *n > 0);
            write!(f, " {cpu}({old},{current} {})", if callbacks { 'C' } else { '.' })?;
        }
        let total = self.readers.iter().fold((0, 0), |t, r| (t.0 + r.0, t.1 + r.1));
        write!(
            f,
            " T({},{}) gps {} fences {} cbs {}/{} waits {}+{} auto {} stalls {} by {}",
            total.0,
            total.1,
            self.periods,
            self.heavy_fences,
            self.invoked,
            self.called,
            self.waits[0],
            self.waits[1],
            self.waits[2],
            self.stalls,
            self.fences
        )
    }
}
