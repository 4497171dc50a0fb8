//! Looking up.
//!
//! For:     readers of the table.
//! State:   a read-side section of the table's domain.
//! Context: target, also inside readers of other domains. No lock, no allocation, no shared write.
//! Keeps:   T1 (see the table).
//! Checked: model `chain`, `tests/table.rs`, `torture rhltable`.

use super::RhlTable;
use super::array::Array;
use super::node::Node;
use super::options::broken;
use crate::chain::Link;
use crate::prim::Acquire;
use core::hash::{BuildHasher, Hash};
use core::marker::PhantomData;
use core::ptr;
use rcu::{Fast, ReadGuard};

/// A read-side section: what is found in it stays in memory until it is dropped.
pub struct Reader<'t, K: Send + Sync + 'static, V: Send + Sync + 'static, S> {
    pub(super) table: &'t RhlTable<K, V, S>,
    _section: ReadGuard<'t, Fast>,
}

impl<K, V, S> RhlTable<K, V, S>
where
    K: Hash + Eq + Send + Sync,
    V: Send + Sync,
    S: BuildHasher,
{
    /// Enters a section for lookups.
    ///
    /// # Context
    /// Keep it short: memory of removed entries waits for it.
    /// # Cost
    /// About a nanosecond; `bench refscale fast`.
    #[inline(always)]
    pub fn read(&self) -> Reader<'_, K, V, S> {
        Reader { table: self, _section: self.domain.fast() }
    }

    /// The oldest array that may have entries.
    #[inline(always)]
    pub(super) fn current(&self) -> *const Array {
        // [COLL-14] Orders the pointer before the array. Pairs with [COLL-15].
        self.current.load(Acquire)
    }
}

impl<K, V, S> Reader<'_, K, V, S>
where
    K: Hash + Eq + Send + Sync,
    V: Send + Sync,
    S: BuildHasher,
{
    /// The values of a key, the youngest first.
    ///
    /// # Cost
    /// `bench rhltable`.
    #[inline]
    pub fn get(&self, key: &K) -> Duplicates<'_, K, V> {
        let hash = self.table.hasher.hash_one(key);
        let is_match = |at: *mut Link| {
            // SAFETY: `find` gives entries of this table, kept by this section, and shared for reading.
            let node = unsafe { &*at.cast::<Node<K, V>>() };
            node.hash == hash && node.key == *key
        };
        let mut array = self.oldest();
        loop {
            let bucket = array.bucket(hash);
            // SAFETY: this is a section of the table's domain; `is_match` reads entries of its type.
            let at = unsafe { bucket.find(is_match) };
            if !at.is_null() {
                return Duplicates { at, of: PhantomData };
            }
            let future = array.future();
            if future.is_null() || broken!(self.table, OldOnly) {
                return Duplicates { at: ptr::null_mut(), of: PhantomData };
            }
            // SAFETY: arrays are freed after a grace period; this section keeps it.
            array = unsafe { &*future };
        }
    }

    /// True if the key has an entry.
    pub fn has(&self, key: &K) -> bool {
        self.get(key).next().is_some()
    }

    pub(super) fn oldest(&self) -> &Array {
        // SAFETY: `current` is never null, and arrays are freed after a grace period; this section keeps it.
        unsafe { &*self.table.current() }
    }

    pub(super) fn newest(&self) -> &Array {
        let mut array = self.oldest();
        while !array.future().is_null() {
            // SAFETY: as in `oldest`.
            array = unsafe { &*array.future() };
        }
        array
    }
}

/// The values of one key.
#[derive(Clone, Debug)]
pub struct Duplicates<'r, K, V> {
    at: *mut Link,
    of: PhantomData<(&'r K, &'r V)>,
}

impl<'r, K, V> Iterator for Duplicates<'r, K, V> {
    type Item = &'r V;

    #[inline(always)]
    fn next(&mut self) -> Option<&'r V> {
        if self.at.is_null() {
            return None;
        }
        // SAFETY: `at` was reached inside the section that `'r` borrows, so it is kept as long.
        let node = unsafe { &*self.at.cast::<Node<K, V>>() };
        // SAFETY: as above.
        self.at = unsafe { Link::next_dup(self.at) };
        Some(&node.value)
    }
}
