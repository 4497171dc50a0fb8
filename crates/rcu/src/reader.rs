//! Entering and leaving a read-side section.
//!
//! For:     guards of `Domain`, the C API, and hit paths, which use these raw calls.
//! State:   the caller's counters in the block; nothing per thread.
//! Context: hit, signal (sigsafe, fast), target. Never blocks, allocates or panics.
//! Keeps:   R1 a reader counts itself before it reads, and stops counting after it has read.
//!          R2 the flavour is recorded before the first reader counts itself, in every build.
//!          R3 each reader adds one lock and one unlock to one rank, on whatever CPUs.
//! Checked: `tests/`, model `gp` (mutants RCU-1, RCU-2), `torture rcu`.
//! Source:  kernel `srcutree.h` and the SRCU-lite series. Departs: the flavour is recorded per domain,
//!          not per CPU, and opens the fast path: until then readers find no rseq offset.

use crate::block::{
    Block, CHECKED, COPY0, LOCKS, RANK_STRIDE, READER_FENCES, Rank, SHIFT, UNLOCKS, UNRECORDED, place_of,
};
use crate::prim::{self, Relaxed};
use crate::{Flavour, FlavourSet, Misuse, Reader};
#[cfg(not(loom))]
use percpu::RseqOffset;

/// The cookie of a fast reader: where its rank's counters lie in the first copy.
///
/// Leaving through it saves the address arithmetic. Good in the process that made it alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct FastCookie(*mut u64);

// SAFETY: an address; what lies there is atomic, and updown readers hand it to other threads.
unsafe impl Send for FastCookie {}

impl<'a> Block<'a> {
    /// Enters a reader; the cookie goes to [`unlock`](Self::unlock).
    ///
    /// # Errors
    /// The broken rule; then nothing was entered. A reader refused must not read.
    /// # Cost
    /// `bench refscale`, rows by flavour.
    #[inline(always)]
    pub fn lock<F: Reader>(self) -> Result<Rank, Misuse> {
        let rank = self.rank();
        self.lock_at::<F>(rank)?;
        Ok(rank)
    }

    /// Enters a reader on a rank that the caller fetched with [`rank`](Self::rank), at any time before.
    ///
    /// A thread may always be preempted between the two, so this shows nothing new to a grace period;
    /// torture uses it to make that gap long.
    #[inline(always)]
    pub fn lock_at<F: Reader>(self, rank: Rank) -> Result<(), Misuse> {
        if !self.try_enter::<F>(rank) {
            self.enter_slow(F::FLAVOUR, rank)?;
        }
        fence_after_enter::<F>();
        Ok(())
    }

    /// Leaves a reader.
    ///
    /// # Safety
    /// The cookie must come from [`lock`](Self::lock) or [`lock_at`](Self::lock_at) of the same block and flavour, each
    /// used once. Nothing that the section protected may be used afterwards.
    #[inline(always)]
    pub unsafe fn unlock<F: Reader>(self, rank: Rank) {
        fence_before_leave::<F>();
        if !self.try_leave::<F>(rank) {
            self.leave_slow(F::FLAVOUR, rank);
        }
    }

    /// Enters a fast reader; the cookie goes to [`unlock_fast`](Self::unlock_fast).
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    #[inline(always)]
    pub fn lock_fast<F: Reader>(self) -> Result<FastCookie, Misuse> {
        let rank = self.lock::<F>()?;
        Ok(FastCookie(self.rank_base(rank)))
    }

    /// Leaves a fast reader.
    ///
    /// # Safety
    /// The cookie must come from [`lock_fast`](Self::lock_fast) of the same block and flavour, each
    /// used once.
    #[inline(always)]
    pub unsafe fn unlock_fast<F: Reader>(self, cookie: FastCookie) {
        fence_before_leave::<F>();
        #[cfg(not(loom))]
        {
            // SAFETY: the cookie is the address of this block's rank (caller's duty), the rest as
            // in `try_leave`.
            let done =
                unsafe { percpu::try_inc::<SHIFT, { COPY0 + UNLOCKS }>(self.open_to::<F>(), cookie.0) };
            if done {
                return;
            }
        }
        let offset = cookie.0 as usize - self.as_ptr().as_ptr() as usize;
        self.leave_slow(F::FLAVOUR, Rank(offset as u32 & RANK_STRIDE));
    }

    /// The rseq offset for a flavour's fast path; none if that is closed.
    #[inline(always)]
    #[cfg(not(loom))]
    fn open_to<F: Reader>(self) -> RseqOffset {
        let offset = self.head().open[F::FLAVOUR as usize].load(Relaxed) as isize;
        // SAFETY: `set_recorded` stores zero or the offset that the block's maker promised for.
        unsafe { RseqOffset::new(offset) }
    }

    /// The address from which the sequences find the cells of `rank`.
    #[inline(always)]
    fn rank_base(self, rank: Rank) -> *mut u64 {
        self.as_ptr().as_ptr().wrapping_add(rank.0 as usize).cast()
    }

