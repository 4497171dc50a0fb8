//! Which consumers stand where: register, unregister, apply.
//!
//! For:     embedders and tests.
//! State:   the tree of uprobes, the spaces, what waits to be freed.
//! Context: target. Not in a hit, not inside a reader: takes locks, `unregister_sync` waits.
//! Keeps:   G1 one uprobe per (file, offset) in the tree.
//!          G2 a registration that fails leaves nothing behind.
//!          G3 after `unregister_sync`, no handler of a consumer that was unregistered before runs.
//!          G4 N times `unregister_nosync` and one `unregister_sync` cost one grace period of each side.
//! Checked: `tests/checklist.rs`, `tests/lifetime.rs`, `tests/errors.rs`, `torture uprobe`.
//! Source:  kernel `uprobe_register`, `uprobe_unregister_nosync`, `uprobe_apply` (v7.0). Departs: what is to
//!          be freed waits entries, then returns; the kernel waits in the other order, in which a reader that
//!          leases after the first wait is not waited for.

use crate::book::{ConsumerId, Fresh, Off};
use crate::collect::{Own, Register};
use crate::consumer::{Consumer, Slot};
use crate::domains::{Config, Side};
use crate::inside::{Inside, Misuse};
use crate::refctr::Delayed;
use crate::spaces::Members;
use crate::stats::{Counts, bump};
use crate::uprobe::{Dead, Node, Uprobe, put};
use crate::{ApplyError, File, RegisterError, Stats, UprobeRef};
use coll::{Key, Tree};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

/// Offsets of instructions are multiples of this.
const ALIGN: u64 = if cfg!(target_arch = "aarch64") { 4 } else { 1 };

/// How a registry can be broken on purpose.
#[cfg(feature = "broken")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// `unregister_sync` waits for nothing.
    NoWait,
    /// A dying uprobe is used again in the place of being replaced.
    NoRevival,
    /// A uprobe is freed when its last reference goes, without a grace period.
    EarlyFree,
}

#[cfg(not(feature = "broken"))]
#[derive(Clone, Copy, PartialEq, Eq)]
#[allow(dead_code)]
pub(crate) enum Broken {
    NoWait,
    NoRevival,
    EarlyFree,
}

pub(crate) struct Inner {
    pub config: Config,
    pub entry: Side,
    pub returns: Side,
    pub tree: Tree<Uprobe>,
    /// Written to change the tree; read to keep that out.
    pub tree_lock: RwLock<()>,
    pub members: Members,
    pub dead: Dead,
    /// Who stands where, and what hits may still see and nobody finds any more.
    pub book: Mutex<Register>,
    /// What was freed and stays, marked.
    pub quarantine: Mutex<std::collections::VecDeque<Off<Own>>>,
    pub delayed: Mutex<Vec<Delayed>>,
    /// Registrations that were dropped where nothing can be unregistered.
    pub orphans: Mutex<Vec<Orphan>>,
    pub counts: Counts,
}

/// All uprobes of a program. Clones are the same registry.
#[derive(Clone)]
pub struct Registry {
    pub(crate) inner: Arc<Inner>,
}

/// A consumer on its uprobe; dropping it unregisters without waiting.
pub struct Registered {
    probe: UprobeRef,
    /// Until it is unlinked.
    pub(crate) slot: Option<NonNull<Slot>>,
}

// SAFETY: the slot is shared with hits by design, and changed under locks alone.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

