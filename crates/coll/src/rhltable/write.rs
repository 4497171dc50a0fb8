//! Inserting and removing.
//!
//! For:     writers of the table.
//! State:   the lock of one bucket at a time.
//! Context: target; spins for the bucket, allocates. Also inside a reader's section of the table.
//! Keeps:   W1 a new key goes to the newest array, an entry of a known key to where that key is.
//!          W2 what is removed is freed after a grace period.
//!          W3 a handle removes the entry that it was given for, or none.
//! Checked: `tests/table.rs`, `torture rhltable`.

use super::array::Array;
use super::node::Node;
use super::turn::{Changing, new_stamp};
use super::{InsertError, Reader, RhlTable};
use crate::chain::{Found, Link, Locked};
use core::hash::{BuildHasher, Hash};
use core::ptr::{self, NonNull};

/// Says which entry, for its removal; never another one, though its memory is used again.
///
/// Not an address to anyone else; dropping it leaves the entry in the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Handle {
    at: *mut Link,
    hash: u64,
    table: u64,
    stamp: u64,
}

// SAFETY: the pointer is compared, never followed before it was found in a chain.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl<K, V, S> RhlTable<K, V, S>
where
    K: Hash + Eq + Send + Sync,
    V: Send + Sync,
    S: BuildHasher,
{
    /// Adds an entry; others with the same key stay, behind it.
    ///
    /// # Cost
    /// An allocation and one bucket's lock; now and then the resize of the table.
    /// # Errors
    /// See [`InsertError`]; then the table is as before.
    /// # Panics
    /// Called from inside a change of a table: by `Eq` of a key or by the closure of [`remove_if`](Self::remove_if).
    pub fn insert(&self, key: K, value: V) -> Result<Handle, InsertError> {
        Changing::forbid("insert");
        let hash = self.hasher.hash_one(&key);
        let node = self.shards.node(&self.domain)?;
        let stamp = new_stamp();
        // SAFETY: memory for an entry, that nobody else knows.
        unsafe { node.write(Node::with(hash, stamp, key, value)) };
        let at = node.as_ptr().cast::<Link>();
        // If `Eq` panics on the way, the entry is freed here.
        let unlinked = Unlinked::<K, V>(node);
        let (keys, chain) = {
            let reader = self.read();
            let _changing = Changing::begin();
            reader.link(hash, at)?
        };
        core::mem::forget(unlinked);
        if let Some(keys) = keys {
            self.after_insert(keys, chain);
        }
        Ok(Handle { at, hash, table: self.id, stamp })
    }

    /// Takes out an entry. False if it is of another table, or gone by [`remove_if`](Self::remove_if).
    ///
    /// # Panics
    /// As [`insert`](Self::insert).
    pub fn remove(&self, handle: Handle) -> bool {
        Changing::forbid("remove");
        handle.table == self.id
            && self.unlink(handle.hash, |at| {
                // SAFETY: `unlink` gives entries of a locked bucket, which are alive and shared for reading.
                at == handle.at && unsafe { &*at.cast::<Node<K, V>>() }.stamp == handle.stamp
            })
    }

    /// Takes out the first entry of the key whose value is as asked; false if there is none.
    ///
    /// `is_meant` runs under the lock of the key's bucket: it may look up in this table, but change none.
    ///
    /// # Panics
    /// As [`insert`](Self::insert).
    pub fn remove_if(&self, key: &K, mut is_meant: impl FnMut(&V) -> bool) -> bool {
        Changing::forbid("remove_if");
        let hash = self.hasher.hash_one(key);
        self.unlink(hash, |at| {
            // SAFETY: `unlink` gives entries of a locked bucket, which are alive and shared for reading.
            let node = unsafe { &*at.cast::<Node<K, V>>() };
            node.key == *key && is_meant(&node.value)
        })
    }

    fn unlink(&self, hash: u64, is_meant: impl FnMut(*mut Link) -> bool) -> bool {
        let removed = {
            let reader = self.read();
            let _changing = Changing::begin();
            reader.unlink(hash, is_meant)
        };
        let Some((at, is_last)) = removed else { return false };
        // SAFETY: `unlink` took it out of the table, so no new reader can find it; it was made by `insert`.
        unsafe { self.shards.retire(at.cast(), self) };
        if is_last {
            let keys = self.shards.add_key(-1);
            self.after_remove(keys);
        }
        true
    }
}

