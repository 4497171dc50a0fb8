//! Update, delete, add.
//!
//! For:     programs.
//! State:   chains.
//! Context: hit, signal, target.
//! Keeps:   see `hash`.
//! Checked: model `hash` (mutant MAP-23), tests/semantics.rs.

use super::bucket::{Locked, hash_of_key};
use super::{DATA, END, EVICTED, Flag, HAND, Hash, LRU, NEXT, PER_CPU, PLAIN, SUM, USED, VERSION};
use crate::Error;
use crate::place::{Access, Place, close_write, open_write};
use crate::prim::{Relaxed, Release};
use core::ptr::NonNull;
use objcache::Index;

impl Hash {
    /// The address of a key's value, to be changed in place.
    ///
    /// # Errors
    /// NotFound, Length, Busy.
    /// # Context
    /// In a reader of the cache's domain, which keeps the value what it is; without one, or in a map with
    /// plain free, the bytes may come to be another key's value.
    #[inline]
    pub fn value_ptr(&self, key: &[u8]) -> Result<NonNull<u8>, Error> {
        Error::check(key.len(), self.key)?;
        let copy = self.my_copy();
        self.find(key, |element, _| {
            self.use_it(element);
            self.value_of(element, copy).ptr()
        })
    }

    /// The address of a key's value, which is made of `init` if the key is not there: one walk for a key that is.
    ///
    /// Of a per-CPU hash that of the calling CPU; those of others begin as zeros.
    ///
    /// # Errors
    /// As [`update`](Self::update).
    /// # Context
    /// As [`value_ptr`](Self::value_ptr).
    #[inline]
    pub fn value_or_init(&self, key: &[u8], init: &[u8]) -> Result<NonNull<u8>, Error> {
        Error::check(init.len(), self.value)?;
        let copy = self.my_copy();
        let made = |element| self.value_of(element, copy).write(init);
        self.find_or_make(key, made).map(|(element, _)| self.value_of(element, copy).ptr())
    }

    /// Adds to the first word of a key's value, which is made if it is not there.
    ///
    /// # Errors
    /// As [`update`](Self::update).
    /// # Context
    /// As [`value_ptr`](Self::value_ptr).
    #[inline]
    pub fn add(&self, key: &[u8], n: u64) -> Result<(), Error> {
        let copy = self.my_copy();
        let first = |element| self.value_of(element, copy).u64(0).store(n, Relaxed);
        let (element, is_new) = self.find_or_make(key, first)?;
        if !is_new {
            self.value_of(element, copy).u64(0).fetch_add(n, Relaxed);
        }
        Ok(())
    }

    /// The element of a key, and whether it was made now: of zeros, and what `first` writes.
    #[inline(always)]
    fn find_or_make(&self, key: &[u8], first: impl Fn(Place)) -> Result<(Place, bool), Error> {
        Error::check(key.len(), self.key)?;
        loop {
            let found = self.find(key, |element, _| {
                self.use_it(element);
                element
            });
            match found {
                Err(Error::NotFound) => {}
                found => return found.map(|element| (element, false)),
            }
            let made = self.make(key, Flag::NoExist, |element| {
                self.zero(element);
                first(element);
            });
            match made {
                // Somebody else was faster.
                Err(Error::Exists) => {}
                made => return made.map(|element| (element, true)),
            }
        }
    }

    /// Sets the value of a key; of a per-CPU hash that of the calling CPU, the others of a new key are zeros.
    ///
    /// A value that is replaced goes to a new element: readers see the old one or the new one.
    ///
    /// # Errors
    /// Exists, NotFound by the flag; Full, NoMemory, Busy, Length.
    #[inline]
    pub fn update(&self, key: &[u8], value: &[u8], flag: Flag) -> Result<(), Error> {
        Error::check(key.len(), self.key)?;
        Error::check(value.len(), self.value)?;
        let copy = self.my_copy();
        if self.shape.kind & PER_CPU != 0 && flag != Flag::NoExist {
            // In place: only this CPU's threads write to the copy.
            let done = self.find(key, |element, _| self.value_of(element, copy).write(value));
            if done != Err(Error::NotFound) {
                return done;
            }
        }
        self.make(key, flag, |element| {
            if self.copies > 1 {
                self.zero(element);
            }
            self.value_of(element, copy).write(value);
        })
        .map(|_| ())
    }

    /// Removes a key.
    ///
    /// # Errors
    /// NotFound, Busy, Length.
    pub fn delete(&self, key: &[u8]) -> Result<(), Error> {
        Error::check(key.len(), self.key)?;
        let hash = hash_of_key(key);
        let locked = self.lock(hash)?;
        let (before, index) = self.place_of(&locked, hash, key).ok_or(Error::NotFound)?;
        self.unlink(&locked, before, index);
        drop(locked);
        self.credits.give();
        self.give_back(index);
        Ok(())
    }

    fn zero(&self, element: Place) {
        let (first, bytes) = (self.value_of(element, 0), self.copies as usize * self.shape.value_stride());
        (0..bytes / 8).for_each(|n| first.u64(n * 8).store(0, Relaxed));
    }

