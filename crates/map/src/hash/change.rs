//! Making, replacing and removing of elements, wherever they come from.
//!
//! For:     `Hash` (elements of a cache) and `Table` (its own).
//! State:   chains.
//! Context: hit, signal, target; of a checked map also control.
//! Keeps:   see `hash`.
//!          H6 every loop ends after a number of steps that the map's shape bounds, whatever lies there.
//! Checked: model `hash` (mutant MAP-23), tests/semantics.rs, tests/programs/table.rs, tests/untrusted.rs (H6).

use super::bucket::{Locked, hash_of_key};
use super::{
    DATA, END, EVICTED, Entries, Flag, HAND, IS_LIVE, LRU, NEXT, SUM, Store, TRIES, USED, VERSION, WAS_USED,
};
use crate::Error;
use crate::place::{Access, close_write, open_write};
use crate::prim::{Relaxed, Release};

/// So many buckets an LRU map looks at for a key that was not used lately; then any key will do.
const PATIENCE: u32 = 64;

impl<M: Access> Entries<M> {
    /// The element of a key, and whether it was made now: `first` writes its value.
    #[inline(always)]
    pub(crate) fn find_or_make(
        &self,
        store: &impl Store,
        key: &[u8],
        first: impl Fn(u32),
    ) -> Result<(u32, bool), Error> {
        let found = self.find(key, |element, index| {
            self.use_it(element);
            index
        });
        match found {
            Err(Error::NotFound) => self.make_or_find(store, key, first),
            found => found.map(|index| (index, false)),
        }
    }

    #[cold]
    #[inline(never)]
    fn make_or_find(
        &self,
        store: &impl Store,
        key: &[u8],
        first: impl Fn(u32),
    ) -> Result<(u32, bool), Error> {
        for _ in 0..TRIES {
            match self.make(store, key, Flag::NoExist, &first) {
                // Somebody else was faster, perhaps with the last element.
                Err(error @ (Error::Exists | Error::Full | Error::NoMemory)) => {
                    match self.find(key, |_, index| index) {
                        Err(Error::NotFound) if error == Error::Exists => {}
                        Err(Error::NotFound) => return Err(error),
                        found => return found.map(|index| (index, false)),
                    }
                }
                made => return made.map(|index| (index, true)),
            }
        }
        Err(self.said_busy())
    }

    /// Removes a key; who has seen its element may still look at it.
    pub(crate) fn remove(&self, store: &impl Store, key: &[u8]) -> Result<(), Error> {
        let hash = hash_of_key(key);
        let locked = self.lock(hash)?;
        let (before, index) = self.place_of(&locked, hash, key).ok_or(Error::NotFound)?;
        if self.stays(index) {
            return if self.let_sleep_now(index)? { Ok(()) } else { Err(Error::NotFound) };
        }
        if !self.claim_to_unlink(index, false)? {
            return Err(Error::NotFound);
        }
        self.unlink(&locked, before, index);
        drop(locked);
        store.has_removed();
        store.give(index);
        Ok(())
    }

    /// Removes every key that is there all the time.
    pub(crate) fn remove_all(&self, store: &impl Store) {
        /// So many buckets are waited for. Nobody holds more of them for so long: what says so was not written by a map.
        const AWAITED: u32 = 16;
        let mut steps = self.steps(self.mask + 1);
        let mut awaited = AWAITED;
        for number in 0..=self.mask {
            let tries = if awaited > 0 { TRIES } else { 1 };
            let Some(locked) = self.bucket(number).lock(tries) else {
                awaited = awaited.saturating_sub(1);
                self.said_busy();
                continue;
            };
            let (mut before, mut index) = (0, locked.0.head().load(Relaxed));
            while index & END == 0 && index != 0 && steps > 0 {
                steps -= 1;
                if self.stays(index) {
                    if self.let_sleep_now(index).is_err() {
                        break;
                    }
                    (before, index) = (index, self.element(index).u32(NEXT).load(Relaxed));
                    continue;
                }
                match self.claim_to_unlink(index, true) {
                    Ok(true) => store.has_removed(),
                    Ok(false) => store.has_reaped(),
                    Err(_) => break,
                }
                let next = self.element(index).u32(NEXT).load(Relaxed);
                self.unlink(&locked, before, index);
                store.give(index);
                index = next;
            }
        }
    }

    /// A new element for a key, in the place of the old one if there is one.
    pub(crate) fn make(
        &self,
        store: &impl Store,
        key: &[u8],
        flag: Flag,
        fill: impl FnOnce(u32),
    ) -> Result<u32, Error> {
        let hash = hash_of_key(key);
        let index = store.take().or_else(|| self.evict_and_take(store)).ok_or(Error::NoMemory)?;
        let element = self.element(index);
        open_write(element.u32(VERSION));
        element.u32(SUM).store(hash, Relaxed);
        element.u32(USED).store(0, Relaxed);
        element.at(DATA).write(key);
        fill(index);
        close_write(element.u32(VERSION));
        match self.link(store, hash, key, flag, index) {
            Ok(old) => {
                if let Some(old) = old {
                    self.element(old).u32(USED).store(0, Relaxed);
                    store.give(old);
                }
                Ok(index)
            }
            Err(error) => {
                store.untake(index);
                Err(error)
            }
        }
    }

