//! A bucket: its lock and its chain.
//!
//! For:     the other files of `hash`.
//! State:   per bucket two words: a count of changes, odd while one is made, and the chain.
//! Context: hit, signal, target. Who finds the lock taken gives up after a bounded time.
//! Keeps:   K1 one changer of a chain at a time. K2 readers need no lock: a key that is found is found; that
//!          it is not there counts only if the chain did not change meanwhile.
//! Checked: model `hash` (mutants MAP-20, MAP-21, MAP-22, no-second-look), tests/semantics.rs,
//!          tests/other_process.rs.

use super::{BUSY, DATA, END, Entries, HEAD_OF_CHAIN, NEXT, SUM, TRIES, VERSION, chain};
use crate::Error;
use crate::place::{ASLEEP, Access, versioned_as};
use crate::prim::{Acquire, AtomicU32, Relaxed, Release, fence, spin};

#[derive(Clone, Copy)]
pub struct Bucket<M> {
    pub number: u32,
    place: M,
}

/// The right to change a chain; dropping it ends it.
pub struct Locked<M: Access>(pub Bucket<M>);

impl<M: Access> Drop for Locked<M> {
    fn drop(&mut self) {
        let changes = self.0.changes();
        // [MAP-20] What was done to the chain is visible to the next one. Pairs with [MAP-21], [MAP-29].
        #[cfg(not(mutant = "MAP-20"))]
        let order = Release;
        #[cfg(mutant = "MAP-20")]
        let order = Relaxed;
        changes.store(changes.load(Relaxed).wrapping_add(1), order);
    }
}

impl<M: Access> Bucket<M> {
    /// One of those that lie at `chains`.
    #[inline(always)]
    pub fn at(chains: M, number: u32) -> Bucket<M> {
        Bucket { number, place: chains.at(number as usize * chain::UNIT) }
    }

    #[inline(always)]
    fn changes(&self) -> &AtomicU32 {
        self.place.u32(0)
    }

    /// The first element's index, or the end.
    #[inline(always)]
    pub fn head(&self) -> &AtomicU32 {
        self.place.u32(HEAD_OF_CHAIN)
    }

    /// What `look` finds if the chain does not change meanwhile, or if it finds something.
    ///
    /// An element that is taken for another key of the same bucket may lead a reader past the one that it
    /// looks for: so a miss needs the second look, a find does not.
    #[inline(always)]
    pub fn steady<T>(&self, look: impl FnOnce() -> Option<Option<T>>) -> Option<Option<T>> {
        // [MAP-29] Changes before this are seen; one that is under way has freed nothing yet.
        // Pairs with [MAP-20].
        let before = self.changes().load(Acquire);
        let found = look()?;
        if found.is_some() {
            return Some(found);
        }
        fence(Acquire);
        (self.changes().load(Relaxed) == before || cfg!(mutant = "no-second-look")).then_some(None)
    }

    /// Takes the lock, trying at most so often.
    pub fn lock(self, tries: u32) -> Option<Locked<M>> {
        for _ in 0..tries {
            let old = self.changes().load(Relaxed);
            // [MAP-21] Sees what the last one did. Pairs with [MAP-20].
            #[cfg(not(mutant = "MAP-21"))]
            let order = Acquire;
            #[cfg(mutant = "MAP-21")]
            let order = Relaxed;
            if old & 1 == 0 && self.changes().compare_exchange_weak(old, old + 1, order, Relaxed).is_ok() {
                return Some(Locked(self));
            }
            spin();
        }
        None
    }
}

impl<M: Access> Entries<M> {
    #[inline(always)]
    pub(super) fn bucket(&self, number: u32) -> Bucket<M> {
        Bucket::at(self.chains, number)
    }

    #[inline(always)]
    pub(super) fn bucket_of(&self, hash: u32) -> Bucket<M> {
        self.bucket(hash & self.mask)
    }

    pub(super) fn lock(&self, hash: u32) -> Result<Locked<M>, Error> {
        self.bucket_of(hash).lock(TRIES).ok_or_else(|| self.said_busy())
    }

    /// So many elements a look or a walk over this many buckets may meet: no chain is longer than there are keys, and hardly
    /// any look is repeated.
    #[inline(always)]
    pub(super) fn steps(&self, buckets: u32) -> u64 {
        16 * (u64::from(self.limit()) + u64::from(buckets)) + 4096
    }

    #[cold]
    pub(crate) fn said_busy(&self) -> Error {
        self.counts.u64(BUSY).fetch_add(1, Relaxed);
        Error::Busy
    }

    #[inline(always)]
    pub(super) fn matches(&self, element: M, hash: u32, key: &[u8]) -> bool {
        element.u32(SUM).load(Relaxed) == hash && element.at(DATA).equals(key)
    }

    /// Runs `read` on the element of a key, between two looks at its version.
    ///
    /// Safe whatever happens to elements meanwhile: a reader that was led astray starts again.
    #[inline(always)]
    pub(crate) fn find<T>(&self, key: &[u8], mut read: impl FnMut(M, u32) -> T) -> Result<T, Error> {
        self.meet::<false, T>(key, |element, index, _| read(element, index))
    }

    /// The same, with the version that stood between; of a key that is gone too if `OF_SLEEPERS`, and is asleep.
    #[inline(always)]
    pub(super) fn meet<const OF_SLEEPERS: bool, T>(
        &self,
        key: &[u8],
        mut read: impl FnMut(M, u32, u32) -> T,
    ) -> Result<T, Error> {
        let hash = hash_of_key(key);
        let bucket = self.bucket_of(hash);
        let mut steps = self.steps(1);
        for _ in 0..TRIES {
            let look = || self.meet_once::<OF_SLEEPERS, T>(&bucket, hash, key, &mut steps, &mut read);
            match bucket.steady(look) {
                Some(found) => return found.ok_or(Error::NotFound),
                None => spin(),
            }
        }
        Err(self.said_busy())
    }

    /// `None`: led astray, to be tried again.
    #[inline(always)]
    fn meet_once<const OF_SLEEPERS: bool, T>(
        &self,
        bucket: &Bucket<M>,
        hash: u32,
        key: &[u8],
        steps: &mut u64,
        read: &mut impl FnMut(M, u32, u32) -> T,
    ) -> Option<Option<T>> {
        // [MAP-22] Sees what the element's maker wrote. Pairs with [MAP-23].
        #[cfg(not(mutant = "MAP-22"))]
        let order = Acquire;
        #[cfg(mutant = "MAP-22")]
        let order = Relaxed;
        let mut index = bucket.head().load(order);
        while index & END == 0 {
            *steps = steps.saturating_sub(1);
            if index == 0 || *steps == 0 {
                return None;
            }
            let element = self.element(index);
            // One that is asleep is no key's for who does not ask for it: its key was gone when this was read.
            let is_met = |version: u32| OF_SLEEPERS || version & ASLEEP == 0;
            if self.matches(element, hash, key) && is_met(element.u32(VERSION).load(Relaxed)) {
                return versioned_as(element.u32(VERSION), |version| {
                    let is_it = is_met(version) && self.matches(element, hash, key);
                    is_it.then(|| read(element, index, version))
                })
                .filter(Option::is_some);
            }
            // [MAP-27] As [MAP-22], for the next one. Pairs with [MAP-23], [MAP-24].
            index = element.u32(NEXT).load(order);
        }
        // Another bucket's end: the element was taken for another key while we stood on it.
        (index == END | bucket.number).then_some(None)
    }
}

#[inline(always)]
pub(super) fn hash_of_key(key: &[u8]) -> u32 {
    super::hash_of(key)
}
