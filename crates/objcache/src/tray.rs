//! A tray: the indexes of many objects in one piece.
//!
//! For:     batches that move between CPUs and the worker without a look at the objects, which are cold by then.
//! State:   per tray a link, a length and slots. Trays lie in chunks of their own and are never objects.
//! Context: hit, signal, target. Whoever took a tray from a stack owns it.
//! Keeps:   Y1 a tray is on one stack, or one taker's. Y2 without a tray at hand objects are linked by their headers.
//! Checked: tests of `stack`, `audit` in every test of the crate, `torture mem`.

#[cfg(feature = "std")]
use crate::link::LIVE;
use crate::link::Link;
use crate::prim::{AtomicU32, Relaxed};

/// Set in the head of a batch that is a tray. Indexes stay below it.
pub const TRAY: u32 = 1 << 31;

/// The first index that a tray cannot have: what is below a batch on a stack must not look like the mark of a live
/// object.
#[cfg(feature = "std")]
pub const END_OF_TRAYS: u32 = LIVE & !TRAY;

/// The most objects on a CPU's list: the high watermark of small ones.
pub const SLOTS: usize = 96;

/// The most objects on a tray: a full list and the object that did not fit.
pub const ROOM: usize = SLOTS + 2;

/// Objects that move together; which ones is in the slots.
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(8))]
pub struct Tray {
    link: Link,
    len: AtomicU32,
    #[cfg(not(loom))]
    slots: [AtomicU32; ROOM],
    #[cfg(loom)]
    slots: [AtomicU32; 2],
}

impl Tray {
    #[inline(always)]
    pub fn len(&self) -> u32 {
        self.len.load(Relaxed).min(ROOM as u32)
    }

    #[inline(always)]
    pub fn set_len(&self, len: usize) {
        self.len.store(len as u32, Relaxed);
    }

    /// The header that stacks use.
    #[cfg(loom)]
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Puts objects on it; a model's tray has room for two.
    #[cfg(loom)]
    pub fn load(&self, objects: &[u32]) {
        self.slots.iter().zip(objects).for_each(|(slot, i)| slot.store(*i, Relaxed));
        self.set_len(objects.len());
    }

    /// All slots, as the numbers that they are.
    ///
    /// # Safety
    /// The tray must be the caller's for `'a`, and no other borrow of the slots be in use.
    #[cfg(not(loom))]
    #[allow(clippy::mut_from_ref)] // Atomics, so that a tray may be looked at while it is another's.
    #[inline(always)]
    pub unsafe fn slots<'a>(&self) -> &'a mut [u32; ROOM] {
        // SAFETY: the same layout; the caller's alone (its promise).
        unsafe { &mut *self.slots.as_ptr().cast_mut().cast::<[u32; ROOM]>() }
    }

    /// The objects, last one first.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.slots[..self.len() as usize].iter().rev().map(|slot| slot.load(Relaxed))
    }
}
