//! Adding to a cell of the copy of the CPU that we run on: `percpu::table`, and what is done where that leads to none.
//!
//! For:     handlers and the reader's counts.
//! State:   cells in the arena; the table page leads to the copy.
//! Context: hit, signal included: a signal handler that interrupts an add makes it a locked one (rseq) or finds it
//!          done or not begun (locked).
//! Keeps:   C1 every add is counted exactly once, on whichever CPU.
//!          C2 plain and locked adds never meet in one copy.
//! Checked: testkit `counting` with `hist` (exact over 8 threads), `bench trig-uprobe-nop` (hits = calls).
//! Source:  rseq(2).

use crate::arch;
use core::mem::offset_of;
use core::ops::Range;
use percpu::table::{add_locked, try_add, try_add_locked, try_count, try_count_run};
use wire::{ConsumerDesc, SiteDesc, table};

/// A way to add to a cell.
pub trait Adder {
    /// Adds `n` to the cell at byte offset `cell` of this CPU's copy.
    ///
    /// # Safety
    /// `site.table` must be CPU 0's entry of a live table, whose entries are 0 or addresses of copies that hold `cell`;
    /// `copy` must be what the running thread's trampoline passed to the handler, and `site.rseq_offset` where that
    /// thread's rseq area lies (for [`Rseq`]).
    unsafe fn add(copy: u64, site: &SiteDesc, cell: u32, n: u64);

    /// Adds one to the consumer's cell.
    ///
    /// # Safety
    /// As for [`add`](Self::add), with the consumer's cell.
    unsafe fn count(copy: u64, site: &SiteDesc, consumer: &ConsumerDesc);

    /// Adds one to the cell `offset` bytes behind the first one of each of `run` consumers, which stand side by side from `first` on.
    ///
    /// # Safety
    /// As for [`add`](Self::add), with each of these cells; `run` must be at least 1.
    unsafe fn count_run(copy: u64, site: &SiteDesc, first: &ConsumerDesc, run: u64, offset: u32);

    /// The thread pointer leads to a block of the thread's.
    fn is_known(copy: u64, site: &SiteDesc) -> bool;

    /// How a thread adds to what its CPU has of a map.
    type Way: map::Way;

    /// The way of a thread whose trampoline passed `copy`.
    fn way(copy: u64, site: &SiteDesc) -> Self::Way;

    /// The thread's pointer, or 0 where it cannot be told.
    ///
    /// # Safety
    /// As for [`add`](Self::add).
    unsafe fn pointer(copy: u64, site: &SiteDesc) -> u64;
}

/// For threads that may have an rseq area; those that have none take the shared copy.
#[derive(Debug)]
pub struct Rseq;

/// For processes without rseq.
#[derive(Debug)]
pub struct Locked;

/// Where a site's description says where the threads' areas are, and where the table is.
const AREA: usize = offset_of!(SiteDesc, rseq_offset);
const TABLE: usize = offset_of!(SiteDesc, table);
const CELL: usize = offset_of!(ConsumerDesc, cell);

impl Adder for Rseq {
    #[inline(always)]
    unsafe fn add(copy: u64, site: &SiteDesc, cell: u32, n: u64) {
        let desc = core::ptr::from_ref(site).cast();
        // SAFETY: a copy that is none is no entry's, and a thread in doubt has 0. Else the area and the table's entries are
        // sound (contract), and the table has an entry for any 16 bits (wire::table). The section's descriptor lives as long
        // as this code; who unmaps it clears the threads' rseq_cs first (session/leave/detach.rs).
        if !unsafe { try_add::<AREA, TABLE>(desc, copy, u64::from(cell), n) } {
            // SAFETY: the contract of this function.
            unsafe { add_shared(site, cell, n) };
        }
    }

    #[inline(always)]
    unsafe fn count(copy: u64, site: &SiteDesc, consumer: &ConsumerDesc) {
        let desc = core::ptr::from_ref(site).cast();
        let it = core::ptr::from_ref(consumer).cast();
        // SAFETY: as for `add`, with the consumer's cell.
        if !unsafe { try_count::<AREA, TABLE, CELL>(desc, copy, it) } {
            // SAFETY: the contract of this function.
            unsafe { add_shared(site, consumer.cell, 1) };
        }
    }

    #[inline(always)]
    unsafe fn count_run(copy: u64, site: &SiteDesc, first: &ConsumerDesc, run: u64, offset: u32) {
        const STRIDE: usize = size_of::<ConsumerDesc>();
        let desc = core::ptr::from_ref(site).cast();
        let (it, behind) = (core::ptr::from_ref(first).cast(), u64::from(offset));
        // SAFETY: as for `add`, with these cells.
        let left = unsafe { try_count_run::<AREA, TABLE, CELL, STRIDE>(desc, copy, it, run, behind) };
        if left != 0 {
            // SAFETY: the contract of this function.
            unsafe { count_shared(site, first, run - left..run, offset) };
        }
    }