    /// Counts a reader in, on the fast path; false if it has to take the slow one.
    #[inline(always)]
    pub(crate) fn try_enter<F: Reader>(self, rank: Rank) -> bool {
        if F::ATOMIC {
            return self.add_atomic(F::FLAVOUR, rank, true);
        }
        #[cfg(not(loom))]
        {
            let base = self.rank_base(rank);
            // SAFETY: offset and copies are as the block's maker promised; cells of sequences are
            // written by sequences alone (B2).
            unsafe { percpu::try_inc::<SHIFT, { COPY0 + LOCKS }>(self.open_to::<F>(), base) }
        }
        #[cfg(loom)]
        self.model_add(F::FLAVOUR, rank, true)
    }

    /// Counts a reader out, on the fast path; false if it has to take the slow one.
    #[inline(always)]
    pub(crate) fn try_leave<F: Reader>(self, rank: Rank) -> bool {
        if F::ATOMIC {
            return self.add_atomic(F::FLAVOUR, rank, false);
        }
        #[cfg(not(loom))]
        {
            let base = self.rank_base(rank);
            // SAFETY: as in `try_enter`.
            unsafe { percpu::try_inc::<SHIFT, { COPY0 + UNLOCKS }>(self.open_to::<F>(), base) }
        }
        #[cfg(loom)]
        self.model_add(F::FLAVOUR, rank, false)
    }

    /// Counts a reader in on the calling thread's seat; false if it may not, or has none.
    ///
    /// # Safety
    /// `place` must be that of a seat that the calling thread has, or 0 or 1 if it has none.
    #[inline(always)]
    pub unsafe fn try_enter_at<F: Reader>(self, rank: Rank, place: usize) -> bool {
        // SAFETY: the caller's duty is the same.
        unsafe { self.try_count_at::<F, LOCKS>(rank, place) }
    }

    /// Counts a reader out, as [`try_enter_at`](Self::try_enter_at) counts in; another seat, or none, is as good.
    ///
    /// # Safety
    /// As [`try_enter_at`](Self::try_enter_at).
    #[inline(always)]
    pub unsafe fn try_leave_at<F: Reader>(self, rank: Rank, place: usize) -> bool {
        // SAFETY: the caller's duty is the same.
        unsafe { self.try_count_at::<F, UNLOCKS>(rank, place) }
    }

    /// # Safety
    /// As [`try_enter_at`](Self::try_enter_at).
    #[inline(always)]
    unsafe fn try_count_at<F: Reader, const CELL: usize>(self, rank: Rank, place: usize) -> bool {
        // One compare for all: a thread without a seat has a place below every one.
        if (place as u32) < self.head().seats_open[F::FLAVOUR as usize].load(Relaxed) {
            return false;
        }
        let copy = self.as_ptr().as_ptr().wrapping_add(place);
        #[cfg(not(loom))]
        // SAFETY: seats from the lowest open place on have copies; this one's is the calling thread's alone.
        unsafe {
            percpu::inc_own::<CELL>(copy.cast(), rank.0 as usize)
        };
        #[cfg(loom)]
        {
            // SAFETY: as above.
            let copy = unsafe { &*copy.cast::<crate::block::PerCpu>() };
            let counts = &copy.sequenced[rank.index() as usize];
            let cell = if CELL == LOCKS { &counts.locks } else { &counts.unlocks };
            cell.store(cell.load(Relaxed).wrapping_add(1), Relaxed);
        }
        true
    }

    /// The model's per-CPU add: a reader always enters on one CPU and leaves on another.
    #[cfg(loom)]
    fn model_add(self, flavour: Flavour, rank: Rank, entering: bool) -> bool {
        if self.head().open[flavour as usize].load(Relaxed) == 0 {
            return false;
        }
        self.add_sequenced_model(rank, entering);
        true
    }

    #[cfg(loom)]
    fn add_sequenced_model(self, rank: Rank, entering: bool) {
        let counts = |cpu: u32| &self.copy(cpu % self.copies()).sequenced[rank.index() as usize];
        if entering { &counts(0).locks } else { &counts(1).unlocks }.fetch_add(1, Relaxed);
    }

    /// The sigsafe reader: one atomic add, which is a full fence by itself.
    #[inline(always)]
    fn add_atomic(self, flavour: Flavour, rank: Rank, entering: bool) -> bool {
        if self.head().open[flavour as usize].load(Relaxed) == 0 {
            return false;
        }
        self.add_locked(rank, entering);
        true
    }

    #[inline(always)]
    fn add_locked(self, rank: Rank, entering: bool) {
        let (cpu, copies) = (percpu::current_cpu(), self.copies());
        let copy = if cpu < copies { cpu } else { cpu % copies };
        let counts = &self.copy(copy).locked[rank.index() as usize];
        prim::add_full(if entering { &counts.locks } else { &counts.unlocks }, 1);
    }

