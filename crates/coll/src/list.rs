//! A list that is walked under RCU: newest first, any node unlinked or replaced in O(1).
//!
//! For:     the consumers of a probe.
//! State:   a first pointer; in each node a link forward for walkers, and one back for writers.
//! Context: walks: hit, signal; they never wait. Changes: one writer at a time (the caller's lock).
//! Keeps:   L1 a walk meets every node that is linked from its begin to its end, once.
//!          L2 a walk that stands on an unlinked node goes on to what was behind it.
//!          L3 of a node and the one that replaced it, a walk meets exactly one.
//! Checked: `tests/list_tree.rs`, model `walks` (mutants LIST-2, LIST-4, LIST-5).
//! Source:  kernel `include/linux/rculist.h` for the rules.

use crate::order::{Acquire, AtomicPtr, Relaxed, Release};
use core::marker::PhantomData;
use core::ptr::{self, NonNull};

/// What a list holds: a value and its links.
#[derive(Debug)]
#[repr(C)]
pub struct ListNode<T> {
    next: AtomicPtr<ListNode<T>>,
    /// The pointer that leads here; null if the node is in no list. Writers alone look at it.
    back: AtomicPtr<AtomicPtr<ListNode<T>>>,
    /// What the caller keeps here.
    pub value: T,
}

impl<T> ListNode<T> {
    /// A node that is in no list.
    pub fn new(value: T) -> ListNode<T> {
        ListNode { next: AtomicPtr::new(ptr::null_mut()), back: AtomicPtr::new(ptr::null_mut()), value }
    }

    /// True while the node is linked. For the writer.
    pub fn is_linked(&self) -> bool {
        !self.back.load(Relaxed).is_null()
    }
}

/// A list of nodes that their owner allocates and frees.
#[derive(Debug)]
pub struct List<T> {
    first: AtomicPtr<ListNode<T>>,
}

impl<T> Default for List<T> {
    fn default() -> List<T> {
        List::new()
    }
}

impl<T> List<T> {
    /// An empty list.
    pub fn new() -> List<T> {
        List { first: AtomicPtr::new(ptr::null_mut()) }
    }

    /// True if a walk would meet nothing.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.first.load(Relaxed).is_null()
    }

    /// Links a node as the first.
    ///
    /// # Safety
    /// The caller must be the only writer, the list must stay where it is while it holds nodes, and the node
    /// must be in no list and alive until it was unlinked and every walk from before then has ended.
    pub unsafe fn push(&self, node: NonNull<ListNode<T>>) {
        let first = self.first.load(Relaxed);
        // SAFETY: the node is alive and in no list (caller's duties).
        let fresh = unsafe { node.as_ref() };
        fresh.next.store(first, Relaxed);
        fresh.back.store((&raw const self.first).cast_mut(), Relaxed);
        // SAFETY: a linked node is alive (duty of whoever pushed it), and `first` is linked or null.
        if let Some(second) = unsafe { first.as_ref() } {
            // SAFETY: the node is alive; this makes an address only.
            second.back.store(unsafe { &raw mut (*node.as_ptr()).next }, Relaxed);
        }
        // [LIST-2] Orders the node's content before the pointer that leads there. Pairs with [LIST-1].
        #[cfg(not(mutant = "LIST-2"))]
        self.first.store(node.as_ptr(), Release);
        #[cfg(mutant = "LIST-2")]
        self.first.store(node.as_ptr(), Relaxed);
    }

    /// Unlinks a node; walkers may stand on it until they end. False: it was in no list.
    ///
    /// # Safety
    /// The caller must be the only writer, and the node, if it is linked, must be in this list.
    pub unsafe fn unlink(&self, node: NonNull<ListNode<T>>) -> bool {
        // SAFETY: a linked node is alive, and the caller owns one that is not.
        let old = unsafe { node.as_ref() };
        let back = old.back.load(Relaxed);
        // SAFETY: `back` leads to the list's first pointer or to that of a linked node, which is alive.
        let Some(before) = (unsafe { back.as_ref() }) else { return false };
        let next = old.next.load(Relaxed);
        // [LIST-4] Orders what `next` leads to, published earlier, before the pointer that skips the node.
        // Pairs with [LIST-1].
        #[cfg(not(mutant = "LIST-4"))]
        before.store(next, Release);
        #[cfg(mutant = "LIST-4")]
        before.store(next, Relaxed);
        // SAFETY: `next` is linked or null.
        if let Some(after) = unsafe { next.as_ref() } {
            after.back.store(back, Relaxed);
        }
        old.back.store(ptr::null_mut(), Relaxed);
        true
    }

    /// Puts a node in the place of another; walkers may stand on that until they end. False: it was in no list.
    ///
    /// # Safety
    /// As for [`unlink`](Self::unlink) of `old` and for [`push`](Self::push) of `new`.
    pub unsafe fn replace(&self, old: NonNull<ListNode<T>>, new: NonNull<ListNode<T>>) -> bool {
        // SAFETY: a linked node is alive, and the caller owns one that is not.
        let gone = unsafe { old.as_ref() };
        let back = gone.back.load(Relaxed);
        // SAFETY: `back` leads to the list's first pointer or to that of a linked node, which is alive.
        let Some(before) = (unsafe { back.as_ref() }) else { return false };
        let next = gone.next.load(Relaxed);
        // SAFETY: the node is alive and in no list (caller's duties).
        let fresh = unsafe { new.as_ref() };
        fresh.next.store(next, Relaxed);
        fresh.back.store(back, Relaxed);
        // SAFETY: `next` is linked or null.
        if let Some(after) = unsafe { next.as_ref() } {
            // SAFETY: the node is alive; this makes an address only.
            after.back.store(unsafe { &raw mut (*new.as_ptr()).next }, Relaxed);
        }
        // [LIST-5] Orders the new node's content, and what its `next` leads to, before the pointer that leads
        // there. Pairs with [LIST-1].
        #[cfg(not(mutant = "LIST-5"))]
        before.store(new.as_ptr(), Release);
        #[cfg(mutant = "LIST-5")]
        before.store(new.as_ptr(), Relaxed);
        gone.back.store(ptr::null_mut(), Relaxed);
        true
    }

    /// The values, newest first.
    ///
    /// # Safety
    /// For as long as the walk and what it gave are used, the caller must be inside a reader that the owner
    /// of unlinked nodes waits for, or be the writer.
    #[inline(always)]
    pub unsafe fn walk(&self) -> Walk<'_, T> {
        Walk { at: follow(&self.first), list: PhantomData }
    }
}

/// Where a pointer leads, with what was written before it.
#[inline(always)]
fn follow<T>(link: &AtomicPtr<ListNode<T>>) -> *mut ListNode<T> {
    // [LIST-1] Orders the pointer before what it leads to. Pairs with [LIST-2], [LIST-4], [LIST-5].
    link.load(Acquire)
}

/// A walk over a list.
#[derive(Debug)]
pub struct Walk<'a, T> {
    at: *mut ListNode<T>,
    list: PhantomData<&'a ListNode<T>>,
}

impl<'a, T> Iterator for Walk<'a, T> {
    type Item = &'a ListNode<T>;

    #[inline(always)]
    fn next(&mut self) -> Option<&'a ListNode<T>> {
        // SAFETY: null, or reached inside the reader that `walk` asks for, so not freed while that lasts.
        let node = unsafe { self.at.as_ref() }?;
        self.at = follow(&node.next);
        Some(node)
    }
}
