//! What sites have counted that run no program, taken into the maps.
//!
//! For:     live.
//! State:   how much of each cell was taken already.
//! Context: control.
//! Keeps:   N1 each hit that a site has counted is taken in once, by the end at the latest.
//! Checked: testkit `scripts`.

use lang::program::Native;
use lang::run::Shared;
use session::Session;
use std::collections::BTreeMap;

/// The sites of one process that count by themselves, by address.
#[derive(Clone, Debug, Default)]
pub struct Natives(pub BTreeMap<u64, Native>);

/// How much of a session was taken: by address and cell.
#[derive(Debug, Default)]
pub struct Taken(BTreeMap<(u64, usize), u64>);

impl Natives {
    /// Takes in what has come since the last time.
    pub fn collect(&self, session: &Session, maps: &Shared, taken: &mut Taken) {
        for site in session.sites() {
            let addr = site.plan.addr();
            let Some(native) = self.0.get(&addr) else { continue };
            for (cell, now) in site.cells().into_iter().enumerate() {
                let before = taken.0.entry((addr, cell)).or_default();
                let more = now.saturating_sub(std::mem::replace(before, now));
                if more > 0 {
                    take_in(native, cell, more, maps);
                }
            }
        }
    }

    /// All hits of these sites.
    pub fn hits(&self, session: &Session) -> u64 {
        let own = session.sites().filter(|site| self.0.contains_key(&site.plan.addr()));
        own.fold(0, |sum, site| sum.saturating_add(site.hits()))
    }
}

fn take_in(native: &Native, cell: usize, more: u64, maps: &Shared) {
    let (map, value) = match native {
        Native::Count { map } => (*map, 0),
        // Bucket 0 has zeros; bucket n values from 2^(n-1) on.
        Native::Histogram { map, .. } => (*map, cell.checked_sub(1).map_or(0, |bit| 1u64 << bit.min(63))),
    };
    // A map of one key is never full.
    let _ = maps.borrow().table(map).aggregate_many(&lang::program::SCALAR_KEY, value, more);
}
