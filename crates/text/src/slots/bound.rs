//! Slots that belong to a probe: the cached scheme.
//!
//! For:     [`super`].
//! State:   for each slot its probe, its users and when it was last entered, under one lock.
//! Context: hit; takes a lock that no thread holds while it sleeps or is interrupted: signals are blocked. No
//!          allocation.
//! Keeps:   B1 a slot is filled by one thread, while no other is in it, and entered when it is filled.
//!          B2 when slots run out, the one that was not entered for longest goes to another probe, if it has no user.
//! Checked: tests below; tests/model; tests/aarch64_hits.rs.
//! Source:  kernel-facts 1.10, 1.16: utrace's scheme.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard};

/// Which slot a probe had last: a hint, kept with the probe. One that is armed anew gets a new one, which finds no slot
/// that was filled before.
#[derive(Debug)]
pub struct Binding(AtomicU32);

impl Binding {
    /// None yet.
    pub const fn new() -> Binding {
        Binding(AtomicU32::new(u32::MAX))
    }
}

impl Default for Binding {
    fn default() -> Binding {
        Binding::new()
    }
}

/// A slot that the caller has entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its number.
    pub slot: usize,
    /// The caller must fill it and say so by [`Bound::filled`]; until then nobody else gets in.
    pub must_fill: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Record {
    /// The probe, by its address; 0 is none.
    probe: u64,
    users: u32,
    is_filled: bool,
    last_entered: u64,
}

#[derive(Debug)]
struct State {
    records: Vec<Record>,
    clock: u64,
}

/// Slots and the probes that they belong to.
#[derive(Debug)]
pub struct Bound {
    state: Mutex<State>,
    changed: Condvar,
    slept: AtomicU64,
    rebound: AtomicU64,
}

impl Bound {
    /// `slots` slots without a probe.
    pub fn new(slots: usize) -> Bound {
        let state = State { records: vec![Record::default(); slots], clock: 0 };
        Bound {
            state: Mutex::new(state),
            changed: Condvar::new(),
            slept: AtomicU64::new(0),
            rebound: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Enters the slot of the probe at `probe`, which is not 0; sleeps while all are in use by others, or another thread fills it.
    pub fn enter_wait(&self, probe: u64, binding: &Binding) -> Taken {
        let mut state = self.lock();
        loop {
            if let Some(taken) = self.enter(&mut state, probe, binding) {
                return taken;
            }
            self.slept.fetch_add(1, Relaxed);
            state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    fn enter(&self, state: &mut State, probe: u64, binding: &Binding) -> Option<Taken> {
        let State { records, clock } = state;
        let hint = binding.0.load(Relaxed) as usize;
        let owned = records.get(hint).is_some_and(|record| record.probe == probe);
        let slot = if owned { hint } else { oldest_idle(records)? };
        let record = &mut records[slot];
        if owned && !record.is_filled {
            return None;
        }
        *clock += 1;
        record.last_entered = *clock;
        if owned {
            record.users += 1;
            return Some(Taken { slot, must_fill: false });
        }
        self.rebound.fetch_add(u64::from(record.probe != 0), Relaxed);
        *record = Record { probe, users: 1, is_filled: false, last_entered: *clock };
        binding.0.store(slot as u32, Relaxed);
        Some(Taken { slot, must_fill: true })
    }

    /// The slot holds the probe's instruction, published.
    pub fn filled(&self, slot: usize) {
        self.lock().records[slot].is_filled = true;
        self.changed.notify_all();
    }

    /// The caller is out of the slot.
    pub fn leave(&self, slot: usize) {
        let mut state = self.lock();
        let record = &mut state.records[slot];
        record.users -= 1;
        if record.users == 0 {
            drop(state);
            self.changed.notify_one();
        }
    }

    /// How often a thread went to sleep.
    pub fn times_slept(&self) -> u64 {
        self.slept.load(Relaxed)
    }

    /// How often a slot went from one probe to another.
    pub fn times_rebound(&self) -> u64 {
        self.rebound.load(Relaxed)
    }
}

fn oldest_idle(records: &[Record]) -> Option<usize> {
    let idle = records.iter().enumerate().filter(|(_, record)| record.users == 0);
    idle.min_by_key(|(_, record)| record.last_entered).map(|(slot, _)| slot)
}

#[cfg(test)]
mod tests;
