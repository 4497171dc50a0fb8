//! The registry's book: its consumers are linked into groups, and what is off waits for entries, then for returns.
//!
//! For:     register and unregister; `unregister_sync`, and the calls that find much to free.
//! State:   none of its own: the book's.
//! Context: target. `sync` waits; the rest looks and goes on.
//! Keeps:   C1 a uprobe, consumer or group is freed after it was unlinked, then a grace period of entries, then one
//!             of returns: an entry that found it may lease it until the first has ended, no later.
//!          C2 everything unlinked before `sync` is freed when it returns, unless another call frees it.
//! Checked: `tests/model.rs` (the book), `tests/lifetime.rs`, `torture uprobe` and its variants no-wait and early-free.
//! Source:  kernel `put_uprobe` (v7.0) chains callbacks. Departs: batches are polled, so that nothing is
//!          allocated per uprobe, and the order is entries, then returns.

use crate::book::{Board, Book, Clock, Fresh, Kind, Off, Step};
use crate::consumer::Slot;
use crate::domains::Side;
use crate::group::{self, GroupNode};
use crate::registry::{Broken, Inner, lock};
use crate::stats::bump;
use crate::uprobe::{FREED, Node, Uprobe};
use core::convert::Infallible;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;
use rcu::Cookie;

/// What is off and starts to wait without `unregister_sync`: some tens of megabytes.
const MANY: usize = 1 << 18;

/// The book of a registry.
pub(crate) type Register = Book<Own>;

/// Something in a box of its own, which the book has until it is freed.
pub(crate) struct Boxed<T>(pub NonNull<T>);

// SAFETY: the book's owner alone frees it; what hits do with it is theirs to make sound.
unsafe impl<T> Send for Boxed<T> {}

/// Uprobes of this process. A place is the address of one that is in memory: it is closed before that can be another's.
pub(crate) struct Own;

impl Kind for Own {
    type Place = usize;
    type Site = ();
    type Consumer = Boxed<Slot>;
    type List = Boxed<GroupNode>;
    type Probe = Boxed<Node>;
    type Ticket = Option<Cookie>;
    const WAITS: usize = 2;

    fn waits(_: &Off<Own>, _: usize) -> bool {
        true
    }
}

impl Clock<Own> for Inner {
    fn ticket(&self, wait: usize) -> Option<Cookie> {
        self.side(wait).start()
    }

    fn is_over(&self, wait: usize, ticket: Option<Cookie>) -> bool {
        self.side(wait).is_past(ticket)
    }
}

/// The groups of one uprobe, for who holds `listing`.
struct Groups<'u>(&'u Uprobe);

impl Board<Own> for Groups<'_> {
    type Draft = ();
    type Full = Infallible;

    fn reserve(&mut self, _: usize, _: usize) -> Result<(), Infallible> {
        Ok(())
    }

    fn forget(&mut self, (): ()) {}

    fn publish(
        &mut self,
        _: usize,
        _: &mut (),
        (): (),
        step: &Step<'_, Own>,
        old: &mut Vec<Boxed<GroupNode>>,
    ) {
        let list = &self.0.consumers;
        for (_, slot) in step.gone {
            // SAFETY: `listing` makes us the only writer; it is freed after its grace periods only.
            old.extend(unsafe { group::unlink(list, slot.0) }.map(Boxed));
        }
        for slot in step.come.iter().filter_map(|id| step.members.get(id)) {
            // SAFETY: the only writer; the slot lives until it was taken off and has waited.
            old.extend(unsafe { group::link(list, slot.0) }.map(Boxed));
        }
    }
}

fn place(node: &Node) -> usize {
    core::ptr::from_ref(node).addr()
}

impl Off<Own> {
    fn free(self) {
        match self {
            // SAFETY: `Uprobe::make` boxed it; erased, and its grace periods are past.
            Off::Probe(node) => drop(unsafe { Box::from_raw(node.0.as_ptr()) }),
            // SAFETY: `Inner::slot` boxed it; unlinked, and its grace periods are past.
            Off::Consumer(_, slot) => drop(unsafe { Box::from_raw(slot.0.as_ptr()) }),
            // SAFETY: `group::make` boxed it; unlinked, and its grace periods are past.
            Off::List(group) => drop(unsafe { Box::from_raw(group.0.as_ptr()) }),
        }
    }
}

