//! Growing, shrinking, spreading anew.
//!
//! For:     the table, and owners that defer it to `maintain`.
//! State:   the mutex of who resizes.
//! Context: target; as long as the table is big. Lookups and changes go on meanwhile.
//! Keeps:   R1 one resize at a time, and its old array is freed after a grace period.
//!          R2 at the end every entry is in the newest array, and that is the current one.
//! Checked: `tests/table.rs`, `torture rhltable`.
//! Source:  kernel `lib/rhashtable.c` for the limits: grow above 75 %, shrink below 30 %, a chain of more
//!          than 16 keys means that the seed is bad.

use super::array::Array;
use super::node::Node;
use super::options::broken;
use super::turn::Changing;
use super::{BuildError, RhlTable};
use crate::prim::{AtomicPtr, Release};
use core::hash::{BuildHasher, Hash};

/// More keys in one bucket than this, and all are spread with another seed. The kernel's number.
const LONG_CHAIN: usize = 16;

/// What a resize did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resized {
    /// Nothing was to be done, or another thread is at it.
    No,
    /// The number of buckets before and after; equal if only the seed changed.
    Yes {
        /// Before.
        from: usize,
        /// After.
        to: usize,
    },
}

impl<K, V, S> RhlTable<K, V, S>
where
    K: Hash + Eq + Send + Sync,
    V: Send + Sync,
    S: BuildHasher,
{
    /// Grows or shrinks the table if it is due.
    ///
    /// # Errors
    /// No memory for the new buckets; the table works on with the old ones.
    /// # Panics
    /// As [`insert`](Self::insert).
    pub fn maintain(&self) -> Result<Resized, BuildError> {
        Changing::forbid("maintain");
        // A look first: threads that insert side by side share no line that is written.
        let now = self.buckets();
        if self.wanted(now) == now {
            return Ok(Resized::No);
        }
        let Ok(_turn) = self.resizing.try_lock() else { return Ok(Resized::No) };
        let from = self.buckets();
        match self.wanted(from) {
            to if to != from => self.move_all(to, false),
            _ => Ok(Resized::No),
        }
    }

    /// Gives the table this number of buckets, rounded up to a power of two within its limits.
    ///
    /// # Errors
    /// As [`maintain`](Self::maintain).
    /// # Panics
    /// As [`insert`](Self::insert).
    pub fn resize(&self, buckets: usize) -> Result<Resized, BuildError> {
        Changing::forbid("resize");
        let _turn = self.resizing.lock().unwrap_or_else(|e| e.into_inner());
        let (min, max) = (self.options.min_buckets, self.options.max_buckets);
        self.move_all(buckets.clamp(min, max).next_power_of_two(), false)
    }

    /// Spreads all keys anew with another seed.
    ///
    /// # Errors
    /// As [`maintain`](Self::maintain).
    /// # Panics
    /// As [`insert`](Self::insert).
    pub fn rehash(&self) -> Result<Resized, BuildError> {
        Changing::forbid("rehash");
        let _turn = self.resizing.lock().unwrap_or_else(|e| e.into_inner());
        self.move_all(self.buckets(), true)
    }

    /// The number of buckets that the table should have.
    fn wanted(&self, buckets: usize) -> usize {
        let keys = self.keys();
        if keys > buckets / 4 * 3 {
            let needed = (keys + keys / 2).next_power_of_two();
            return needed.clamp(self.options.min_buckets, self.options.max_buckets).max(buckets);
        }
        if self.options.shrinks && keys < buckets * 3 / 10 {
            let needed = (keys + keys / 2).max(1).next_power_of_two();
            return needed.max(self.options.min_buckets).min(buckets);
        }
        buckets
    }

    /// After a new key: grows the table if it is too full, spreads it anew if the chain is too long.
    pub(super) fn after_insert(&self, shard_keys: isize, chain: usize) {
        if self.options.is_deferred || (chain < 3 && shard_keys & 15 != 0) {
            return;
        }
        // Without memory for more buckets the table gets slower, which is no reason to refuse the entry.
        let resized = self.maintain();
        if chain > LONG_CHAIN && resized == Ok(Resized::No) {
            let Ok(_turn) = self.resizing.try_lock() else { return };
            let _ = self.move_all(self.buckets(), true);
        }
    }

    pub(super) fn after_remove(&self, shard_keys: isize) {
        if self.options.shrinks && !self.options.is_deferred && shard_keys & 15 == 0 {
            let _ = self.maintain();
        }
    }

    /// Moves every entry to an array of `to` buckets. The caller holds `resizing`.
    fn move_all(&self, to: usize, must: bool) -> Result<Resized, BuildError> {
        let reader = self.read();
        // The pointer itself, not one made of a reference, is what the box is made of again.
        let owner = self.current().cast_mut();
        let old = reader.oldest();
        let from = old.len();
        if from == to && !must {
            return Ok(Resized::No);
        }
        let seed = self.hasher.hash_one(old.seed());
        let new = Box::into_raw(Array::new(to, seed)?);
        old.set_future(new);
        // SAFETY: the new array lives as long as it is the future of one that this section keeps.
        let target = unsafe { &*new };
        for bucket in old.buckets() {
            let mut locked = bucket.lock();
            let choose = |at: *mut crate::chain::Link| {
                // SAFETY: entries of a locked bucket are alive, of this table's type, and shared for reading.
                target.bucket(unsafe { &*at.cast::<Node<K, V>>() }.hash)
            };
            // SAFETY: entries of both arrays are alive while their bucket is locked, and the new array's
            // buckets are others than this.
            while unsafe { locked.move_last(broken!(self, UnlinkFirst), choose) } {}
        }
        // [COLL-15] Orders the new array's content before the pointer. Pairs with [COLL-14].
        self.current.store(new, Release);
        let old = SendArray(AtomicPtr::new(owner));
        drop(reader);
        self.domain.call(move || drop(old));
        Ok(Resized::Yes { from, to })
    }
}

/// An array that no new reader can find, on its way to be freed.
struct SendArray(AtomicPtr<Array>);

impl Drop for SendArray {
    fn drop(&mut self) {
        let at = *self.0.get_mut();
        // SAFETY: it was boxed by `Array::new`, replaced by `move_all`, and its readers have left: this
        // runs in a callback. It has no entries any more.
        drop(unsafe { Box::from_raw(at) });
    }
}
