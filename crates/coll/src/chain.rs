//! One bucket: a chain of distinct keys, and behind each the entries with equal keys.
//!
//! For:     `RhlTable`; public for the models alone.
//! State:   the head of the chain, with the writers' lock in bit 0; two links in each entry.
//! Context: target. Readers take no lock and are inside the table's domain; writers hold the bucket's lock.
//! Keeps:   C1 an entry that is in the chain while a reader walks it is found, unless it is moved meanwhile.
//!          C2 a reader that misses an entry because it was moved sees what was published before the move.
//! Checked: `tests/model.rs` (mutants COLL-2, COLL-3), `torture rhltable` and its broken variants.
//! Source:  kernel `include/linux/rhashtable.h`, `lib/rhashtable.c` (v7.0). Departs: no end markers. They tell a
//!          reader that an entry was put elsewhere under its feet, and what stood behind was not seen. Here
//!          entries are not used again before a grace period, and only the last of a chain is ever moved:
//!          nothing stands behind it.

use crate::prim::{self, Acquire, AtomicPtr, Relaxed, Release};
use core::ptr;

/// The links of an entry; the first field of it.
#[derive(Debug)]
pub struct Link {
    /// The next key of the bucket, or null.
    next: AtomicPtr<Link>,
    /// The next entry with an equal key, or null.
    dup: AtomicPtr<Link>,
}

impl Default for Link {
    fn default() -> Link {
        Link::new()
    }
}

impl Link {
    /// Links of an entry that is nowhere.
    pub fn new() -> Link {
        Link { next: AtomicPtr::new(ptr::null_mut()), dup: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The next entry with an equal key, or null.
    ///
    /// # Safety
    /// `at` must be an entry that a reader's section or the bucket's lock keeps.
    #[inline(always)]
    pub unsafe fn next_dup(at: *mut Link) -> *mut Link {
        // SAFETY: the entry is kept (caller's duty), and `dup` is atomic.
        let dup = unsafe { &(*at).dup };
        // [COLL-1] Orders the pointer before what it leads to. Pairs with [COLL-10].
        dup.load(Acquire)
    }

    /// The next of the chain, or null.
    ///
    /// # Safety
    /// As [`next_dup`](Self::next_dup).
    #[inline(always)]
    unsafe fn following(at: *mut Link) -> *mut Link {
        // SAFETY: the entry is kept (caller's duty), and `next` is atomic.
        let next = unsafe { &(*at).next };
        // [COLL-6] Orders the pointer before what it leads to, and an end that a move left behind before
        // the look for the newer table. Pairs with [COLL-2], [COLL-5], [COLL-11].
        next.load(Acquire)
    }
}

/// A bucket of a table.
#[derive(Debug)]
#[repr(align(8))]
pub struct Bucket {
    head: AtomicPtr<Link>,
}

impl Default for Bucket {
    fn default() -> Bucket {
        Bucket::new()
    }
}

impl Bucket {
    /// An empty bucket.
    pub fn new() -> Bucket {
        Bucket { head: AtomicPtr::new(ptr::null_mut()) }
    }

    #[inline(always)]
    fn first(&self) -> *mut Link {
        // [COLL-7] Orders the head before what it leads to, and an emptied bucket before the look for the
        // newer table. Pairs with [COLL-3], [COLL-4], [COLL-8].
        self.head.load(Acquire).map_addr(|a| a & !1)
    }

    /// The first entry that matches, or null.
    ///
    /// # Safety
    /// The caller must be inside a reader's section that keeps every entry of the table, and `is_match`
    /// must be callable with each.
    #[inline(always)]
    pub unsafe fn find(&self, is_match: impl Fn(*mut Link) -> bool) -> *mut Link {
        let mut at = self.first();
        while !at.is_null() && !is_match(at) {
            // SAFETY: `at` was reached inside the section (caller's duty), so it is kept.
            at = unsafe { Link::following(at) };
        }
        at
    }

    /// Waits for the writers' lock.
    pub fn lock(&self) -> Locked<'_> {
        // loom takes a thread's own load for the last access, and would never run the others before it.
        let mut head = if cfg!(loom) { ptr::null_mut() } else { self.head.load(Relaxed) };
        let mut tries = 0;
        loop {
            head = head.map_addr(|a| a & !1);
            let locked = head.map_addr(|a| a | 1);
            // [COLL-9] Orders the lock before what the last holder left. Pairs with [COLL-8].
            match self.head.compare_exchange_weak(head, locked, Acquire, Relaxed) {
                Ok(_) => return Locked { bucket: self, head },
                Err(now) => head = now,
            }
            tries += 1;
            prim::pause(tries);
        }
    }
}

/// A bucket that is locked for writing, until this is dropped.
#[derive(Debug)]
pub struct Locked<'a> {
    bucket: &'a Bucket,
    /// The head without the lock bit; null if the bucket is empty.
    head: *mut Link,
}