    /// A new element for a key, in the place of the old one if there is one.
    fn make(&self, key: &[u8], flag: Flag, fill: impl FnOnce(Place)) -> Result<Place, Error> {
        let hash = hash_of_key(key);
        let index = self.view.alloc().or_else(|| self.evict_and_alloc()).ok_or(Error::NoMemory)?;
        let element = self.element(index.get());
        open_write(element.u32(VERSION));
        element.u32(SUM).store(hash, Relaxed);
        element.u32(USED).store(1, Relaxed);
        element.at(DATA).write(key);
        fill(element);
        close_write(element.u32(VERSION));
        match self.link(hash, key, flag, index.get()) {
            Ok(old) => {
                if let Some(old) = old {
                    self.give_back(old);
                }
                Ok(element)
            }
            Err(error) => {
                // SAFETY: nobody has seen the element.
                unsafe { self.view.free(index) };
                Err(error)
            }
        }
    }

    /// Puts an element into its chain; the one that it replaces.
    fn link(&self, hash: u32, key: &[u8], flag: Flag, index: u32) -> Result<Option<u32>, Error> {
        let locked = self.lock(hash)?;
        let old = self.place_of(&locked, hash, key);
        match (flag, old.is_some()) {
            (Flag::NoExist, true) => return Err(Error::Exists),
            (Flag::Exist, false) => return Err(Error::NotFound),
            _ => {}
        }
        if old.is_none() && !self.credits.take() && !self.evict(locked.0.number) {
            return Err(Error::Full);
        }
        // A new key goes to the front; a new value takes the old one's place, by one store.
        let (before, next) = match old {
            Some((before, old)) => (before, self.element(old).u32(NEXT).load(Relaxed)),
            None => (0, locked.0.head().load(Relaxed)),
        };
        self.element(index).u32(NEXT).store(next, Relaxed);
        let link = if before == 0 { locked.0.head() } else { self.element(before).u32(NEXT) };
        // [MAP-23] The element is seen whole. Pairs with [MAP-22], [MAP-25], [MAP-27], [MAP-28].
        #[cfg(not(mutant = "MAP-23"))]
        let order = Release;
        #[cfg(mutant = "MAP-23")]
        let order = Relaxed;
        link.store(index, order);
        Ok(old.map(|(_, old)| old))
    }

    /// The element of a key and the one before it, 0 for the first.
    fn place_of(&self, locked: &Locked<Place>, hash: u32, key: &[u8]) -> Option<(u32, u32)> {
        let (mut before, mut index) = (0, locked.0.head().load(Relaxed));
        while index & END == 0 {
            let element = self.element(index);
            if self.matches(element, hash, key) {
                return Some((before, index));
            }
            (before, index) = (index, element.u32(NEXT).load(Relaxed));
        }
        None
    }

    /// Takes an element out of its chain; who stands on it still finds the way on.
    fn unlink(&self, locked: &Locked<Place>, before: u32, index: u32) {
        let next = self.element(index).u32(NEXT).load(Relaxed);
        let link = if before == 0 { locked.0.head() } else { self.element(before).u32(NEXT) };
        // [MAP-24] As [MAP-23], for what follows. Pairs with [MAP-27].
        link.store(next, Release);
    }

    fn give_back(&self, index: u32) {
        let Some(index) = Index::from_raw(index) else { return };
        if self.shape.kind & PLAIN != 0 {
            // SAFETY: unlinked by this thread; readers tell by the version.
            unsafe { self.view.free(index) };
        } else {
            // SAFETY: unlinked by this thread.
            unsafe { self.view.free_rcu(index) };
        }
    }

    /// An LRU map without objects forgets a key and tries again.
    #[cold]
    fn evict_and_alloc(&self) -> Option<Index> {
        if self.evict(END) {
            self.credits.give();
        }
        self.view.alloc()
    }

    /// Forgets one key that was not used lately, outside of the bucket that the caller has locked; its credit is
    /// the caller's. False if this is no LRU map, or every bucket was in use.
    #[cold]
    fn evict(&self, locked: u32) -> bool {
        if self.shape.kind & LRU == 0 {
            return false;
        }
        // Twice round: the first time round every key may have been used.
        for _ in 0..2 * (self.mask + 1) {
            let number = self.place.u32(HAND).fetch_add(1, Relaxed) & self.mask;
            if number == locked {
                continue;
            }
            let Some(bucket) = self.bucket(number).lock(1) else { continue };
            if let Some(index) = self.forget_one(&bucket) {
                drop(bucket);
                self.place.u64(EVICTED).fetch_add(1, Relaxed);
                self.give_back(index);
                return true;
            }
        }
        false
    }

    fn forget_one(&self, locked: &Locked<Place>) -> Option<u32> {
        let (mut before, mut index) = (0, locked.0.head().load(Relaxed));
        while index & END == 0 {
            let element = self.element(index);
            if element.u32(USED).load(Relaxed) == 0 {
                self.unlink(locked, before, index);
                return Some(index);
            }
            element.u32(USED).store(0, Relaxed);
            (before, index) = (index, element.u32(NEXT).load(Relaxed));
        }
        None
    }
}