    /// Counts a reader in after looking at everything that the fast path leaves to this one.
    #[cold]
    pub(crate) fn enter_slow(self, flavour: Flavour, rank: Rank) -> Result<(), Misuse> {
        self.record(flavour)?;
        self.add_anyhow(flavour, rank, true);
        if self.has_option(READER_FENCES) {
            // [RCU-4] Orders the count above before the section where no process-wide fence can.
            // Pairs with [RCU-3]. In the place of [RCU-1].
            prim::full();
        }
        Ok(())
    }

    #[cold]
    pub(crate) fn leave_slow(self, flavour: Flavour, rank: Rank) {
        if self.has_option(READER_FENCES) {
            // [RCU-5] Orders the section before the count below where no process-wide fence can.
            // Pairs with [RCU-3]. In the place of [RCU-2].
            prim::full();
        }
        self.add_anyhow(flavour, rank, false);
    }

    /// One restartable add if the thread and the flavour can, else a locked one to the other cells.
    pub(crate) fn add_anyhow(self, flavour: Flavour, rank: Rank, entering: bool) {
        #[cfg(loom)]
        {
            let _ = flavour;
            self.add_sequenced_model(rank, entering);
        }
        #[cfg(not(loom))]
        {
            let base = self.rank_base(rank);
            let done = flavour != Flavour::Sigsafe
                && if entering {
                    // SAFETY: as in `try_enter`.
                    unsafe { percpu::try_inc::<SHIFT, { COPY0 + LOCKS }>(self.rseq(), base) }
                } else {
                    // SAFETY: as above.
                    unsafe { percpu::try_inc::<SHIFT, { COPY0 + UNLOCKS }>(self.rseq(), base) }
                };
            if !done {
                self.add_locked(rank, entering);
            }
        }
    }

    /// Records the flavour of a reader about to enter, or refuses it.
    fn record(self, asked: Flavour) -> Result<(), Misuse> {
        let head = self.head();
        let declared = self.declared();
        if declared.0 != 0 && !declared.has(asked) {
            return Err(Misuse::Mixed { recorded: declared, asked });
        }
        if declared.0 == 0 && FlavourSet::DECLARED_ONLY.has(asked) {
            return Err(Misuse::Undeclared { asked });
        }
        if self.has_option(UNRECORDED) {
            return Ok(());
        }
        let mut old = self.recorded();
        while !old.has(asked) && cfg!(not(mutant = "unrecorded")) {
            let new = FlavourSet(old.0 | asked.bit());
            if !new.is_legal() {
                return Err(Misuse::Mixed { recorded: old, asked });
            }
            // [RCU-6] The record is made before this reader's count, and with a full fence on every
            // architecture: a grace period that has not seen the flavour in its second look began
            // before it, and so this reader sees what was published. Pairs with [RCU-3].
            #[cfg(not(mutant = "RCU-6"))]
            prim::full();
            match head.recorded.compare_exchange(old.0, new.0, Relaxed, Relaxed) {
                Ok(_) => self.set_recorded(asked),
                Err(now) => old = FlavourSet(now),
            }
            #[cfg(not(mutant = "RCU-6"))]
            prim::full();
            old = if old.has(asked) { old } else { self.recorded() };
        }
        Ok(())
    }

    /// Opens the fast path to a recorded flavour, if nothing else needs the slow one.
    pub(crate) fn set_recorded(self, flavour: Flavour) {
        let head = self.head();
        head.recorded.fetch_or(flavour.bit(), Relaxed);
        let fenceless = FlavourSet::FENCELESS.has(flavour);
        let slow = self.has_option(CHECKED) || (fenceless && self.has_option(READER_FENCES));
        if !slow {
            // Atomic adds need no offset; any number but zero says that the path is open.
            let atomic = flavour == Flavour::Sigsafe || cfg!(loom);
            let open = if atomic { 1 } else { head.rseq_offset.load(Relaxed) };
            head.open[flavour as usize].store(open, Relaxed);
            let seats = head.seats.load(Relaxed);
            if fenceless && seats > 0 {
                head.seats_open[flavour as usize].store(place_of(seats) as u32, Relaxed);
            }
        }
    }
}

#[inline(always)]
pub(crate) fn fence_after_enter<F: Reader>() {
    // [RCU-1] Orders the reader's count before every load of its section.
    // Pairs with [RCU-3], [RCU-11]. Without it a grace period can miss a reader that already holds an item.
    #[cfg(not(mutant = "RCU-1"))]
    if F::FENCED { prim::full() } else { prim::light() }
}

#[inline(always)]
pub(crate) fn fence_before_leave<F: Reader>() {
    // [RCU-2] Orders every load of the section before the reader's count below.
    // Pairs with [RCU-3]. Without it an item is freed under a load that has not happened yet.
    #[cfg(not(mutant = "RCU-2"))]
    if F::FENCED { prim::full() } else { prim::light() }
}