    #[inline(always)]
    fn is_known(copy: u64, site: &SiteDesc) -> bool {
        // Of A64 the trampoline tells both in the same way.
        copy != wire::COPY_UNKNOWN && (cfg!(target_arch = "x86_64") || arch::is_pointer_known(site))
    }

    type Way = map::Restartable;

    #[inline(always)]
    fn way(copy: u64, site: &SiteDesc) -> map::Restartable {
        // A thread without a CPU's copy has no area that is known to be registered.
        let offset = if copy > wire::COPY_NONE { site.rseq_offset as isize } else { 0 };
        // SAFETY: with a CPU's copy the thread's area lies there (wire::SiteDesc); 0 is none.
        let offset = unsafe { percpu::RseqOffset::new(offset) };
        // SAFETY: as above, for the thread that uses the value in this hit.
        unsafe { map::Restartable::new(offset) }
    }

    #[inline(always)]
    unsafe fn pointer(copy: u64, _: &SiteDesc) -> u64 {
        if copy == wire::COPY_UNKNOWN {
            return 0;
        }
        // SAFETY: the thread's block is known (contract).
        unsafe { arch::pointer_of_block() }
    }
}

impl Adder for Locked {
    #[inline(always)]
    unsafe fn add(_: u64, site: &SiteDesc, cell: u32, n: u64) {
        // SAFETY: the table has an entry for any 16 bits, and its copies hold the cell (contract).
        if !unsafe { try_add_locked(site.table, u64::from(cell), n) } {
            // SAFETY: the contract of this function.
            unsafe { add_shared(site, cell, n) };
        }
    }

    #[inline(always)]
    unsafe fn count(_: u64, site: &SiteDesc, consumer: &ConsumerDesc) {
        // SAFETY: passed on from the caller.
        unsafe { Self::add(0, site, consumer.cell, 1) };
    }

    #[inline(always)]
    unsafe fn count_run(_: u64, site: &SiteDesc, first: &ConsumerDesc, run: u64, offset: u32) {
        for i in 0..run {
            // SAFETY: the run has so many consumers (contract).
            let cell = unsafe { cell_of(first, i) };
            // SAFETY: passed on from the caller.
            unsafe { Self::add(0, site, cell + offset, 1) };
        }
    }

    #[inline(always)]
    fn is_known(_: u64, site: &SiteDesc) -> bool {
        arch::is_pointer_known(site)
    }

    #[inline(always)]
    unsafe fn pointer(_: u64, site: &SiteDesc) -> u64 {
        // SAFETY: what the site says is true (contract).
        unsafe { arch::pointer(site) }
    }

    type Way = map::Locked;

    #[inline(always)]
    fn way(_: u64, site: &SiteDesc) -> map::Locked {
        if site.family == 0 { map::Locked::ALONE } else { map::Locked::AMONG_OTHERS }
    }
}

/// Adds to the shared copy, or to the children's if a fork wiped the table page.
///
/// # Safety
/// As for [`Adder::add`].
#[cold]
unsafe fn add_shared(site: &SiteDesc, cell: u32, n: u64) {
    // SAFETY: passed on from the caller.
    let copy = unsafe { shared_copy(site) }.unwrap_or(site.children);
    // SAFETY: both are addresses of copies that hold `cell` (contract).
    unsafe { add_locked(copy, u64::from(cell), n) }
}

/// Adds one for each of these of a run, as [`add_shared`].
///
/// # Safety
/// As for [`Adder::count_run`].
#[cold]
#[inline(never)]
unsafe fn count_shared(site: &SiteDesc, first: &ConsumerDesc, which: Range<u64>, offset: u32) {
    for i in which {
        // SAFETY: the run has so many consumers (contract).
        let cell = unsafe { cell_of(first, i) };
        // SAFETY: passed on from the caller.
        unsafe { add_shared(site, cell + offset, 1) };
    }
}

/// The first cell of one consumer of a run.
///
/// # Safety
/// So many must stand behind the first.
#[inline(always)]
unsafe fn cell_of(first: &ConsumerDesc, by: u64) -> u32 {
    // SAFETY: in the run's memory (contract).
    let there = unsafe { core::ptr::from_ref(first).add(by as usize) };
    // SAFETY: as above.
    unsafe { (*there).cell }
}

/// Address of the copy that threads without a CPU share; `None` in a forked child, whose table page was wiped.
///
/// # Safety
/// `site.table` must be CPU 0's entry of a live table.
#[inline(always)]
pub(crate) unsafe fn shared_copy(site: &SiteDesc) -> Option<u64> {
    let alive = (site.table - table::CPU0 as u64 + table::ALIVE as u64) as *const u64;
    // SAFETY: the word stands in the same page as the table (wire::table).
    match unsafe { alive.read() } {
        0 => None,
        copy => Some(copy),
    }
}
