//! Keys that are gone and whose elements stay in their chains: who comes back finds its own.
//!
//! For:     `Table`: a key that is a thread's number, or what a thread is at, comes and goes with every call.
//! State:   a bit in an element's version.
//! Context: hit, signal, target; of a checked map also control.
//! Keeps:   L1 of one key there is one element at most, there or asleep: a chain is changed under its bucket's lock alone.
//!          L2 a version is gone on from by one: who puts to sleep, wakes, writes or takes away an element has claimed the version
//!             that he saw, and nobody else can any more. Elements of a `Hash` do not sleep, and are not claimed.
//!          L3 a key that wakes is seen with its new value, whole, or not at all.
//!          L4 an element that stays with its key is never another's: its version says whether the key is there, and nobody
//!             claims it. Who sets and removes is the thread whose key it is, and handlers that interrupt it; who clears, anybody.
//! Checked: model `sleep` (mutants MAP-52, unclaimed-reaper), model `stay` (mutants MAP-57, staying-reaped, same-version), tests/programs/table.rs, tests/programs/sleep.rs.

use super::bucket::Locked;
use super::{END, Entries, HAND, NEXT, SLEEPS, STAYS, Store, TRIES, VERSION};
use crate::Error;
use crate::place::{ASLEEP, Access, claim_write, close_write, put_to_sleep, set_asleep};
use crate::prim::{Relaxed, spin};

/// An element of a key, there or asleep, and the version that it had.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Met {
    pub index: u32,
    pub version: u32,
}

impl Met {
    /// True if its key was gone.
    pub fn is_asleep(self) -> bool {
        self.version & ASLEEP != 0
    }
}

impl<M: Access> Entries<M> {
    /// The element of a key, which may be asleep.
    pub(crate) fn seek(&self, key: &[u8]) -> Result<Met, Error> {
        self.meet::<true, Met>(key, |element, index, version| {
            self.use_it(element);
            Met { index, version }
        })
    }

    /// The key is gone from here on; false if somebody else did something to its element.
    #[inline(always)]
    pub(crate) fn let_sleep(&self, met: Met) -> bool {
        put_to_sleep(self.element(met.index).u32(VERSION), met.version)
    }

    /// A key is there or gone from here on, whose element stays its own; false if its thread was interrupted by who changed that.
    #[inline(always)]
    pub(crate) fn set_asleep(&self, met: Met, is_asleep: bool) -> bool {
        set_asleep(self.element(met.index).u32(VERSION), met.version, is_asleep)
    }

    /// Writes to an element that nobody else writes meanwhile; one that is asleep is there afterwards. False if somebody else did
    /// something to it.
    #[inline(always)]
    pub(crate) fn rewrite(&self, met: Met, write: impl FnOnce(u32)) -> bool {
        let element = self.element(met.index);
        let is_ours = claim_write(element.u32(VERSION), met.version);
        if is_ours {
            write(met.index);
            close_write(element.u32(VERSION));
        }
        is_ours
    }

    /// The same to the element of a key that is there.
    pub(crate) fn rewrite_there(&self, index: u32, write: impl FnOnce(u32)) -> bool {
        let version = self.element(index).u32(VERSION).load(Relaxed);
        version & (ASLEEP | 1) == 0 && self.rewrite(Met { index, version }, write)
    }

    /// The key is gone from here on; false if it was gone, Busy if it changes at every look.
    pub(crate) fn let_sleep_now(&self, index: u32) -> Result<bool, Error> {
        self.once_free(index, false, |met| self.let_sleep(met))
    }

    /// An element, if it is asleep.
    pub(super) fn sleeper(&self, index: u32) -> Option<Met> {
        let version = self.element(index).u32(VERSION).load(Relaxed);
        (version & (ASLEEP | 1) == ASLEEP).then_some(Met { index, version })
    }

    /// Makes an element its caller's, who takes it out of its chain then; false if somebody else did something to it.
    pub(super) fn claim(&self, met: Met) -> bool {
        claim_write(self.element(met.index).u32(VERSION), met.version) || cfg!(mutant = "unclaimed-reaper")
    }

    /// The same of an element as it is; whether its key was there. One that is asleep is left, if not `also_asleep`.
    pub(super) fn claim_to_unlink(&self, index: u32, also_asleep: bool) -> Result<bool, Error> {
        if self.shape.kind & SLEEPS == 0 {
            return Ok(true);
        }
        self.once_free(index, also_asleep, |met| self.claim(met))
    }

