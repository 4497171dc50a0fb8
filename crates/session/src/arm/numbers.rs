//! Places in the arena, given out one behind the other.
//!
//! For:     `Session::attach`, while it builds trampolines.
//! State:   what the next site gets.
//! Context: control.
//! Keeps:   N1 no two consumers share a cell, but an exit its function's.
//! Checked: testkit `counting`, `returns`.

use crate::facts::site::{Consumer, SitePlan};
use std::collections::BTreeMap;
use wire::cell;

/// What the next site gets: its first cell, and its hooks' and consumers' places in the arena.
pub(crate) struct Numbers {
    pub cell: u32,
    pub hook: usize,
    pub consumer: usize,
    /// First cell of each function whose calls are timed.
    pub functions: BTreeMap<u32, u32>,
}

impl Numbers {
    pub fn of(sites: &[SitePlan]) -> Numbers {
        const EACH: u32 = wire::latency::CELLS * 8;
        let opened = sites.iter().filter_map(SitePlan::opens).zip(0..);
        let functions: BTreeMap<u32, u32> = opened.map(|(f, n)| (f, cell::FIRST_FREE + n * EACH)).collect();
        let cell = cell::FIRST_FREE + functions.len() as u32 * EACH;
        Numbers { cell, hook: 0, consumer: 0, functions }
    }

    /// For one site whose place is known.
    pub fn at(cell: u32, hook: u32, consumer: u32) -> Numbers {
        let (hook, consumer) = (hook as usize, consumer as usize);
        Numbers { cell: cell * 8, hook, consumer, functions: BTreeMap::new() }
    }

    /// The first of `cells` new ones.
    pub fn take_cells(&mut self, cells: u32) -> u32 {
        self.cell += cells * 8;
        self.cell - cells * 8
    }

    /// The first cell of a consumer: its function's, or new ones.
    pub fn cell_of(&mut self, consumer: Consumer) -> u32 {
        match consumer.function() {
            Some(function) => self.functions.get(&function).copied().unwrap_or_default(),
            None => self.take_cells(consumer.cells()),
        }
    }
}
