//! One probe on a (file, offset), whoever maps it.
//!
//! For:     the registry, hits, return instances.
//! State:   the consumers, the references, the copied instruction; links for tree and collecting.
//! Context: references and the walk: hit. The rest: target.
//! Keeps:   U1 each consumer holds one reference; so does each `UprobeRef` and each counted return.
//!          U2 a uprobe whose last reference went never gets another.
//!          U3 the link of dying uprobes is not that of the tree, which readers still follow.
//! Checked: `tests/lifetime.rs`, `torture uprobe`.
//! Source:  kernel `struct uprobe` (v7.0). Departs: the last put pushes on a list that needs no lock, in the
//!          place of a work item.

use crate::consumer::Slot;
use crate::domains::Config;
use crate::group::Group;
use crate::registry::Inner;
use crate::{File, Insn};
use coll::{Key, List, TreeNode};
use core::ptr::NonNull;
use core::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

/// The instruction was copied and looked at; hits may run.
pub(crate) const READY: u32 = 1;
/// Freed, and kept to see who uses it.
pub(crate) const FREED: u32 = 2;

pub(crate) type Node = TreeNode<Uprobe>;

/// See the file's head. Lives as the value of a tree node.
pub(crate) struct Uprobe {
    /// What hits read, first.
    pub consumers: List<Group>,
    pub state: AtomicU32,
    pub refs: AtomicUsize,
    /// Written to register, unregister and apply; read to look at filters once more.
    pub registering: RwLock<()>,
    /// Held to change the list, and to walk it for filters.
    pub listing: Mutex<()>,
    pub file: Arc<dyn File>,
    pub ref_ctr: Option<u64>,
    pub insn: OnceLock<Insn>,
    pub next_dead: AtomicPtr<Node>,
    /// The box that it lives in, for who frees it.
    me: AtomicPtr<Node>,
}

impl Uprobe {
    /// A uprobe with the one reference of the consumer that it is made for.
    pub fn make(file: Arc<dyn File>, key: Key, ref_ctr: Option<u64>) -> NonNull<Node> {
        let uprobe = Uprobe {
            consumers: List::new(),
            state: AtomicU32::new(0),
            refs: AtomicUsize::new(1),
            registering: RwLock::new(()),
            listing: Mutex::new(()),
            ref_ctr,
            insn: OnceLock::new(),
            next_dead: AtomicPtr::new(core::ptr::null_mut()),
            me: AtomicPtr::new(core::ptr::null_mut()),
            file,
        };
        let node = Box::into_raw(Box::new(TreeNode::new(key, uprobe)));
        // SAFETY: fresh from a box.
        unsafe { &(*node).value }.me.store(node, Relaxed);
        // SAFETY: as above, so not null.
        unsafe { NonNull::new_unchecked(node) }
    }

    /// Takes a reference, unless the last one is gone.
    pub fn try_get(&self) -> bool {
        let mut refs = self.refs.load(Relaxed);
        while refs != 0 {
            match self.refs.compare_exchange_weak(refs, refs + 1, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(now) => refs = now,
            }
        }
        false
    }

    /// Its consumers, newest first.
    ///
    /// # Safety
    /// The caller must keep writers out for as long as it uses what it gets.
    pub unsafe fn slots(&self) -> impl Iterator<Item = &Slot> {
        // SAFETY: the caller's duty.
        let groups = unsafe { self.consumers.walk() };
        // SAFETY: the same.
        groups.flat_map(|node| unsafe { node.value.slots() })
    }

    /// The box that it lives in.
    pub fn me(&self) -> NonNull<Node> {
        // SAFETY: `make` set it, so it is not null.
        unsafe { NonNull::new_unchecked(self.me.load(Relaxed)) }
    }

    /// True if hits may run its consumers.
    #[inline(always)]
    pub fn is_ready(&self) -> bool {
        // [PROBE-1] Orders the state before the instruction that it vouches for. Pairs with [PROBE-2].
        self.state.load(Acquire) == READY
    }

