//! Freeing what hits may still see: two grace periods, one after the other.
//!
//! For:     `unregister_sync`, and the calls that find much to free.
//! State:   batches of uprobes, consumers and groups of them, with the cookie that each waits for.
//! Context: target. `sync` waits; the rest looks and goes on.
//! Keeps:   C1 a uprobe, consumer or group is freed after it was unlinked, then a grace period of entries, then one
//!             of returns: an entry that found it may lease it until the first has ended, no later.
//!          C2 everything unlinked before `sync` is freed when it returns, unless another call frees it.
//! Checked: `tests/lifetime.rs`, `torture uprobe` and its variants no-wait and early-free.
//! Source:  kernel `put_uprobe` (v7.0) chains callbacks. Departs: batches are polled, so that nothing is
//!          allocated per uprobe, and the order is entries, then returns.

use crate::consumer::Slot;
use crate::group::GroupNode;
use crate::registry::{Broken, Inner, lock};
use crate::stats::bump;
use crate::uprobe::{FREED, Node};
use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;
use rcu::Cookie;

/// Dead uprobes, retired consumers and groups that start a batch without `unregister_sync`: some tens of megabytes.
const MANY: usize = 1 << 18;

/// Consumers and groups that are off their lists.
#[derive(Default)]
pub(crate) struct Retired {
    pub consumers: Vec<NonNull<Slot>>,
    pub groups: Vec<NonNull<GroupNode>>,
}

// SAFETY: whoever takes them from the registry owns them.
unsafe impl Send for Retired {}

impl Retired {
    /// Adds a consumer and the group that it was in.
    pub fn add(&mut self, slot: NonNull<Slot>, group: Option<NonNull<GroupNode>>) {
        self.consumers.push(slot);
        self.groups.extend(group);
    }

    fn len(&self) -> usize {
        self.consumers.len() + self.groups.len()
    }
}

/// What is freed together.
#[derive(Default)]
pub(crate) struct Unlinked {
    uprobes: Vec<NonNull<Node>>,
    retired: Retired,
}

// SAFETY: whoever takes it from the registry owns it.
unsafe impl Send for Unlinked {}

/// What waits for its grace periods.
pub(crate) struct Batch {
    what: Unlinked,
    /// True once the grace period of entries is past, and the cookie is one of returns.
    is_second: bool,
    cookie: Option<Cookie>,
}

/// What was freed, kept to see who uses it.
pub(crate) enum Freed {
    Uprobe(NonNull<Node>),
    Consumer(NonNull<Slot>),
    Group(NonNull<GroupNode>),
}

// SAFETY: as for `Unlinked`.
unsafe impl Send for Freed {}

impl Freed {
    fn free(self) {
        match self {
            // SAFETY: `Uprobe::make` boxed it; erased, and its grace periods are past.
            Freed::Uprobe(node) => drop(unsafe { Box::from_raw(node.as_ptr()) }),
            // SAFETY: `Inner::slot` boxed it; unlinked, and its grace periods are past.
            Freed::Consumer(slot) => drop(unsafe { Box::from_raw(slot.as_ptr()) }),
            // SAFETY: `group::make` boxed it; unlinked, and its grace periods are past.
            Freed::Group(group) => drop(unsafe { Box::from_raw(group.as_ptr()) }),
        }
    }
}

impl Inner {
    /// Takes the dead uprobes out of the tree, and with the retired consumers.
    fn unlink_all(&self) -> Unlinked {
        let uprobes = self.dead.take();
        for node in &uprobes {
            let _writing = self.tree_lock.write().unwrap_or_else(|e| e.into_inner());
            // SAFETY: the only writer. False if its successor made it leave already.
            unsafe { self.tree.erase(*node) };
            // SAFETY: ours since it was taken.
            self.forget_delayed(unsafe { node.as_ref() }, None);
        }
        if self.is_broken(Broken::EarlyFree) {
            uprobes.iter().for_each(|node| self.mark(*node));
        }
        Unlinked { uprobes, retired: core::mem::take(&mut *lock(&self.retired)) }
    }

    /// Waits for everything that was unlinked, and frees it.
    pub fn sync(&self) {
        let what = self.unlink_all();
        let waiting = core::mem::take(&mut *lock(&self.batches));
        if !self.is_broken(Broken::NoWait) {
            self.entry.wait();
            self.returns.wait();
        }
        self.free(what);
        waiting.into_iter().for_each(|batch| self.free(batch.what));
    }

    /// Starts a batch if there is much, and frees batches whose time has come.
    pub fn collect_if_many(&self) {
        if self.is_broken(Broken::EarlyFree) || self.dead.len() + lock(&self.retired).len() >= MANY {
            let what = self.unlink_all();
            lock(&self.batches).push(Batch { what, is_second: false, cookie: self.entry.start() });
        }
        for what in self.ripe() {
            self.free(what);
        }
    }

    /// Batches with both grace periods past.
    fn ripe(&self) -> Vec<Unlinked> {
        let mut batches = lock(&self.batches);
        for batch in batches.iter_mut().filter(|b| !b.is_second) {
            if self.entry.is_past(batch.cookie) {
                batch.is_second = true;
                batch.cookie = self.returns.start();
            }
        }
        let is_ripe = |batch: &mut Batch| batch.is_second && self.returns.is_past(batch.cookie);
        batches.extract_if(.., is_ripe).map(|batch| batch.what).collect()
    }

    fn mark(&self, node: NonNull<Node>) {
        // SAFETY: not freed yet.
        unsafe { &(*node.as_ptr()).value }.state.store(FREED, Relaxed);
    }

    fn free(&self, what: Unlinked) {
        for node in what.uprobes {
            self.mark(node);
            bump(&self.counts.freed);
            self.bury(Freed::Uprobe(node));
        }
        what.retired.consumers.into_iter().for_each(|slot| self.bury(Freed::Consumer(slot)));
        what.retired.groups.into_iter().for_each(|group| self.bury(Freed::Group(group)));
    }

    /// Frees, or keeps the youngest so many.
    fn bury(&self, freed: Freed) {
        if self.config.quarantine == 0 {
            return freed.free();
        }
        let oldest = {
            let mut quarantine = lock(&self.quarantine);
            quarantine.push_back(freed);
            (quarantine.len() > self.config.quarantine).then(|| quarantine.pop_front()).flatten()
        };
        // Outside of the lock: a consumer's destructor is the caller's code, and may call the registry.
        if let Some(oldest) = oldest {
            oldest.free();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Nobody has a handle, a reference or a stack, and hits need one: no reader is left.
        self.end_orphans();
        let what = self.unlink_all();
        self.free(what);
        let waiting = core::mem::take(&mut *lock(&self.batches));
        waiting.into_iter().for_each(|batch| self.free(batch.what));
        core::mem::take(&mut *lock(&self.quarantine)).into_iter().for_each(Freed::free);
    }
}