/// Which pointer leads to an entry.
#[derive(Clone, Copy, Debug)]
enum Place {
    Head,
    After(*mut Link),
}

/// An entry of the chain, and how it is reached.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    before: Place,
    /// The entry.
    pub at: *mut Link,
}

impl Locked<'_> {
    /// The first entry that matches, else the number of keys in the bucket.
    ///
    /// # Safety
    /// Every entry of the bucket must be alive, and `is_match` callable with it.
    pub unsafe fn find(&self, is_match: impl Fn(*mut Link) -> bool) -> Result<Found, usize> {
        let (mut before, mut at, mut keys) = (Place::Head, self.head, 0);
        while !at.is_null() {
            if is_match(at) {
                return Ok(Found { before, at });
            }
            keys += 1;
            before = Place::After(at);
            // SAFETY: what is in the chain of a locked bucket is alive (caller's duty).
            at = unsafe { Link::following(at) };
        }
        Err(keys)
    }

    /// Makes `place` lead to `to`.
    fn set(&mut self, place: Place, to: *mut Link) {
        match place {
            Place::Head => {
                self.head = to;
                let locked = self.head.map_addr(|a| a | 1);
                // [COLL-4] Orders an entry's content, and whatever else was written, before the pointer
                // that leads there. Pairs with [COLL-7].
                self.bucket.head.store(locked, Release);
            }
            Place::After(link) => {
                // SAFETY: `link` is in the chain of this locked bucket (from `find`), so it is alive.
                let next = unsafe { &(*link).next };
                // [COLL-5] As [COLL-4], for a pointer inside the chain. Pairs with [COLL-6].
                next.store(to, Release);
            }
        }
    }

    /// Puts an entry with a new key first.
    ///
    /// # Safety
    /// `node` must be alive until it was removed and a grace period has passed, and be in no chain.
    pub unsafe fn push(&mut self, node: *mut Link) {
        let first = self.head;
        // SAFETY: the node is alive and nobody else knows it (caller's duty).
        let link = unsafe { &*node };
        link.next.store(first, Relaxed);
        link.dup.store(ptr::null_mut(), Relaxed);
        self.set(Place::Head, node);
    }

    /// Puts an entry before those with the same key.
    ///
    /// # Safety
    /// As [`push`](Self::push); `found` must be from this lock's [`find`](Self::find), nothing changed since.
    pub unsafe fn push_dup(&mut self, found: Found, node: *mut Link) {
        // SAFETY: `found.at` is in the chain of this locked bucket (caller's duty).
        let next = unsafe { Link::following(found.at) };
        // SAFETY: the node is alive and nobody else knows it (caller's duty).
        let link = unsafe { &*node };
        link.next.store(next, Relaxed);
        link.dup.store(found.at, Relaxed);
        self.set(found.before, node);
    }

    /// Takes out an entry: `found` is the first with its key. `None`: it is not among them, else whether
    /// the key is gone with it.
    ///
    /// # Safety
    /// As [`push_dup`](Self::push_dup). The entry must not be freed before a grace period.
    pub unsafe fn remove(&mut self, found: Found, node: *mut Link) -> Option<bool> {
        if found.at != node {
            // SAFETY: the same duties.
            return unsafe { self.remove_behind(found.at, node) }.then_some(false);
        }
        // SAFETY: `node` is in the chain of this locked bucket.
        let next = unsafe { Link::following(node) };
        // SAFETY: as above.
        let heir = unsafe { Link::next_dup(node) };
        if heir.is_null() {
            self.set(found.before, next);
            return Some(true);
        }
        // The heir's own `next` is as old as its time at the head; it takes the present one.
        self.set(Place::After(heir), next);
        self.set(found.before, heir);
        Some(false)
    }

    /// # Safety
    /// `first` must be in the chain of this bucket.
    unsafe fn remove_behind(&mut self, first: *mut Link, node: *mut Link) -> bool {
        let mut at = first;
        loop {
            // SAFETY: `at` is in the list of an entry of this locked bucket, so it is alive.
            let dup = unsafe { Link::next_dup(at) };
            if dup.is_null() {
                return false;
            }
            if dup == node {
                // SAFETY: as above.
                let rest = unsafe { Link::next_dup(dup) };
                // SAFETY: as above.
                let link = unsafe { &(*at).dup };
                // [COLL-10] Orders what `rest` leads to, published earlier by others, before the pointer
                // that skips the entry. Pairs with [COLL-1].
                link.store(rest, Release);
                return true;
            }
            at = dup;
        }
    }

    /// Moves the last key of the chain, with its list, to the bucket that `choose` names. False: none left.
    ///
    /// # Safety
    /// Every entry of both buckets must be alive, and `choose` callable with the entry. It must not name
    /// this bucket.
    pub unsafe fn move_last<'b>(
        &mut self,
        is_broken: bool,
        choose: impl FnOnce(*mut Link) -> &'b Bucket,
    ) -> bool {
        let (mut before, mut at) = (Place::Head, self.head);
        if at.is_null() {
            return false;
        }
        loop {
            // SAFETY: what is in the chain of a locked bucket is alive (caller's duty).
            let next = unsafe { Link::following(at) };
            if next.is_null() {
                break;
            }
            before = Place::After(at);
            at = next;
        }
        if is_broken {
            self.unlink_moved(before);
            prim::pause(u32::MAX);
        }
        let mut target = choose(at).lock();
        let first = target.head;
        // SAFETY: `at` is alive, and writers of `next` hold this bucket's lock.
        let link = unsafe { &(*at).next };
        // [COLL-11] A reader on the entry goes on in the other chain from here; it has seen all of
        // this one. Pairs with [COLL-6].
        link.store(first, Release);
        target.set(Place::Head, at);
        drop(target);
        if !is_broken {
            self.unlink_moved(before);
        }
        true
    }

    /// Takes the entry behind `before` out of the old chain; it is in the new one by now.
    fn unlink_moved(&mut self, before: Place) {
        match before {
            Place::Head => {
                self.head = ptr::null_mut();
                let locked = self.head.map_addr(|a| a | 1);
                // [COLL-3] Orders the new table, and the entry's new place in it, before its absence here.
                // Pairs with [COLL-7].
                #[cfg(not(mutant = "COLL-3"))]
                self.bucket.head.store(locked, Release);
                #[cfg(mutant = "COLL-3")]
                self.bucket.head.store(locked, Relaxed);
            }
            Place::After(link) => {
                // SAFETY: `link` is in the chain of this locked bucket, so it is alive.
                let next = unsafe { &(*link).next };
                // [COLL-2] As [COLL-3], inside the chain. Pairs with [COLL-6].
                #[cfg(not(mutant = "COLL-2"))]
                next.store(ptr::null_mut(), Release);
                #[cfg(mutant = "COLL-2")]
                next.store(ptr::null_mut(), Relaxed);
            }
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // [COLL-8] Orders all changes before the free lock. Pairs with [COLL-7], [COLL-9].
        #[cfg(not(mutant = "COLL-3"))]
        self.bucket.head.store(self.head, Release);
        #[cfg(mutant = "COLL-3")]
        self.bucket.head.store(self.head, Relaxed);
    }
}