    /// Does something to an element that nobody is writing; whether its key was there. One that is asleep is left, if not
    /// `also_asleep`.
    fn once_free(&self, index: u32, also_asleep: bool, act: impl Fn(Met) -> bool) -> Result<bool, Error> {
        for _ in 0..TRIES {
            let met = Met { index, version: self.element(index).u32(VERSION).load(Relaxed) };
            let is_free = met.version & 1 == 0;
            if is_free && met.is_asleep() && !also_asleep {
                return Ok(false);
            }
            if is_free && act(met) {
                return Ok(!met.is_asleep());
            }
            spin();
        }
        Err(self.said_busy())
    }

    /// Takes an element that is asleep out of its chain.
    #[cold]
    pub(crate) fn reap(&self, store: &impl Store) -> Option<u32> {
        // Those that stay with their keys are all that may sleep then.
        if self.shape.kind & STAYS != 0 || store.asleep() == 0 {
            return None;
        }
        for _ in 0..=self.mask {
            let number = self.counts.u32(HAND).fetch_add(1, Relaxed) & self.mask;
            if self.bucket(number).head().load(Relaxed) & END != 0 {
                continue;
            }
            let Some(locked) = self.bucket(number).lock(1) else { continue };
            if let Some(index) = self.reap_one(&locked) {
                store.has_reaped();
                return Some(index);
            }
        }
        None
    }

    fn reap_one(&self, locked: &Locked<M>) -> Option<u32> {
        let (mut before, mut index) = (0, locked.0.head().load(Relaxed));
        for _ in 0..self.steps(1) {
            if index & END != 0 || index == 0 {
                break;
            }
            let may_go = !self.stays(index) || cfg!(mutant = "staying-reaped");
            if may_go && self.sleeper(index).is_some_and(|met| self.claim(met)) {
                self.unlink(locked, before, index);
                return Some(index);
            }
            (before, index) = (index, self.element(index).u32(NEXT).load(Relaxed));
        }
        None
    }
}

/// What a `Table` does, for models.
#[cfg(loom)]
impl super::Hash {
    /// Sets a key's value, whether it is there, asleep, or neither.
    pub fn set(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let write = |index| self.value_of(index, 0).write(value);
        for _ in 0..TRIES {
            let is_done = match self.seek(key) {
                Ok(met) => self.rewrite(met, write),
                Err(Error::NotFound) => match self.make(&self.store(), key, super::Flag::NoExist, write) {
                    Err(Error::Exists) => false,
                    made => return made.map(|_| ()),
                },
                Err(error) => return Err(error),
            };
            if is_done {
                return Ok(());
            }
        }
        Err(self.said_busy())
    }

    /// Sets a key's value, of one word, as a table does whose elements stay.
    pub fn assign(&self, key: &[u8], value: u64) -> Result<(), Error> {
        let write = |index| self.value_of(index, 0).u64(0).store(value, Relaxed);
        for _ in 0..TRIES {
            match self.seek(key) {
                Ok(met) => {
                    write(met.index);
                    if !met.is_asleep() || self.set_asleep(met, false) {
                        return Ok(());
                    }
                }
                Err(Error::NotFound) => match self.make(&self.store(), key, super::Flag::NoExist, write) {
                    Err(Error::Exists) => {}
                    made => return made.map(|_| ()),
                },
                Err(error) => return Err(error),
            }
        }
        Err(self.said_busy())
    }

    /// Removes a key, as such a table does.
    pub fn unassign(&self, key: &[u8]) -> Result<bool, Error> {
        for _ in 0..TRIES {
            let met = self.seek(key)?;
            if met.is_asleep() || self.set_asleep(met, true) {
                return Ok(!met.is_asleep());
            }
        }
        Err(self.said_busy())
    }

    /// Removes all keys.
    pub fn unassign_all(&self) {
        self.remove_all(&self.store());
    }

    /// Removes a key, whose element stays.
    pub fn sleep(&self, key: &[u8]) -> Result<bool, Error> {
        self.seek(key).map(|met| !met.is_asleep() && self.let_sleep(met))
    }

    /// Takes the first element that is asleep away, if there is one in the one bucket.
    pub fn reap_any(&self) -> bool {
        let store = self.store();
        let reaped = self.bucket(0).lock(TRIES).and_then(|locked| self.reap_one(&locked));
        reaped.map(|index| store.give(index)).is_some()
    }
}
