//! Sums with one copy per CPU.
//!
//! For:     counters by index, and histograms.
//! State:   per block of 128 sums and per CPU one kilobyte; all of it twice: for sequences, for locked adds.
//! Context: hit, signal, target; reading also in another process.
//! Keeps:   U1 a sum read while nobody adds is exact, whichever way the threads added.
//! Checked: tests/semantics.rs, tests/other_process.rs.

#[cfg(all(feature = "std", not(loom)))]
use crate::place::sized;
use crate::place::{Access, Checked, Place};
use crate::{Copies, Error};
use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;
use percpu::RseqOffset;

const HEAD: usize = 64;
const ENTRIES: usize = 0;
const COPIES: usize = 4;
const SHIFT: u32 = 10;
const PER_BLOCK: usize = 1 << (SHIFT - 3);

/// Sums that every CPU adds to on lines of its own.
#[derive(Clone)]
pub struct PercpuArray<M = Place> {
    place: M,
    entries: u32,
    copies: u32,
    rseq: RseqOffset,
    #[cfg(all(feature = "std", not(loom)))]
    home: Option<(objcache::Arena, usize)>,
}

impl PercpuArray {
    /// A new array of zeros.
    ///
    /// # Errors
    /// [`Error::Setup`].
    #[cfg(all(feature = "std", not(loom)))]
    pub fn create(arena: &objcache::Arena, entries: u32) -> Result<PercpuArray, Error> {
        if entries == 0 {
            return Err(Error::Setup(objcache::Error::ZeroSize));
        }
        let copies = percpu::possible_cpus();
        let blocks = (entries as usize).div_ceil(PER_BLOCK);
        let offset = arena.take(sized(HEAD, 2 * blocks * copies as usize, 1 << SHIFT)?)?;
        // SAFETY: taken just now; the array keeps the arena.
        let place = unsafe { Place::new(arena.base()) }.at(offset);
        place.u32(ENTRIES).store(entries, Relaxed);
        place.u32(COPIES).store(copies, Relaxed);
        let home = Some((arena.clone(), offset));
        Ok(PercpuArray { place, entries, copies, rseq: RseqOffset::detect(), home })
    }

    /// The array at an offset in an arena mapped at `base`, made by another process.
    ///
    /// # Safety
    /// An array must lie there and stay mapped while the value is used; `rseq` must fit the threads.
    pub unsafe fn attach(base: NonNull<u8>, offset: usize, rseq: RseqOffset) -> PercpuArray {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new(base) }.at(offset);
        PercpuArray {
            place,
            entries: place.u32(ENTRIES).load(Relaxed),
            copies: place.u32(COPIES).load(Relaxed),
            rseq,
            #[cfg(all(feature = "std", not(loom)))]
            home: None,
        }
    }

    /// Where it lies in its arena; 0 if this is an attached one.
    #[cfg(all(feature = "std", not(loom)))]
    pub fn offset(&self) -> usize {
        self.home.as_ref().map_or(0, |(_, offset)| *offset)
    }

    /// Adds to the sum; beyond the end nothing, and false.
    #[inline(always)]
    pub fn add(&self, index: u32, n: u64) -> bool {
        if index >= self.entries {
            return false;
        }
        let base = self.base(index).ptr().cast::<u64>().as_ptr();
        // SAFETY: every CPU below `copies` has its cell, written by sequences alone; the offset is the C
        // library's, or fits by the contract of `attach`.
        if !unsafe { percpu::try_add::<SHIFT>(self.rseq, base, self.copies, n) } {
            self.add_locked(index, n);
        }
        true
    }

    #[cold]
    fn add_locked(&self, index: u32, n: u64) {
        let (copies, at) = self.block(index);
        let cpu = percpu::current_cpu() % self.copies;
        if let Some(cell) = copies.cell((self.copies + cpu) as usize, at) {
            cell.fetch_add(n, Relaxed);
        }
    }
}

impl<'a> PercpuArray<Checked<'a>> {
    /// The array of so many sums, with so many copies, at an offset in memory that somebody else writes.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it does not fit there, or its head says something else.
    pub fn in_untrusted(
        arena: wire::Untrusted<'a>,
        offset: usize,
        entries: u32,
        copies: u32,
    ) -> Result<Self, Error> {
        let blocks = (entries as usize).div_ceil(PER_BLOCK) << (SHIFT + 1);
        let bytes = blocks.checked_mul(copies as usize).and_then(|all| all.checked_add(HEAD));
        let place = bytes.and_then(|bytes| Checked::new(arena, offset, bytes)).ok_or(Error::Damaged)?;
        if (place.u32(ENTRIES).load(Relaxed), place.u32(COPIES).load(Relaxed)) != (entries, copies) {
            return Err(Error::Damaged);
        }
        Ok(PercpuArray {
            place,
            entries,
            copies,
            rseq: RseqOffset::NONE,
            #[cfg(all(feature = "std", not(loom)))]
            home: None,
        })
    }
}

impl<M: Access> PercpuArray<M> {
    /// The number of sums.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// The number of copies, one per CPU.
    pub fn copies(&self) -> u32 {
        self.copies
    }

    /// An entry's block: a copy for each CPU's sequences, then as many for locked adds; and where in them its cell is.
    #[inline(always)]
    fn block(&self, index: u32) -> (Copies<M>, usize) {
        let (block, in_block) = (index as usize / PER_BLOCK, index as usize % PER_BLOCK);
        let copies = 2 * self.copies as usize;
        (Copies::over(self.place.at(HEAD + ((block * copies) << SHIFT)), 1 << SHIFT, copies), in_block * 8)
    }

    /// CPU 0's cell of an entry.
    #[inline(always)]
    fn base(&self, index: u32) -> M {
        let (block, in_block) = (index as usize / PER_BLOCK, index as usize % PER_BLOCK);
        self.place.at(HEAD + ((block * 2 * self.copies as usize) << SHIFT) + in_block * 8)
    }

    /// What one CPU added.
    pub fn of_cpu(&self, index: u32, cpu: u32) -> u64 {
        if index >= self.entries || cpu >= self.copies {
            return 0;
        }
        let (copies, at) = self.block(index);
        copies.get(cpu as usize, at).wrapping_add(copies.get((self.copies + cpu) as usize, at))
    }

    /// What all added.
    pub fn sum(&self, index: u32) -> u64 {
        (0..self.copies).fold(0, |sum, cpu| sum.wrapping_add(self.of_cpu(index, cpu)))
    }
}
