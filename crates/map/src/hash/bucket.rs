//! A bucket: its lock and its chain.
//!
//! For:     the other files of `hash`.
//! State:   per bucket two words: a count of changes, odd while one is made, and the chain.
//! Context: hit, signal, target. Who finds the lock taken gives up after a bounded time.
//! Keeps:   K1 one changer of a chain at a time. K2 readers need no lock: a key that is found is found; that
//!          it is not there counts only if the chain did not change meanwhile.
//! Checked: model `hash` (mutants MAP-20, MAP-21, MAP-22, no-second-look), tests/semantics.rs,
//!          tests/other_process.rs.

use super::{BUSY, DATA, END, Hash, NEXT, SUM, TRIES, VERSION};
use crate::Error;
use crate::place::{Place, versioned};
use crate::prim::{Acquire, AtomicU32, Relaxed, Release, fence, spin};

pub struct Bucket<'a> {
    pub number: u32,
    changes: &'a AtomicU32,
    pub head: &'a AtomicU32,
}

/// The right to change a chain; dropping it ends it.
pub struct Locked<'a>(pub Bucket<'a>);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // [MAP-20] What was done to the chain is visible to the next one. Pairs with [MAP-21], [MAP-29].
        #[cfg(not(mutant = "MAP-20"))]
        let order = Release;
        #[cfg(mutant = "MAP-20")]
        let order = Relaxed;
        self.0.changes.store(self.0.changes.load(Relaxed).wrapping_add(1), order);
    }
}

impl<'a> Bucket<'a> {
    /// What `look` finds if the chain does not change meanwhile, or if it finds something.
    ///
    /// An element that is taken for another key of the same bucket may lead a reader past the one that it
    /// looks for: so a miss needs the second look, a find does not.
    #[inline(always)]
    pub fn steady<T>(&self, look: impl FnOnce() -> Option<Option<T>>) -> Option<Option<T>> {
        // [MAP-29] Changes before this are seen; one that is under way has freed nothing yet.
        // Pairs with [MAP-20].
        let before = self.changes.load(Acquire);
        let found = look()?;
        if found.is_some() {
            return Some(found);
        }
        fence(Acquire);
        (self.changes.load(Relaxed) == before || cfg!(mutant = "no-second-look")).then_some(None)
    }

    /// Takes the lock, trying at most so often.
    pub fn lock(self, tries: u32) -> Option<Locked<'a>> {
        for _ in 0..tries {
            let old = self.changes.load(Relaxed);
            // [MAP-21] Sees what the last one did. Pairs with [MAP-20].
            #[cfg(not(mutant = "MAP-21"))]
            let order = Acquire;
            #[cfg(mutant = "MAP-21")]
            let order = Relaxed;
            if old & 1 == 0 && self.changes.compare_exchange_weak(old, old + 1, order, Relaxed).is_ok() {
                return Some(Locked(self));
            }
            spin();
        }
        None
    }
}

impl Hash {
    #[inline(always)]
    pub(super) fn bucket<'a>(&self, number: u32) -> Bucket<'a> {
        let at = self.chains.at(number as usize * 8);
        Bucket { number, changes: at.u32(0), head: at.u32(4) }
    }

    #[inline(always)]
    pub(super) fn bucket_of<'a>(&self, hash: u32) -> Bucket<'a> {
        self.bucket(hash & self.mask)
    }

    pub(super) fn lock<'a>(&self, hash: u32) -> Result<Locked<'a>, Error> {
        self.bucket_of(hash).lock(TRIES).ok_or_else(|| self.said_busy())
    }

    #[cold]
    pub(super) fn said_busy(&self) -> Error {
        self.place.u64(BUSY).fetch_add(1, Relaxed);
        Error::Busy
    }

    #[inline(always)]
    pub(super) fn matches(&self, element: Place, hash: u32, key: &[u8]) -> bool {
        element.u32(SUM).load(Relaxed) == hash && element.at(DATA).equals(key)
    }

    /// Runs `read` on the element of a key, between two looks at its version.
    ///
    /// Safe whatever happens to elements meanwhile: a reader that was led astray starts again.
    #[inline(always)]
    pub(super) fn find<T>(&self, key: &[u8], mut read: impl FnMut(Place, u32) -> T) -> Result<T, Error> {
        let hash = hash_of_key(key);
        let bucket = self.bucket_of(hash);
        for _ in 0..TRIES {
            match bucket.steady(|| self.find_once(&bucket, hash, key, &mut read)) {
                Some(found) => return found.ok_or(Error::NotFound),
                None => spin(),
            }
        }
        Err(self.said_busy())
    }

    /// `None`: led astray, to be tried again.
    #[inline(always)]
    fn find_once<T>(
        &self,
        bucket: &Bucket<'_>,
        hash: u32,
        key: &[u8],
        read: &mut impl FnMut(Place, u32) -> T,
    ) -> Option<Option<T>> {
        // [MAP-22] Sees what the element's maker wrote. Pairs with [MAP-23].
        #[cfg(not(mutant = "MAP-22"))]
        let order = Acquire;
        #[cfg(mutant = "MAP-22")]
        let order = Relaxed;
        let mut index = bucket.head.load(order);
        let mut steps = 0;
        while index & END == 0 {
            if index == 0 || steps > self.limit {
                return None;
            }
            let element = self.element(index);
            if self.matches(element, hash, key) {
                return versioned(element.u32(VERSION), || {
                    self.matches(element, hash, key).then(|| read(element, index))
                })
                .filter(Option::is_some);
            }
            // [MAP-27] As [MAP-22], for the next one. Pairs with [MAP-23], [MAP-24].
            index = element.u32(NEXT).load(order);
            steps += 1;
        }
        // Another bucket's end: the element was taken for another key while we stood on it.
        (index == END | bucket.number).then_some(None)
    }
}

#[inline(always)]
pub(super) fn hash_of_key(key: &[u8]) -> u32 {
    super::hash_of(key)
}
