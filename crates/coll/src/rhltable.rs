//! The table: what there is to call, and the state behind it.
//!
//! For:     whoever keeps several entries under one key and looks them up all the time.
//! State:   the current array of buckets, the domain that readers enter, a shard for each CPU.
//! Context: lookups: target, also inside other readers. Changes: target; they allocate and may spin for a
//!          bucket. Resizing is done by the call that made it necessary, unless deferred.
//! Keeps:   T1 an entry that is in the table during a whole lookup of its key is found by it.
//!          T2 memory of entries and arrays is not reused before a grace period after their removal.
//!          T3 the number of keys is exact when nobody changes the table.
//! Checked: `tests/table.rs`, `tests/rules.rs`, `torture rhltable`; all tests of the crate but the loom models under Miri.
//! Source:  kernel `lib/rhashtable.c` (v7.0). Departs: resized inline by who crosses the limit; a chain that
//!          is too long while a resize is under way is no error (the kernel says EBUSY).

mod array;
mod error;
mod node;
mod options;
mod read;
mod resize;
mod shard;
mod turn;
mod write;

pub use error::{BuildError, InsertError};
#[cfg(feature = "broken")]
pub use options::Broken;
pub use options::Options;
pub use read::{Duplicates, Reader};
pub use resize::Resized;
pub use write::Handle;

use crate::Fold;
use crate::prim::{AtomicPtr, Relaxed};
use array::Array;
use core::hash::{BuildHasher, Hash};
use core::sync::atomic::AtomicU64;
use node::Node;
use shard::Shards;
use std::sync::{Arc, Mutex};

/// A hash table in which a key may have many entries, read under RCU and resized while it is read.
///
/// ```
/// let table = coll::RhlTable::new();
/// let first = table.insert("task 7", 1)?;
/// table.insert("task 7", 2)?;
/// assert_eq!(table.read().get(&"task 7").copied().collect::<Vec<_>>(), [2, 1]);
/// assert_eq!(table.keys(), 1);
/// assert!(table.remove(first));
/// assert_eq!(table.read().get(&"task 7").count(), 1);
/// # Ok::<(), coll::InsertError>(())
/// ```
///
/// What is found lives as long as the reader, and the reader no longer than the table:
///
/// ```compile_fail,E0597
/// let table = coll::RhlTable::new();
/// table.insert(1, 10)?;
/// let found = {
///     let reader = table.read();
///     reader.get(&1).next()
/// };
/// assert!(found.is_some());
/// # Ok::<(), coll::InsertError>(())
/// ```
///
/// ```compile_fail,E0505
/// let table: coll::RhlTable<u64, u64> = coll::RhlTable::new();
/// let reader = table.read();
/// drop(table);
/// reader.has(&1);
/// ```
///
/// A reader stays on its thread:
///
/// ```compile_fail,E0277
/// let table: coll::RhlTable<u64, u64> = coll::RhlTable::new();
/// let reader = table.read();
/// std::thread::scope(|s| {
///     s.spawn(move || reader.has(&1));
/// });
/// ```
#[derive(Debug)]
pub struct RhlTable<K, V, S = Fold>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    current: AtomicPtr<Array>,
    domain: Arc<rcu::Domain>,
    hasher: S,
    options: Options,
    shards: Shards<K, V>,
    /// Held by who resizes.
    resizing: Mutex<()>,
    id: u64,
}

// SAFETY: entries are shared by reference between threads and dropped on any: `K` and `V` are both `Send`
// and `Sync` by the type's bounds. All other state is atomic or behind a mutex.
unsafe impl<K: Send + Sync, V: Send + Sync, S: Sync> Sync for RhlTable<K, V, S> {}
// SAFETY: as above; nothing is tied to the thread that made the table.
unsafe impl<K: Send + Sync, V: Send + Sync, S: Send> Send for RhlTable<K, V, S> {}

impl<K, V> RhlTable<K, V>
where
    K: Hash + Eq + Send + Sync,
    V: Send + Sync,
{
    /// A table with 64 buckets, a domain of its own and a fast hash.
    ///
    /// # Panics
    /// If there is no memory.
    pub fn new() -> Self {
        match Self::with_options(Options::default(), Fold::default()) {
            Ok(table) => table,
            Err(error) => panic!("{error}"),
        }
    }
}

impl<K, V> Default for RhlTable<K, V>
where
    K: Hash + Eq + Send + Sync,
    V: Send + Sync,
{
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V, S> RhlTable<K, V, S>
where
    K: Hash + Eq + Send + Sync,
    V: Send + Sync,
    S: BuildHasher,
{
    /// A table as described.
    ///
    /// # Errors
    /// No memory, or a domain that does not allow fast readers.
    pub fn with_options(mut options: Options, hasher: S) -> Result<Self, BuildError> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        options.settle();
        let domain = match options.domain.take() {
            Some(domain) => domain,
            None => Arc::new(rcu::Domain::builder("rhltable").flavour(rcu::Flavour::Fast).build()?),
        };
        if let Err(misuse) = domain.try_read::<rcu::Fast>() {
            return Err(BuildError::Domain(rcu::BuildError::Misuse(misuse)));
        }
        let array = Array::new(options.initial_buckets, hasher.hash_one(0u8))?;
        Ok(RhlTable {
            current: AtomicPtr::new(Box::into_raw(array)),
            domain,
            hasher,
            options,
            shards: Shards::new(),
            resizing: Mutex::new(()),
            id: NEXT_ID.fetch_add(1, Relaxed),
        })
    }

    /// The number of different keys.
    ///
    /// # Cost
    /// One cache line for each CPU.
    pub fn keys(&self) -> usize {
        self.shards.keys()
    }

    /// The number of buckets of the newest array.
    pub fn buckets(&self) -> usize {
        let reader = self.read();
        reader.newest().len()
    }

    /// The domain that readers enter.
    pub fn domain(&self) -> &rcu::Domain {
        &self.domain
    }
}

impl<K, V, S> Drop for RhlTable<K, V, S>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn drop(&mut self) {
        let mut at = *self.current_mut();
        while !at.is_null() {
            // SAFETY: arrays are boxes that only a resize frees, and nobody is inside: readers borrow the table.
            let array = unsafe { Box::from_raw(at) };
            array.drain(|entry| {
                // SAFETY: what is in a chain was boxed by `Node::alloc`; no reader is left, and `drain` gives
                // each entry once.
                unsafe { Node::<K, V>::free(entry.cast()) };
            });
            at = array.future().cast_mut();
        }
        self.shards.free_all();
        // The last to use a domain waits for what is under way in it; else it would be leaked.
        for _ in 0..10 {
            if Arc::strong_count(&self.domain) > 1 || self.domain.in_use().is_idle() {
                break;
            }
            self.domain.synchronize();
            self.domain.barrier();
        }
    }
}

impl<K: Send + Sync, V: Send + Sync, S> RhlTable<K, V, S> {
    fn current_mut(&mut self) -> &mut *mut Array {
        self.current.get_mut()
    }
}