/// An entry that is in no table.
struct Unlinked<K, V>(NonNull<Node<K, V>>);

impl<K, V> Drop for Unlinked<K, V> {
    fn drop(&mut self) {
        // SAFETY: `insert` made it, and it was not linked, so nobody else knows it.
        unsafe { Node::<K, V>::free(self.0.as_ptr()) };
    }
}

impl<K, V, S> Reader<'_, K, V, S>
where
    K: Hash + Eq + Send + Sync,
    V: Send + Sync,
    S: BuildHasher,
{
    /// Links an entry; this CPU's count of keys if the key is new, and the length of its chain.
    fn link(&self, hash: u64, at: *mut Link) -> Result<(Option<isize>, usize), InsertError> {
        let mut array = self.oldest();
        loop {
            let mut bucket = array.bucket(hash).lock();
            // SAFETY: what is in a locked bucket is alive; `at` is an initialised entry of this table.
            match unsafe { find_key::<K, V>(&bucket, hash, at) } {
                Ok(found) => {
                    // SAFETY: `found` is fresh, and the entry lives until a grace period after removal.
                    unsafe { bucket.push_dup(found, at) };
                    return Ok((None, 0));
                }
                Err(_) if !array.future().is_null() => {
                    drop(bucket);
                    // SAFETY: arrays are freed after a grace period; this section keeps it.
                    array = unsafe { &*array.future() };
                }
                Err(chain) => {
                    let max_keys = self.table.options.max_keys;
                    if max_keys != usize::MAX && self.table.keys() >= max_keys {
                        return Err(InsertError::Full { max_keys });
                    }
                    // SAFETY: as for `push_dup`.
                    unsafe { bucket.push(at) };
                    return Ok((Some(self.table.shards.add_key(1)), chain + 1));
                }
            }
        }
    }

    /// Takes out the first entry that is meant; with it whether it was its key's last.
    fn unlink(&self, hash: u64, mut is_meant: impl FnMut(*mut Link) -> bool) -> Option<(*mut Link, bool)> {
        let mut array: &Array = self.oldest();
        loop {
            let mut bucket = array.bucket(hash).lock();
            let mut node = ptr::null_mut();
            let is_meant = std::cell::RefCell::new(&mut is_meant);
            let has_meant = |first: *mut Link| {
                // SAFETY: `find` gives entries of the locked bucket, alive and of this table's type.
                if unsafe { &*first.cast::<Node<K, V>>() }.hash != hash {
                    return ptr::null_mut();
                }
                let mut at = first;
                while !at.is_null() && !is_meant.borrow_mut()(at) {
                    // SAFETY: entries behind one of a locked bucket are alive.
                    at = unsafe { Link::next_dup(at) };
                }
                at
            };
            let meant = std::cell::Cell::new(ptr::null_mut());
            // SAFETY: what is in a locked bucket is alive, and of this table's type.
            let found = unsafe {
                bucket.find(|first| {
                    meant.set(has_meant(first));
                    !meant.get().is_null()
                })
            };
            if let Ok(found) = found {
                node = meant.get();
                // SAFETY: `found` is fresh; the entry is freed after a grace period (by the caller).
                let removed = unsafe { bucket.remove(found, node) };
                return removed.map(|is_last| (node, is_last));
            }
            debug_assert!(node.is_null());
            drop(bucket);
            if array.future().is_null() {
                return None;
            }
            // SAFETY: arrays are freed after a grace period; this section keeps it.
            array = unsafe { &*array.future() };
        }
    }
}

/// The first entry with the same key as `new`.
///
/// # Safety
/// `new` and all of the bucket must be entries with this type of key and value.
unsafe fn find_key<K: Eq, V>(bucket: &Locked<'_>, hash: u64, new: *mut Link) -> Result<Found, usize> {
    // SAFETY: an initialised entry (caller's duty), which nobody changes while it is not linked.
    let new = unsafe { &*new.cast::<Node<K, V>>() };
    let is_match = |at: *mut Link| {
        // SAFETY: entries of the bucket are of this type (caller's duty) and shared for reading.
        let node = unsafe { &*at.cast::<Node<K, V>>() };
        node.hash == hash && node.key == new.key
    };
    // SAFETY: what is in a locked bucket is alive.
    unsafe { bucket.find(is_match) }
}