/// What an unregistration could not take back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use = "breakpoints may be left"]
pub struct Left {
    /// Breakpoints that could not be removed. If there are any, the uprobe stays for ever.
    pub breakpoints: usize,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Registry {
    /// An empty registry.
    ///
    /// # Errors
    /// A domain could not be made.
    pub fn new(config: Config) -> Result<Registry, rcu::BuildError> {
        Ok(Registry {
            inner: Arc::new(Inner {
                entry: Side::new(config.entry, config.by_calls, "uprobe-entry")?,
                returns: Side::new(config.returns, config.by_calls, "uprobe-returns")?,
                config,
                tree: Tree::new(0x5eed),
                tree_lock: RwLock::new(()),
                members: Members::default(),
                dead: Dead::default(),
                book: Mutex::default(),
                quarantine: Mutex::default(),
                delayed: Mutex::default(),
                orphans: Mutex::default(),
                counts: Counts::default(),
            }),
        })
    }

    /// Puts a consumer on the uprobe of a place, and breakpoints where the consumer wants them.
    ///
    /// # Errors
    /// Nothing is left of the registration, and the consumer does not run any more.
    /// # Panics
    /// Called from inside a handler, a filter or a space.
    pub fn register(
        &self,
        file: &Arc<dyn File>,
        offset: u64,
        ref_ctr: Option<u64>,
        consumer: Arc<dyn Consumer>,
    ) -> Result<Registered, RegisterError> {
        Inside::forbid("Registry::register");
        let inner = &self.inner;
        let (registered, fresh) = self.enlist(file, offset, ref_ctr, consumer)?;
        let result = {
            let _inside = Inside::of(inner);
            let uprobe = &registered.node().value;
            let _registering = uprobe.registering.write().unwrap_or_else(|e| e.into_inner());
            registered.link(fresh);
            registered.slot().map_or(Ok(()), |slot| inner.install_for(registered.node(), slot))
        };
        match result {
            Ok(()) => {
                inner.collect_if_many();
                Ok(registered)
            }
            Err(error) => {
                let _ = self.unregister_nosync(registered);
                self.unregister_sync();
                Err(RegisterError::Install(error))
            }
        }
    }

    /// A consumer and the uprobe of its place, which does not call it yet.
    pub(crate) fn enlist(
        &self,
        file: &Arc<dyn File>,
        offset: u64,
        ref_ctr: Option<u64>,
        consumer: Arc<dyn Consumer>,
    ) -> Result<(Registered, Fresh), RegisterError> {
        let inner = &self.inner;
        inner.unlink_orphans();
        check(&**file, offset, ref_ctr, &*consumer)?;
        // The reference is the consumer's own, so no other is needed.
        let node = inner.get_or_make(file, offset, ref_ctr)?;
        let fresh = inner.fresh();
        let slot = inner.slot(fresh.id(), consumer);
        Ok((Registered { probe: UprobeRef { inner: inner.clone(), node }, slot: Some(slot) }, fresh))
    }

    /// Takes a consumer off its uprobe, and breakpoints from where no other consumer wants them.
    ///
    /// Hits under way may still call it until [`unregister_sync`](Self::unregister_sync).
    ///
    /// # Panics
    /// Called from inside a handler, a filter or a space.
    pub fn unregister_nosync(&self, mut registered: Registered) -> Left {
        Inside::forbid("Registry::unregister_nosync");
        self.inner.unlink_orphans();
        let left = registered.unlink();
        drop(registered);
        self.inner.collect_if_many();
        left
    }

    /// Returns once no hit or return runs a consumer that was unregistered before, and frees what waited.
    ///
    /// # Cost
    /// One grace period of the entry side, then one of the return side, however many were unregistered.
    /// # Panics
    /// Called from inside a handler, a filter or a space: it would wait for its own caller.
    pub fn unregister_sync(&self) {
        self.try_unregister_sync().unwrap_or_else(|misuse| panic!("{misuse}"));
    }

    /// [`unregister_sync`](Self::unregister_sync) that returns the broken rule in the place of a panic.
    ///
    /// # Errors
    /// Called from inside a handler, a filter or a space.
    pub fn try_unregister_sync(&self) -> Result<(), Misuse> {
        Inside::check("Registry::unregister_sync")?;
        self.inner.unlink_orphans();
        self.inner.sync();
        Ok(())
    }

    /// Places (`add`) or removes breakpoints after a consumer's filter changed its mind.
    ///
    /// # Errors
    /// The consumer is not on this uprobe, the uprobe is of another registry, or a breakpoint could not be placed.
    /// # Panics
    /// Called from inside a handler, a filter or a space.
    pub fn apply(&self, probe: &UprobeRef, consumer: &Registered, add: bool) -> Result<(), ApplyError> {
        Inside::forbid("Registry::apply");
        if !Arc::ptr_eq(&self.inner, &probe.inner) {
            return Err(ApplyError::NotOnProbe);
        }
        let _inside = Inside::of(&self.inner);
        let uprobe = &probe.node().value;
        let _registering = uprobe.registering.write().unwrap_or_else(|e| e.into_inner());
        // SAFETY: `registering` keeps the list as it is.
        let mut slots = unsafe { uprobe.slots() };
        let Some(slot) = slots.find(|slot| Some(NonNull::from(*slot)) == consumer.slot) else {
            return Err(ApplyError::NotOnProbe);
        };
        if add {
            return self.inner.install_for(probe.node(), slot).map_err(ApplyError::Install);
        }
        self.inner.remove_unwanted(probe.node());
        Ok(())
    }

    /// The uprobe of a place, if there is one.
    pub fn find(&self, file: crate::FileId, offset: u64) -> Option<UprobeRef> {
        let _reading = self.inner.tree_lock.read().unwrap_or_else(|e| e.into_inner());
        // SAFETY: writers are kept out; what they erased before is not in the tree.
        let node = unsafe { self.inner.tree.find(Key(file, offset)) }?;
        let node = node.value.try_get().then(|| node.value.me())?;
        Some(UprobeRef { inner: self.inner.clone(), node })
    }

    /// The counters now.
    pub fn stats(&self) -> Stats {
        self.inner.counts.read(lock(&self.inner.book).off_consumers() as u64)
    }

    /// The domains of entries and returns, where they have one.
    pub fn domains(&self) -> [Option<&rcu::Domain>; 2] {
        [self.inner.entry.domain(), self.inner.returns.domain()]
    }
}

fn check(
    file: &dyn File,
    offset: u64,
    ref_ctr: Option<u64>,
    consumer: &dyn Consumer,
) -> Result<(), RegisterError> {
    if !consumer.has_handler() && !consumer.has_ret_handler() {
        return Err(RegisterError::NoHandler);
    }
    if !file.is_readable() {
        return Err(RegisterError::Unreadable);
    }
    let size = file.size();
    if offset > size {
        return Err(RegisterError::BeyondEnd { offset, size });
    }
    if !offset.is_multiple_of(ALIGN) {
        return Err(RegisterError::Misaligned { offset, align: ALIGN });
    }
    match ref_ctr {
        Some(offset) if offset % 2 != 0 => Err(RegisterError::RefCtrMisaligned { offset }),
        _ => Ok(()),
    }
}

impl Inner {
    /// True if the registry is broken in this way.
    pub fn is_broken(&self, how: Broken) -> bool {
        #[cfg(feature = "broken")]
        return self.config.broken == Some(how);
        #[cfg(not(feature = "broken"))]
        return {
            let _ = how;
            false
        };
    }

