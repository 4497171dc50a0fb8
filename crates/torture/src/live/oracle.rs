//! What each consumer must have counted.
//!
//! For:     `world`, which adds and removes them.
//! State:   for each consumer where it is, and how many calls there were when it came and went.
//! Context: control.
//! Keeps:   O1 a bound is never too tight: calls are counted before they begin and after they are over, and each sum is
//!             taken on the side where being late makes the bound wider.
//! Checked: honest runs pass, `--broken` runs do not.

use super::target::{BUSY, Shared};
use session::ConsumerId;
use std::collections::BTreeMap;

/// One consumer that comes and goes.
#[derive(Clone, Copy, Debug)]
pub struct Guest {
    pub function: usize,
    /// Calls that were over before it came.
    over: u64,
    /// Calls that had begun when it had come.
    begun: u64,
    /// Calls that were over when it began to go.
    last: u64,
}

/// All of them.
#[derive(Default)]
pub struct Oracle {
    pub there: BTreeMap<ConsumerId, Guest>,
    going: BTreeMap<ConsumerId, Guest>,
}

impl Oracle {
    /// Calls of each function that are over: to be asked before a change.
    pub fn before(shared: &Shared) -> [u64; BUSY] {
        std::array::from_fn(|f| shared.done(f))
    }

    /// These have come, in a change before which so many calls were over.
    pub fn came(
        &mut self,
        shared: &Shared,
        before: &[u64; BUSY],
        guests: impl Iterator<Item = (ConsumerId, usize)>,
    ) {
        let begun: [u64; BUSY] = std::array::from_fn(|f| shared.begun(f));
        for (id, function) in guests {
            let of = |counts: &[u64; BUSY]| counts.get(function).copied().unwrap_or(0);
            self.there.insert(id, Guest { function, over: of(before), begun: of(&begun), last: 0 });
        }
    }

    /// These have gone, in a change before which so many calls were over.
    pub fn went(&mut self, before: &[u64; BUSY], gone: &[ConsumerId]) {
        for id in gone {
            if let Some(mut guest) = self.there.remove(id) {
                guest.last = before.get(guest.function).copied().unwrap_or(0);
                self.going.insert(*id, guest);
            }
        }
    }

    /// Compares what a consumer has counted to its last hit.
    pub fn check(&mut self, shared: &Shared, id: ConsumerId, counted: u64) -> Result<(), String> {
        let guest = self.going.remove(&id).ok_or_else(|| format!("{id:?} was not there"))?;
        let Guest { function, over, begun, last } = guest;
        let least = last.saturating_sub(begun);
        let most = if function < BUSY { shared.begun(function) - over } else { 0 };
        match (least..=most).contains(&counted) {
            true => Ok(()),
            false => Err(format!("{id:?} at function {function} counted {counted}, not {least} to {most}")),
        }
    }

    /// Consumers that have gone and were not settled.
    pub fn going(&self) -> usize {
        self.going.len()
    }
}
