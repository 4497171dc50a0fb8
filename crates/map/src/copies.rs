//! Cells with a copy for each CPU, and for whoever has none.
//!
//! For:     counts of a traced process, which percpu's add writes wherever it stands; blocks of `PercpuArray`.
//! State:   copies of one length, one behind the other. A cell is 8 bytes at the same offset in each.
//! Context: hit, signal, target, control; also in a process that does not trust the others.
//! Keeps:   C1 no cell is found outside of its copy.
//! Checked: tests/untrusted.rs; tests/semantics.rs as the blocks of a per-CPU array.

use crate::Error;
use crate::place::{Access, Checked, Place};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// Copies of cells. It has no head: whoever uses it knows its lengths.
#[derive(Clone, Copy, Debug)]
pub struct Copies<M = Place> {
    place: M,
    each: usize,
    copies: usize,
}

impl<'a> Copies<Checked<'a>> {
    /// So many copies of `each` bytes at an offset in memory that somebody else writes.
    ///
    /// # Errors
    /// [`Error::Damaged`] if they do not fit there.
    pub fn in_untrusted(
        arena: wire::Untrusted<'a>,
        offset: usize,
        each: usize,
        copies: usize,
    ) -> Result<Self, Error> {
        let bytes = each.checked_mul(copies).filter(|_| each.is_multiple_of(8)).ok_or(Error::Damaged)?;
        Ok(Copies { place: Checked::new(arena, offset, bytes).ok_or(Error::Damaged)?, each, copies })
    }
}

impl<M: Access> Copies<M> {
    /// Copies that lie there: the caller knows it.
    #[inline(always)]
    pub(crate) fn over(place: M, each: usize, copies: usize) -> Self {
        Copies { place, each, copies }
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.copies
    }

    /// One copy's cell at a byte offset; `None` if there is none.
    #[inline(always)]
    pub fn cell(&self, copy: usize, at: usize) -> Option<Cell<M>> {
        let is_one = copy < self.copies && at.is_multiple_of(8) && at < self.each;
        is_one.then(|| Cell(self.place.at(copy * self.each + at)))
    }

    /// What one copy's cell holds; 0 if there is none.
    #[inline(always)]
    pub fn get(&self, copy: usize, at: usize) -> u64 {
        self.cell(copy, at).map_or(0, |cell| cell.load(Relaxed))
    }
}

/// A cell of a copy.
#[derive(Clone, Copy, Debug)]
pub struct Cell<M = Place>(M);

impl<M: Access> core::ops::Deref for Cell<M> {
    type Target = AtomicU64;

    #[inline(always)]
    fn deref(&self) -> &AtomicU64 {
        self.0.u64(0)
    }
}