    fn slot(&self, id: ConsumerId, consumer: Arc<dyn Consumer>) -> NonNull<Slot> {
        let slot = Slot {
            id,
            has_handler: consumer.has_handler(),
            has_ret_handler: consumer.has_ret_handler(),
            has_filter: consumer.has_filter(),
            group: AtomicPtr::default(),
            consumer,
        };
        // SAFETY: fresh from a box, so not null.
        unsafe { NonNull::new_unchecked(Box::into_raw(Box::new(slot))) }
    }

    /// The uprobe of a place with a reference more: the present one, or a new one if it is dying.
    fn get_or_make(
        &self,
        file: &Arc<dyn File>,
        offset: u64,
        ref_ctr: Option<u64>,
    ) -> Result<NonNull<Node>, RegisterError> {
        // Asked before the lock is taken: it is the caller's code.
        let key = Key(file.id(), offset);
        let _writing = self.tree_lock.write().unwrap_or_else(|e| e.into_inner());
        // SAFETY: the only writer, so what is in the tree is not freed.
        if let Some(node) = unsafe { self.tree.find(key) } {
            let uprobe = &node.value;
            let mut alive = uprobe.try_get();
            if !alive && self.is_broken(Broken::NoRevival) {
                // So many that it does not die a second time, which would end in a crash before a verdict.
                uprobe.refs.store(1 << 20, Relaxed);
                alive = true;
            }
            if alive {
                if uprobe.ref_ctr == ref_ctr {
                    return Ok(uprobe.me());
                }
                let registered = uprobe.ref_ctr;
                // SAFETY: the reference taken above.
                unsafe { put(self, uprobe.me()) };
                return Err(RegisterError::RefCtrMismatch { registered, asked: ref_ctr });
            }
            // Dying: it makes room, and whoever collects it finds it out of the tree.
            // SAFETY: the only writer; it is freed after a grace period only.
            unsafe { self.tree.erase(uprobe.me()) };
            bump(&self.counts.revived);
        }
        let node = Uprobe::make(file.clone(), key, ref_ctr);
        bump(&self.counts.made);
        // SAFETY: the only writer; the node is fresh and freed by `collect` alone.
        unsafe { self.tree.insert(node) };
        // SAFETY: as above.
        self.open(unsafe { node.as_ref() });
        Ok(node)
    }
}

impl Registered {
    /// The uprobe, to be kept by a site.
    pub fn probe(&self) -> UprobeRef {
        // One of the references that it has is ours, so it cannot be dying.
        self.probe.node().value.try_get();
        UprobeRef { inner: self.probe.inner.clone(), node: self.probe.node }
    }