    /// Says that the instruction is there.
    pub fn set_ready(&self) {
        // [PROBE-2] Orders the copied instruction before the state. Pairs with [PROBE-1].
        self.state.store(READY, Release);
    }
}

/// Gives a reference back; the last one puts the uprobe on the list of the dead.
///
/// # Safety
/// The caller must own a reference to the node of a uprobe of this registry, and not use it afterwards.
pub(crate) unsafe fn put(inner: &Inner, node: NonNull<Node>) {
    // SAFETY: the caller's reference keeps it.
    let uprobe = unsafe { &(*node.as_ptr()).value };
    let me = uprobe.me();
    // [PROBE-3] Orders this owner's use of the uprobe before its end. Pairs with [PROBE-4].
    if uprobe.refs.fetch_sub(1, Release) == 1 {
        // [PROBE-4] Orders the other owners' uses before its end. Pairs with [PROBE-3].
        core::sync::atomic::fence(Acquire);
        inner.dead.push(me);
    }
}

/// Uprobes whose last reference went: pushed in any context, taken all at once.
#[derive(Default)]
pub(crate) struct Dead {
    first: AtomicPtr<Node>,
    count: AtomicUsize,
}

impl Dead {
    fn push(&self, node: NonNull<Node>) {
        self.count.fetch_add(1, Relaxed);
        let mut first = self.first.load(Relaxed);
        loop {
            // SAFETY: dead, and freed only by who takes it from here.
            unsafe { &(*node.as_ptr()).value }.next_dead.store(first, Relaxed);
            // [PROBE-5] Orders the uprobe's last use before its place on the list. Pairs with [PROBE-6].
            match self.first.compare_exchange_weak(first, node.as_ptr(), Release, Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// About how many there are.
    pub fn len(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Takes all.
    pub fn take(&self) -> Vec<NonNull<Node>> {
        // [PROBE-6] Orders the list before what it leads to. Pairs with [PROBE-5].
        let mut at = self.first.swap(core::ptr::null_mut(), Acquire);
        let mut all = Vec::new();
        while let Some(node) = NonNull::new(at) {
            // SAFETY: taken from the list, so ours, and not freed yet.
            at = unsafe { &(*node.as_ptr()).value }.next_dead.load(Relaxed);
            all.push(node);
        }
        self.count.fetch_sub(all.len(), Relaxed);
        all
    }
}

/// A counted reference to a uprobe: what a site holds, so that its hits need no lookup.
pub struct UprobeRef {
    pub(crate) inner: Arc<Inner>,
    pub(crate) node: NonNull<Node>,
}

// SAFETY: a uprobe is shared between threads by design; the reference is counted.
unsafe impl Send for UprobeRef {}
// SAFETY: as above.
unsafe impl Sync for UprobeRef {}

impl UprobeRef {
    #[inline(always)]
    pub(crate) fn node(&self) -> &Node {
        // SAFETY: our reference keeps it.
        unsafe { self.node.as_ref() }
    }

    /// The file and the offset.
    pub fn place(&self) -> (crate::FileId, u64) {
        let key = self.node().key();
        (key.0, key.1)
    }

    /// True if two references are to one uprobe.
    pub fn is_same(&self, other: &UprobeRef) -> bool {
        self.node == other.node
    }

    /// References to the uprobe, this one included.
    pub fn refs(&self) -> usize {
        self.node().value.refs.load(Relaxed)
    }

    /// How its registry is protected.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }
}

impl Drop for UprobeRef {
    fn drop(&mut self) {
        // SAFETY: this is our one reference, and `self` ends.
        unsafe { put(&self.inner, self.node) }
    }
}

impl core::fmt::Debug for UprobeRef {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (file, offset) = self.place();
        write!(f, "UprobeRef({file}:{offset:#x})")
    }
}