    /// Puts an element into its chain; the one that it replaces.
    fn link(
        &self,
        store: &impl Store,
        hash: u32,
        key: &[u8],
        flag: Flag,
        index: u32,
    ) -> Result<Option<u32>, Error> {
        let locked = self.lock(hash)?;
        let old = self.place_of(&locked, hash, key);
        let sleeper = old.and_then(|(_, old)| self.sleeper(old));
        match (flag, old.is_some() && sleeper.is_none()) {
            (Flag::NoExist, true) => return Err(Error::Exists),
            (Flag::Exist, false) => return Err(Error::NotFound),
            _ => {}
        }
        if let Some(sleeper) = sleeper {
            // It is to be woken, where it stays.
            if self.stays(sleeper.index) {
                return Err(Error::Exists);
            }
            // Who was faster has woken it: then it is there.
            if !self.claim(sleeper) {
                return Err(Error::Exists);
            }
            store.has_reaped();
        }
        if old.is_none() && !store.may_add() && !self.evict(store, locked.0.number) {
            return Err(Error::Full);
        }
        // A new key goes to the front; a new value takes the old one's place, by one store.
        let (before, next) = match old {
            Some((before, old)) => (before, self.element(old).u32(NEXT).load(Relaxed)),
            None => (0, locked.0.head().load(Relaxed)),
        };
        let element = self.element(index);
        element.u32(NEXT).store(next, Relaxed);
        // Nothing refuses it any more: who knows its place from before may find it.
        element.u32(USED).store(WAS_USED | IS_LIVE, Relaxed);
        let previous = self.element(before);
        let link = if before == 0 { locked.0.head() } else { previous.u32(NEXT) };
        // [MAP-23] The element is seen whole. Pairs with [MAP-22], [MAP-25], [MAP-27], [MAP-28], [MAP-50], [JIT-2]
        // and [MAP-51].
        #[cfg(not(mutant = "MAP-23"))]
        let order = Release;
        #[cfg(mutant = "MAP-23")]
        let order = Relaxed;
        link.store(index, order);
        Ok(old.map(|(_, old)| old))
    }

    /// The element of a key and the one before it, 0 for the first.
    pub(crate) fn place_of(&self, locked: &Locked<M>, hash: u32, key: &[u8]) -> Option<(u32, u32)> {
        let (mut before, mut index) = (0, locked.0.head().load(Relaxed));
        for _ in 0..self.steps(1) {
            if index & END != 0 || index == 0 {
                break;
            }
            let element = self.element(index);
            if self.matches(element, hash, key) {
                return Some((before, index));
            }
            (before, index) = (index, element.u32(NEXT).load(Relaxed));
        }
        None
    }

    /// Takes an element out of its chain; who stands on it still finds the way on.
    pub(super) fn unlink(&self, locked: &Locked<M>, before: u32, index: u32) {
        let element = self.element(index);
        let next = element.u32(NEXT).load(Relaxed);
        let previous = self.element(before);
        let link = if before == 0 { locked.0.head() } else { previous.u32(NEXT) };
        // [MAP-24] As [MAP-23], for what follows. Pairs with [MAP-27], [MAP-51].
        link.store(next, Release);
        element.u32(USED).store(0, Relaxed);
    }

    /// A map without elements takes one that is asleep; an LRU map forgets a key and tries again.
    #[cold]
    fn evict_and_take(&self, store: &impl Store) -> Option<u32> {
        if let Some(index) = self.reap(store) {
            return Some(index);
        }
        if self.evict(store, END) {
            store.has_removed();
        }
        store.take()
    }

    /// Forgets one key that was not used lately, outside of the bucket that the caller has locked; its credit is
    /// the caller's. False if this is no LRU map, or every bucket was in use.
    #[cold]
    fn evict(&self, store: &impl Store, locked: u32) -> bool {
        if self.shape.kind & LRU == 0 {
            return false;
        }
        for n in 0..(2 * (self.mask + 1)).max(PATIENCE) {
            let number = self.counts.u32(HAND).fetch_add(1, Relaxed) & self.mask;
            if number == locked {
                continue;
            }
            let Some(bucket) = self.bucket(number).lock(1) else { continue };
            if let Some(index) = self.forget_one(&bucket, n >= PATIENCE) {
                drop(bucket);
                self.counts.u64(EVICTED).fetch_add(1, Relaxed);
                store.give(index);
                return true;
            }
        }
        false
    }

    fn forget_one(&self, locked: &Locked<M>, any_will_do: bool) -> Option<u32> {
        let (mut before, mut index) = (0, locked.0.head().load(Relaxed));
        for _ in 0..self.steps(1) {
            if index & END != 0 || index == 0 {
                break;
            }
            let element = self.element(index);
            let is_it = element.u32(USED).load(Relaxed) & WAS_USED == 0 || any_will_do;
            if is_it && self.claim_to_unlink(index, true).is_ok() {
                self.unlink(locked, before, index);
                return Some(index);
            }
            element.u32(USED).store(IS_LIVE, Relaxed);
            (before, index) = (index, element.u32(NEXT).load(Relaxed));
        }
        None
    }
}