/// Who comes and goes.
impl Inner {
    fn side(&self, wait: usize) -> &Side {
        if wait == 0 { &self.entry } else { &self.returns }
    }

    /// A new uprobe, for consumers to come.
    pub fn open(&self, node: &Node) {
        lock(&self.book).open(place(node), (), []);
    }

    /// The number of a consumer to come.
    pub fn fresh(&self) -> Fresh {
        lock(&self.book).fresh()
    }

    /// Puts a consumer on its uprobe. Under `registering`, written.
    pub fn link(&self, node: &Node, fresh: Fresh, slot: NonNull<Slot>) {
        let _listing = lock(&node.value.listing);
        let come = vec![(fresh, place(node), Boxed(slot))];
        let done = lock(&self.book).change(come, &[], &mut Groups(&node.value));
        debug_assert!(done.is_ok() || self.is_broken(Broken::NoRevival), "it has references, so it is open");
    }

    /// Takes a consumer off, if it was on. Under `registering`, written, or where nobody hits any more.
    pub fn unlink(&self, node: &Node, slot: NonNull<Slot>) {
        // SAFETY: it lives until it was taken off, which is below, and has waited.
        let id = unsafe { slot.as_ref() }.id;
        let _listing = lock(&node.value.listing);
        let mut book = lock(&self.book);
        if book.change(Vec::new(), &[id], &mut Groups(&node.value)).is_err() {
            book.take_off(Off::Consumer(id, Boxed(slot)));
        }
    }
}

/// What goes.
impl Inner {
    /// Takes the dead uprobes out of the tree, and off the book.
    fn unlink_dead(&self) {
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
        let mut book = lock(&self.book);
        for node in uprobes {
            // SAFETY: ours, and not freed yet.
            let closed = book.close(place(unsafe { node.as_ref() }));
            let is_empty = closed.is_none_or(|closed| closed.members.is_empty());
            debug_assert!(is_empty || self.is_broken(Broken::NoRevival), "each consumer holds a reference");
            book.take_off(Off::Probe(Boxed(node)));
        }
    }

    /// Waits for everything that was unlinked, and frees it.
    pub fn sync(&self) {
        self.unlink_dead();
        let all = lock(&self.book).take(|_| true);
        if !self.is_broken(Broken::NoWait) {
            self.entry.wait();
            self.returns.wait();
        }
        self.free(all);
    }

    /// Has much begin to wait, and frees what has waited.
    pub fn collect_if_many(&self) {
        let is_much = || self.dead.len() + lock(&self.book).off_idle() >= MANY;
        if self.is_broken(Broken::EarlyFree) || is_much() {
            self.unlink_dead();
            lock(&self.book).begin(self);
        }
        let ripe = lock(&self.book).ripe(self);
        self.free(ripe);
    }

    /// What is off at the registry's end, when nobody hits.
    pub fn free_all(&self) {
        self.unlink_dead();
        let all = lock(&self.book).take(|_| true);
        self.free(all);
    }

    fn mark(&self, node: NonNull<Node>) {
        // SAFETY: not freed yet.
        unsafe { &(*node.as_ptr()).value }.state.store(FREED, Relaxed);
    }

    /// Frees, or keeps the youngest so many; never under the book's lock: a consumer's destructor is the caller's code.
    fn free(&self, all: Vec<Off<Own>>) {
        for off in all {
            if let Off::Probe(node) = &off {
                self.mark(node.0);
                bump(&self.counts.freed);
            }
            self.bury(off);
        }
    }

    fn bury(&self, freed: Off<Own>) {
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
        self.free_all();
        core::mem::take(&mut *lock(&self.quarantine)).into_iter().for_each(Off::free);
    }
}
