//! An entry in memory.
//!
//! For:     the table.
//! State:   links, hash, key, value; the callback's node that frees it.
//! Context: target.
//! Keeps:   N1 the links come first, so that a pointer to them is one to the entry.
//! Checked: `tests/table.rs` under Miri.

use super::InsertError;
use crate::chain::Link;
use core::ptr::NonNull;
use std::alloc::{Layout, alloc, dealloc};

#[repr(C)]
pub(super) struct Node<K, V> {
    pub(super) link: Link,
    pub(super) hash: u64,
    pub(super) key: K,
    pub(super) value: V,
    /// Tells this entry from those that had its memory before.
    pub(super) stamp: u64,
    /// Last: lookups do not touch it, and want the others in one cache line.
    pub(super) head: rcu::Head,
}

impl<K, V> Node<K, V> {
    fn layout() -> Layout {
        Layout::new::<Self>()
    }

    /// Memory for one entry, not initialised.
    pub(super) fn alloc() -> Result<NonNull<Self>, InsertError> {
        // SAFETY: an entry has links, so its size is not zero.
        let at = unsafe { alloc(Self::layout()) };
        NonNull::new(at.cast()).ok_or(InsertError::NoMemory { bytes: size_of::<Self>() })
    }

    pub(super) fn with(hash: u64, stamp: u64, key: K, value: V) -> Self {
        Node { link: Link::new(), hash, key, value, stamp, head: rcu::Head::new() }
    }

    /// Drops an entry and gives its memory back.
    ///
    /// # Safety
    /// `at` must be an initialised entry from [`alloc`](Self::alloc) that nobody else knows.
    pub(super) unsafe fn free(at: *mut Self) {
        // SAFETY: initialised, and ours alone (caller's duty).
        unsafe { at.drop_in_place() };
        // SAFETY: allocated with this layout (caller's duty), and not used again.
        unsafe { dealloc(at.cast(), Self::layout()) };
    }

    /// [`free`](Self::free) by the callback's node.
    ///
    /// # Safety
    /// `head` must be that of such an entry.
    pub(super) unsafe fn free_by_head(head: NonNull<rcu::Head>) {
        let offset = core::mem::offset_of!(Self, head);
        // SAFETY: `head` lies `offset` bytes into the entry (caller's duty), with the entry's provenance:
        // `Shards::retire` made the pointer from one to the whole entry.
        let at = unsafe { head.as_ptr().byte_sub(offset) };
        // SAFETY: the callback runs once, after a grace period; nobody else knows the entry any more.
        unsafe { Self::free(at.cast()) };
    }
}
