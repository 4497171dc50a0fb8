//! An ordered tree that is searched without a lock, also while it is changed.
//!
//! For:     finding a uprobe by (file, offset).
//! State:   a root pointer and a sequence, odd while a writer is at work; two children in each node.
//! Context: lookups: hit, signal. Changes: one writer at a time (the caller's lock).
//! Keeps:   T1 what a lookup finds has the key that it looked for.
//!          T2 a child pointer, old or new, always leads to a lower priority: a lookup ends, whatever mix
//!             of old and new pointers it sees.
//!          T3 a lookup that finds nothing is true of an instant within it.
//! Checked: `tests/list_tree.rs`, model `walks` (mutants TREE-2, tree-no-retry).
//! Source:  kernel `include/linux/rbtree.h`, `rbtree_latch.h` for the rules of lockless lookup; treaps are
//!          Seidel and Aragon's (1989). Departs: a treap, because its insert and erase are one cut and one
//!          seam along a path, each store of which points down. A rotation points up for an instant.

use crate::order::{Acquire, AtomicPtr, AtomicU64, Relaxed, Release};
use core::ptr::{self, NonNull};

/// What a tree is ordered by: file, then offset.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key(pub u64, pub u64);

/// What a tree holds: a key, a value and its links.
#[derive(Debug)]
pub struct TreeNode<T> {
    key: Key,
    /// Set when the node is inserted, the same for a key at all times.
    rank: AtomicU64,
    left: AtomicPtr<TreeNode<T>>,
    right: AtomicPtr<TreeNode<T>>,
    /// What the caller keeps here.
    pub value: T,
}

impl<T> TreeNode<T> {
    /// A node that is in no tree.
    pub fn new(key: Key, value: T) -> TreeNode<T> {
        let null = || AtomicPtr::new(ptr::null_mut());
        TreeNode { key, rank: AtomicU64::new(0), left: null(), right: null(), value }
    }

    /// The key that the node is found by.
    pub fn key(&self) -> Key {
        self.key
    }

    /// The node's place in the heap order; no two nodes of a tree have the same.
    fn priority(&self) -> (u64, Key) {
        (self.rank.load(Relaxed), self.key)
    }

    fn towards(&self, key: Key) -> &AtomicPtr<TreeNode<T>> {
        if key < self.key { &self.left } else { &self.right }
    }
}

/// What one look at the tree says.
#[derive(Debug)]
pub enum Lookup<'a, T> {
    /// The node with the key.
    Found(&'a TreeNode<T>),
    /// There was an instant at which it was not there.
    Absent,
    /// Not found, but the tree was being changed.
    Unsure,
}

/// An ordered tree of nodes that their owner allocates and frees.
#[derive(Debug)]
pub struct Tree<T> {
    root: AtomicPtr<TreeNode<T>>,
    seq: AtomicU64,
    seed: u64,
}

impl<T> Tree<T> {
    /// An empty tree. The seed makes its shape hard to foresee.
    pub fn new(seed: u64) -> Tree<T> {
        Tree { root: AtomicPtr::new(ptr::null_mut()), seq: AtomicU64::new(0), seed }
    }

    /// The node with the key. Waits for a writer in the way, so not for signal handlers on the writer's thread.
    ///
    /// # Safety
    /// For as long as the result is used, the caller must be inside a reader that the owner of erased nodes
    /// waits for, or be the writer.
    #[inline]
    pub unsafe fn find(&self, key: Key) -> Option<&TreeNode<T>> {
        let mut tries = 0;
        loop {
            // SAFETY: the same duties.
            match unsafe { self.look(key) } {
                Lookup::Found(node) => return Some(node),
                Lookup::Absent => return None,
                Lookup::Unsure => crate::prim::pause(tries),
            }
            tries += 1;
        }
    }