    pub(crate) fn node(&self) -> &Node {
        self.probe.node()
    }

    pub(crate) fn slot(&self) -> Option<&Slot> {
        // SAFETY: it lives until it was unlinked, which takes it away, retired and collected.
        self.slot.map(|slot| unsafe { slot.as_ref() })
    }

    /// Puts the consumer on its uprobe. Under `registering`, written.
    pub(crate) fn link(&self, fresh: Fresh) {
        if let Some(slot) = self.slot {
            self.probe.inner.link(self.node(), fresh, slot);
        }
    }

    /// Takes the consumer off and removes breakpoints; the second time, nothing.
    fn unlink(&mut self) -> Left {
        let Some(slot) = self.slot.take() else { return Left::default() };
        let (inner, node) = (&self.probe.inner, self.probe.node());
        let breakpoints = {
            let _inside = Inside::of(inner);
            let _registering = node.value.registering.write().unwrap_or_else(|e| e.into_inner());
            inner.unlink(node, slot);
            inner.remove_unwanted(node)
        };
        if breakpoints > 0 {
            // A breakpoint may be hit for ever, so its uprobe stays: a reference that nobody gives back.
            node.value.refs.fetch_add(1, Relaxed);
            bump(&inner.counts.leaked);
        }
        Left { breakpoints }
    }
}

impl Drop for Registered {
    /// Unregisters without waiting; inside a handler, a filter or a space, as soon as the registry is called next.
    fn drop(&mut self) {
        let Some(slot) = self.slot.filter(|_| Inside::is()) else {
            let _ = self.unlink();
            return;
        };
        self.slot = None;
        // A reference for the orphan, in the place of the one that the field gives back.
        self.probe.node().value.refs.fetch_add(1, Relaxed);
        lock(&self.probe.inner.orphans).push(Orphan { node: self.probe.node, slot });
    }
}

/// What is left of a registration that was dropped inside: the consumer is still on its uprobe.
pub(crate) struct Orphan {
    node: NonNull<Node>,
    slot: NonNull<Slot>,
}

// SAFETY: as for `Registered`.
unsafe impl Send for Orphan {}

impl Inner {
    /// The same at the registry's end, when nobody hits.
    pub fn end_orphans(&self) {
        let orphans = core::mem::take(&mut *lock(&self.orphans));
        for Orphan { node, slot } in orphans {
            // SAFETY: the orphan's reference keeps it.
            let uprobe = unsafe { node.as_ref() };
            self.unlink(uprobe, slot);
            self.remove_unwanted(uprobe);
            // SAFETY: the orphan's reference, not used again.
            unsafe { put(self, node) };
        }
    }

    /// Unregisters what was dropped inside handlers.
    fn unlink_orphans(self: &Arc<Self>) {
        let orphans = core::mem::take(&mut *lock(&self.orphans));
        for Orphan { node, slot } in orphans {
            let probe = UprobeRef { inner: self.clone(), node };
            drop(Registered { probe, slot: Some(slot) });
        }
    }
}
