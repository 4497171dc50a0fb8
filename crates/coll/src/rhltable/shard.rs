//! What writers have for each CPU: a count of keys, and memory of removed entries.
//!
//! For:     inserts and removals that share no cache line.
//! State:   for each CPU the count, spare memory, and removed entries that wait for a grace period.
//! Context: target. The shard's mutex is taken by others only if a thread is moved while it holds it.
//! Keeps:   S1 memory is spare only after a grace period since its entry was removed.
//!          S2 an entry with a destructor is not kept here: it goes to the domain's callbacks at once.
//! Checked: `tests/table.rs`, `torture rhltable --broken no-grace-period`.

use super::node::Node;
use super::options::broken;
use super::{InsertError, RhlTable};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicIsize, Ordering::Relaxed};
use rcu::{Cookie, Domain};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Removed entries that share a grace period. A request wakes the domain's worker, and its membarriers interrupt
/// every busy CPU: with 64 a tenth of a writer's time went there (`bench breakpoint scale`).
const BATCH: usize = 512;
/// Spare memory that a CPU keeps, in entries; what is more goes back to the system.
const SPARE: usize = 4 * BATCH;

type Entries<K, V> = Vec<NonNull<Node<K, V>>>;

struct Store<K, V> {
    spare: Entries<K, V>,
    removed: Entries<K, V>,
    waiting: VecDeque<(Cookie, Entries<K, V>)>,
}

#[repr(align(128))]
struct Shard<K, V> {
    keys: AtomicIsize,
    store: Mutex<Store<K, V>>,
}

pub(super) struct Shards<K, V>(Box<[Shard<K, V>]>);

impl<K, V> std::fmt::Debug for Shards<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shards({} keys)", self.keys())
    }
}

impl<K, V> Shards<K, V> {
    pub(super) fn new() -> Self {
        let shard = |_| Shard {
            keys: AtomicIsize::new(0),
            store: Mutex::new(Store { spare: Vec::new(), removed: Vec::new(), waiting: VecDeque::new() }),
        };
        Shards((0..percpu::possible_cpus()).map(shard).collect())
    }

    #[inline(always)]
    fn mine(&self) -> &Shard<K, V> {
        &self.0[percpu::current_cpu() as usize % self.0.len()]
    }

    pub(super) fn keys(&self) -> usize {
        self.0.iter().map(|s| s.keys.load(Relaxed)).sum::<isize>().max(0) as usize
    }

    /// Adds to this CPU's count; its new value.
    pub(super) fn add_key(&self, n: isize) -> isize {
        self.mine().keys.fetch_add(n, Relaxed) + n
    }

    /// Memory for an entry.
    pub(super) fn node(&self, domain: &Domain) -> Result<NonNull<Node<K, V>>, InsertError> {
        if Self::IS_PLAIN {
            let mut store = self.mine().store.lock().unwrap_or_else(PoisonError::into_inner);
            if store.spare.is_empty() {
                store.take_back(domain);
            }
            if let Some(node) = store.spare.pop() {
                return Ok(node);
            }
        }
        Node::alloc()
    }

    const IS_PLAIN: bool = !core::mem::needs_drop::<K>() && !core::mem::needs_drop::<V>();

    /// Takes an entry that was unlinked, to free it when its readers have left.
    ///
    /// # Safety
    /// `at` must be an entry that `insert` made and that is in no chain any more.
    pub(super) unsafe fn retire<S>(&self, at: *mut Node<K, V>, table: &RhlTable<K, V, S>)
    where
        K: Send + Sync,
        V: Send + Sync,
    {
        // SAFETY: an entry is never null.
        let node = unsafe { NonNull::new_unchecked(at) };
        if !Self::IS_PLAIN {
            let offset = core::mem::offset_of!(Node<K, V>, head);
            let head = node.map_addr(|a| a.saturating_add(offset)).cast();
            // SAFETY: the head is part of the entry, which nobody touches until the callback frees it; keys
            // and values may be dropped on any thread.
            return unsafe { table.domain.call_raw(head, Node::<K, V>::free_by_head) };
        }
        let mut store = self.mine().store.lock().unwrap_or_else(PoisonError::into_inner);
        if broken!(table, NoGracePeriod) {
            return store.spare.push(node);
        }
        store.removed.push(node);
        if store.removed.len() >= BATCH {
            let batch = std::mem::replace(&mut store.removed, Vec::with_capacity(BATCH));
            store.waiting.push_back((table.domain.start_poll(), batch));
            store.take_back(&table.domain);
        }
    }

    /// Frees all memory that waits or is spare.
    pub(super) fn free_all(&mut self) {
        for shard in &mut self.0 {
            let store = shard.store.get_mut().unwrap_or_else(PoisonError::into_inner);
            let waiting = store.waiting.drain(..).flat_map(|(_, batch)| batch);
            for node in waiting.chain(store.removed.drain(..)).chain(store.spare.drain(..)) {
                // SAFETY: from `Node::alloc`, in no chain, without a destructor (S2); the table is being
                // dropped, so no reader is left.
                unsafe { Node::free(node.as_ptr()) };
            }
        }
    }
}

impl<K, V> Store<K, V> {
    /// Makes memory spare whose grace period is over.
    fn take_back(&mut self, domain: &Domain) {
        while self.waiting.front().is_some_and(|(cookie, _)| domain.poll_state(*cookie)) {
            let Some((_, mut batch)) = self.waiting.pop_front() else { return };
            if self.spare.len() < SPARE {
                self.spare.append(&mut batch);
            }
            for node in batch {
                // SAFETY: from `Node::alloc`, unlinked, its readers have left, without a destructor (S2).
                unsafe { Node::free(node.as_ptr()) };
            }
        }
    }
}

// SAFETY: the entries in a store belong to the store alone, and may be freed on any thread.
unsafe impl<K: Send, V: Send> Send for Store<K, V> {}
