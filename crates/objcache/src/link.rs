//! The 8 bytes in front of each object.
//!
//! For:     every list of objects, and for telling a live object from a free one.
//! State:   free: the next object's index, and for a batch's head the next batch, for its second object the
//!          batch's length. Live: the mark with the CPU that it was taken on.
//! Context: hit, signal, target.
//! Keeps:   K1 an object's own bytes are never written while it is free or waits for a grace period.
//!          K2 the mark is on a live object alone, so a second free is noticed.
//! Checked: tests of `view`; `torture mem`.

#[cfg(not(loom))]
use crate::prim::AtomicU64;
use crate::prim::{AtomicU32, Relaxed};

/// An object's place in its arena, in units of 8 bytes; never 0. The same in every process that maps it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[repr(transparent)]
pub struct Index(pub(crate) u32);

impl Index {
    /// The index as a number; 0 is free to mean "none".
    #[inline(always)]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// An index that [`get`](Self::get) gave; `None` for 0.
    #[inline(always)]
    pub const fn from_raw(raw: u32) -> Option<Index> {
        if raw == 0 { None } else { Some(Index(raw)) }
    }
}

/// From here on: the object is live, and how far above is the CPU that it was taken on.
pub const LIVE: u32 = 0xffff_0000;

/// The first index that an arena cannot have: 16 GiB.
#[cfg(feature = "std")]
pub const END: u64 = 1 << 31;

/// The header of an object, seen as link and mark.
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(8))]
pub struct Link {
    next: AtomicU32,
    aux: AtomicU32,
}

impl Link {
    #[inline(always)]
    pub fn next(&self) -> u32 {
        self.next.load(Relaxed)
    }

    #[inline(always)]
    pub fn set_next(&self, next: u32) {
        self.next.store(next, Relaxed);
    }

    /// The second word, whatever it means now.
    #[inline(always)]
    pub fn aux(&self) -> u32 {
        self.aux.load(Relaxed)
    }

    #[inline(always)]
    pub fn set_aux(&self, aux: u32) {
        self.aux.store(aux, Relaxed);
    }

    /// Marks the object as live, taken on `cpu`.
    #[cfg(not(loom))]
    #[inline(always)]
    pub fn make_live(&self, cpu: u32) {
        let both: *const Link = self;
        // SAFETY: the two words are 8 aligned bytes of atomics, borrowed through `self`.
        let both = unsafe { &*both.cast::<AtomicU64>() };
        both.store(u64::from(LIVE | cpu & !LIVE) << 32, Relaxed);
    }

    /// Takes the mark away.
    #[inline(always)]
    pub fn make_free(&self) {
        self.set_aux(0);
    }

    /// The CPU that a live object was taken on; `None` if it is not live.
    #[inline(always)]
    pub fn home(&self) -> Option<u32> {
        let aux = self.aux();
        (aux >= LIVE).then_some(aux & !LIVE)
    }
}