    /// One look for the key, without waiting.
    ///
    /// # Safety
    /// As [`find`](Self::find).
    #[inline]
    pub unsafe fn look(&self, key: Key) -> Lookup<'_, T> {
        // [TREE-1] Orders the sequence before the pointers that it vouches for. Pairs with [TREE-5].
        let seq = self.seq.load(Acquire);
        // SAFETY: every node that a reader reaches is alive (caller's duty).
        match unsafe { follow(&self.root).as_ref() }.and_then(|top| descend(top, key)) {
            Some(node) => Lookup::Found(node),
            // A store of the writer's seen on the way brought its odd sequence along, by [TREE-3].
            None if seq & 1 == 0 && self.seq.load(Relaxed) == seq => Lookup::Absent,
            None if cfg!(mutant = "tree-no-retry") => Lookup::Absent,
            None => Lookup::Unsure,
        }
    }

    /// The node with the lowest key that is at least `key`.
    ///
    /// # Safety
    /// The caller must be the writer, or keep it out.
    pub unsafe fn at_or_after(&self, key: Key) -> Option<&TreeNode<T>> {
        let (mut best, mut at) = (None, follow(&self.root));
        // SAFETY: linked nodes are alive, and nobody unlinks any.
        while let Some(node) = unsafe { at.as_ref() } {
            if node.key >= key {
                best = Some(node);
                at = follow(&node.left);
            } else {
                at = follow(&node.right);
            }
        }
        best
    }

    /// Inserts a node. False: its key is there already, nothing was done.
    ///
    /// # Safety
    /// The caller must be the only writer, and the node be in no tree, never have been in one, and live until
    /// it was erased and every reader from before then has left.
    pub unsafe fn insert(&self, node: NonNull<TreeNode<T>>) -> bool {
        // SAFETY: the node is alive (caller's duty).
        let fresh = unsafe { node.as_ref() };
        fresh.rank.store(mix(fresh.key, self.seed), Relaxed);
        let mut slot = &self.root;
        let mut at = slot.load(Relaxed);
        // SAFETY: linked nodes are alive.
        while let Some(node) = unsafe { at.as_ref() } {
            if node.key == fresh.key {
                return false;
            }
            if node.priority() < fresh.priority() {
                break;
            }
            slot = node.towards(fresh.key);
            at = slot.load(Relaxed);
        }
        self.change(|| {
            cut(at, fresh);
            link(slot, node.as_ptr());
        });
        true
    }

    /// Takes a node out. False: it is not in the tree, nothing was done.
    ///
    /// # Safety
    /// The caller must be the only writer and keep the node alive.
    pub unsafe fn erase(&self, node: NonNull<TreeNode<T>>) -> bool {
        // SAFETY: the node is alive (caller's duty).
        let old = unsafe { node.as_ref() };
        let mut slot = &self.root;
        while slot.load(Relaxed) != node.as_ptr() {
            // SAFETY: linked nodes are alive.
            let Some(above) = (unsafe { slot.load(Relaxed).as_ref() }) else { return false };
            if above.key == old.key {
                return false;
            }
            slot = above.towards(old.key);
        }
        self.change(|| seam(slot, old));
        true
    }

    /// Runs a change with the sequence odd.
    fn change(&self, work: impl FnOnce()) {
        let seq = self.seq.load(Relaxed);
        self.seq.store(seq.wrapping_add(1), Relaxed);
        work();
        // [TREE-5] Orders the change before the even sequence that vouches for it. Pairs with [TREE-1].
        self.seq.store(seq.wrapping_add(2), Release);
    }
}

/// Searches below a node; only positives are certain.
#[inline(always)]
fn descend<T>(top: &TreeNode<T>, key: Key) -> Option<&TreeNode<T>> {
    let mut node = top;
    while node.key != key {
        // SAFETY: reached from a node that is not freed while the reader lasts, inside the reader, so the
        // same holds for what its children lead to.
        node = unsafe { follow(node.towards(key)).as_ref() }?;
    }
    Some(node)
}

/// Where a pointer leads, with what was written before it.
#[inline(always)]
fn follow<T>(slot: &AtomicPtr<TreeNode<T>>) -> *mut TreeNode<T> {
    // [TREE-2] Orders the pointer before the node behind it, and before the second look at the sequence.
    // Pairs with [TREE-3].
    #[cfg(not(mutant = "TREE-2"))]
    return slot.load(Acquire);
    #[cfg(mutant = "TREE-2")]
    return slot.load(Relaxed);
}

/// Makes a pointer lead to a node of lower priority than its own.
fn link<T>(slot: &AtomicPtr<TreeNode<T>>, to: *mut TreeNode<T>) {
    // [TREE-3] Orders the node's content, and the odd sequence, before the pointer. Pairs with [TREE-2].
    slot.store(to, Release);
}

/// Cuts the tree under `at` along the key of `fresh`, and makes the parts its children.
fn cut<T>(mut at: *mut TreeNode<T>, fresh: &TreeNode<T>) {
    let (mut left, mut right) = (&fresh.left, &fresh.right);
    // SAFETY: linked nodes are alive while the writer works.
    while let Some(node) = unsafe { at.as_ref() } {
        if node.key < fresh.key {
            link(left, at);
            left = &node.right;
            at = left.load(Relaxed);
        } else {
            link(right, at);
            right = &node.left;
            at = right.load(Relaxed);
        }
    }
    link(left, ptr::null_mut());
    link(right, ptr::null_mut());
}

/// Puts the children of `old` together into the slot that led to it. Its own pointers stay for its readers.
fn seam<'a, T>(mut slot: &'a AtomicPtr<TreeNode<T>>, old: &'a TreeNode<T>) {
    let (mut left, mut right) = (old.left.load(Relaxed), old.right.load(Relaxed));
    loop {
        // SAFETY: linked nodes are alive while the writer works.
        let Some(l) = (unsafe { left.as_ref() }) else { return link(slot, right) };
        // SAFETY: as above.
        let Some(r) = (unsafe { right.as_ref() }) else { return link(slot, left) };
        if l.priority() > r.priority() {
            link(slot, left);
            slot = &l.right;
            left = slot.load(Relaxed);
        } else {
            link(slot, right);
            slot = &r.left;
            right = slot.load(Relaxed);
        }
    }
}

/// Spreads keys over priorities.
fn mix(key: Key, seed: u64) -> u64 {
    let mut z = seed ^ key.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ key.1.rotate_left(32);
    for factor in [0xbf58_476d_1ce4_e5b9u64, 0x94d0_49bb_1331_11eb] {
        z = (z ^ (z >> 30)).wrapping_mul(factor);
    }
    z ^ (z >> 31)
}
