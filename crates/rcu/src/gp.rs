//! The two-rank grace period.
//!
//! For:     `Domain`; a thread that has only a block; a controller that waits for the hits of another process.
//! State:   the sequence number: in the block's header, or with the controller. Counts and rank: `Ranks`.
//! Context: target, control. Blocks as long as the caller's `pause` does.
//! Keeps:   G1 when `run` returns, every reader that was inside when it began has left.
//!          G2 readers that enter later are not waited for: they enter the other rank.
//!          G3 a flavour that shows up between the two sums is never taken for a fenced one.
//!          G4 an interrupted grace period is taken up where it was (the child of a fork; one that was given up).
//!          G5 who gives up has freed nothing: no cookie is done that was not.
//! Checked: model `gp` (mutants RCU-3, one-rank, sum-order), `torture rcu --broken`; tests below (G4, G5).
//! Source:  kernel `srcu_readers_active_idx_check`, `srcu_advance_state` (v7.0). Departs: an expedited
//!          membarrier where that has an RCU grace period.

use crate::block::{Block, GpState, Rank};
use crate::prim::{self, Acquire, AtomicU64, Relaxed, Release};
use crate::seq::{self, Phase};
use crate::{Cookie, FlavourSet};
use core::convert::Infallible;

/// Readers that count themselves on one of two ranks, wherever the counts lie; what a grace period needs of them.
pub trait Ranks {
    /// Why a grace period may stop before its end; `Infallible` where none does.
    type Stop;

    /// The rank that readers enter now, as who drives the grace periods knows it.
    fn rank(&self) -> Rank;

    /// Sends readers to this rank from now on. Some may be slow to notice.
    fn flip(&mut self, to: Rank) -> Result<(), Self::Stop>;

    /// How many have entered a rank so far, wrapping.
    fn entered(&self, rank: Rank) -> u64;

    /// How many have left a rank so far, wrapping.
    fn left(&self, rank: Rank) -> u64;

    /// True if some of the readers do not fence themselves.
    fn needs_heavy_fence(&self) -> bool;

    /// Makes every running thread that may be a reader execute a full fence.
    fn heavy_fence(&mut self) -> Result<(), Self::Stop>;

    /// Waits a little, because `waiting` says that readers are still inside; or gives up.
    fn pause(&mut self, waiting: &Waiting) -> Result<(), Self::Stop>;

    /// The part of the algorithm to leave out. Torture alone answers anything but `None`.
    fn broken(&self) -> Option<Broken> {
        None
    }
}

/// What a grace period of a [`Block`] needs from the place where it runs.
pub trait Env {
    /// Makes every running thread of the process execute a full fence.
    fn heavy_fence(&mut self);

    /// Waits a little, because `waiting` says that readers are still inside.
    fn pause(&mut self, waiting: &Waiting);

    /// The highest seat that a reader may ever have counted on; asked for before each sum.
    fn seats(&self) -> u32 {
        0
    }

    /// The part of the algorithm to leave out. Torture alone answers anything but `None`.
    fn broken(&self) -> Option<Broken> {
        None
    }
}

/// The readers of a block, with the place where its grace periods run.
struct Own<'a, 'e, E> {
    block: Block<'a>,
    env: &'e mut E,
}

impl<E: Env> Ranks for Own<'_, '_, E> {
    type Stop = Infallible;

    fn rank(&self) -> Rank {
        self.block.rank()
    }

    fn flip(&mut self, to: Rank) -> Result<(), Infallible> {
        self.block.head().rank.store(to.0, Relaxed);
        Ok(())
    }

    fn entered(&self, rank: Rank) -> u64 {
        self.block.sum_locks(rank, self.env.seats())
    }

    fn left(&self, rank: Rank) -> u64 {
        self.block.sum_unlocks(rank, self.env.seats())
    }

    fn needs_heavy_fence(&self) -> bool {
        !self.block.has_reader_fences() && self.block.recorded().meets(FlavourSet::FENCELESS)
    }

    fn heavy_fence(&mut self) -> Result<(), Infallible> {
        self.env.heavy_fence();
        Ok(())
    }

    fn pause(&mut self, waiting: &Waiting) -> Result<(), Infallible> {
        self.env.pause(waiting);
        Ok(())
    }

    fn broken(&self) -> Option<Broken> {
        self.env.broken()
    }
}

/// A poll of a rank that found readers inside.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// The rank that is waited for.
    pub rank: Rank,
    /// Which scan it is.
    pub phase: Phase,
    /// Polls of this scan so far, from 1.
    pub polls: u32,
    /// True if somebody asked for haste.
    pub expedited: bool,
}

/// Ways to get it wrong on purpose, for the torture test.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Broken {
    /// A grace period waits for nobody.
    NoWait,
    /// Only the rank that was current is looked at, not the stragglers'.
    OneRank,
    /// Locks are summed before unlocks.
    SwappedSums,
    /// Fenceless readers get a fence of the caller's CPU alone.
    LiteWithoutMembarrier,
    /// `barrier` returns at once.
    ForgottenBarrier,
    /// Readers do not record their flavour.
    UnrecordedFlavour,
    /// One callback in a thousand is dropped.
    LostCallback,
}

impl Broken {
    /// Every way, by its name on the command line.
    pub const ALL: [(&'static str, Broken); 7] = [
        ("no-wait", Self::NoWait),
        ("one-rank", Self::OneRank),
        ("swapped-sums", Self::SwappedSums),
        ("lite-without-membarrier", Self::LiteWithoutMembarrier),
        ("forgotten-barrier", Self::ForgottenBarrier),
        ("unrecorded-flavour", Self::UnrecordedFlavour),
        ("lost-callback", Self::LostCallback),
    ];
}

impl GpState {
    /// Of readers of which nobody has waited for any yet.
    pub fn new() -> GpState {
        GpState {
            seq: AtomicU64::new(seq::FIRST),
            needed: AtomicU64::new(seq::FIRST),
            needed_expedited: AtomicU64::new(seq::FIRST),
            heavy_fences: AtomicU64::new(0),
            periods: AtomicU64::new(0),
        }
    }

    /// The number of the current grace period, with its phase.
    pub fn seq(&self) -> u64 {
        // [RCU-7] What a finished grace period waited for is visible to who reads its number.
        // Pairs with [RCU-8], [RCU-21].
        self.seq.load(Acquire)
    }

    /// The cookie of a request made now. Starts nothing.
    pub fn snap(&self) -> Cookie {
        // [RCU-9] Orders the caller's unlinking before the number is read: a grace period that the
        // cookie counts on has then begun after it. Pairs with [RCU-10].
        #[cfg(not(mutant = "RCU-9"))]
        prim::full();
        let cookie = Cookie::snap(self.seq.load(Relaxed));
        prim::full();
        cookie
    }

    /// True once a whole grace period has passed since the cookie was taken.
    pub fn poll(&self, cookie: Cookie) -> bool {
        let done = cookie.is_done(self.seq());
        if done {
            // Not needed for memory that the caller frees ([RCU-7] orders that); the kernel
            // promises a full fence to who sees a cookie done, and so does this.
            prim::full();
        }
        done
    }

    /// Process-wide fences that grace periods have made.
    pub fn heavy_fences(&self) -> u64 {
        self.heavy_fences.load(Relaxed)
    }

    /// Grace periods that have ended.
    pub fn periods(&self) -> u64 {
        self.periods.load(Relaxed)
    }

    /// Runs one whole grace period of these readers, or the rest of one that was interrupted or given up.
    ///
    /// Callers must take turns: a reader is not waited for by two grace periods that run at one time.
    ///
    /// # Errors
    /// What `ranks` stopped with. The grace period has not ended; the next run goes on with it.
    pub fn run<R: Ranks>(&self, ranks: &mut R, expedited: bool) -> Result<(), R::Stop> {
        let mut now = self.seq.load(Relaxed);
        let mut first_fence = false;
        if seq::phase(now) == Phase::Idle {
            now = now.wrapping_add(1);
            self.seq.store(now, Relaxed);
            // [RCU-10] Orders the start before every sum: a cookie taken after this start does not
            // count on this grace period. Pairs with [RCU-9]. Not strictly needed: the fence of the
            // first scan stands between the start and the locks, and a mutant without this one lived.
            // Kept because it is cheap and makes the argument local.
            prim::full();
        }
        if seq::phase(now) == Phase::Scan1 {
            let current = ranks.rank();
            if ranks.broken() != Some(Broken::OneRank) && cfg!(not(mutant = "one-rank")) {
                first_fence = self.wait_for(ranks, current.other(), Phase::Scan1, expedited, false)?;
            }
            // New readers go to the other rank from here on; those that are slow to notice are
            // what the next grace period's first scan is for. The control dependency on the first
            // scan orders the flip after it.
            ranks.flip(current.other())?;
            now = now.wrapping_add(1);
            self.seq.store(now, Relaxed);
            // [RCU-11] Only saves scans: readers see the flip soon. Not needed for G1.
            // Pairs with [RCU-1].
            prim::full();
        }
        let previous = ranks.rank().other();
        // One process-wide fence serves both scans of an expedited grace period where loads are not
        // moved below later stores: every reader that may hold what was unlinked has its lock counted
        // by the first fence, on either rank; and an unlock that is seen says that its section is
        // over. Plain grace periods keep the second, as promised (restriction 4).
        let skip = first_fence && expedited && percpu::IS_TSO;
        self.wait_for(ranks, previous, Phase::Scan2, expedited, skip)?;
        self.periods.fetch_add(1, Relaxed);
        prim::full();
        // [RCU-8] Publishes the end: who reads the number may free what readers have left.
        // Pairs with [RCU-7].
        self.seq.store(seq::ended(now), Release);
        Ok(())
    }

    /// Returns when the rank is quiet; true if that took a process-wide fence.
    fn wait_for<R: Ranks>(
        &self,
        ranks: &mut R,
        rank: Rank,
        phase: Phase,
        expedited: bool,
        skip: bool,
    ) -> Result<bool, R::Stop> {
        if ranks.broken() == Some(Broken::NoWait) {
            return Ok(false);
        }
        let mut polls = 0;
        loop {
            // The guess sums in the right order, and would hide the wrong one.
            let guess = ranks.broken() != Some(Broken::SwappedSums);
            if !guess || looks_quiet(ranks, rank) {
                let heavy = ranks.needs_heavy_fence();
                if self.is_quiet(ranks, rank, heavy, skip)? {
                    return Ok(heavy);
                }
            }
            polls += 1;
            ranks.pause(&Waiting { rank, phase, polls, expedited })?;
        }
    }

    /// True if there was an instant, after the call began, without readers of `rank` that may hold
    /// what was unlinked before it. The order of the steps is the heart: unlocks, fence, locks.
    fn is_quiet<R: Ranks>(
        &self,
        ranks: &mut R,
        rank: Rank,
        heavy: bool,
        skip: bool,
    ) -> Result<bool, R::Stop> {
        if ranks.broken() == Some(Broken::SwappedSums) || cfg!(mutant = "sum-order") {
            return self.is_quiet_swapped(ranks, rank);
        }
        // Unlocks first: a reader that comes and goes between the two sums must make them
        // differ, never agree.
        let unlocks = ranks.left(rank);
        // [RCU-3] Orders the unlocks seen after their sections, and the locks not yet seen before
        // theirs. Pairs with [RCU-1], [RCU-2], [RCU-4], [RCU-5], [RCU-6].
        // Where `skip` is set, the first scan's fence has done the latter, and an acquire the former.
        #[cfg(not(mutant = "RCU-3"))]
        if skip {
            prim::acquire()
        } else {
            self.fence(ranks, heavy)?
        }
        // Asked anew: a reader that has sat down since the unlocks were summed counts, too.
        let locks = ranks.entered(rank);
        // A fenceless flavour that was recorded meanwhile has not been fenced for: not quiet. A mutant
        // without this look lived, because [RCU-6] alone makes such a reader see what was published;
        // kept, as the kernel does, because it makes the argument local.
        Ok(unlocks == locks && heavy == ranks.needs_heavy_fence())
    }

    /// The wrong order, which torture and the model must catch.
    #[cold]
    fn is_quiet_swapped<R: Ranks>(&self, ranks: &mut R, rank: Rank) -> Result<bool, R::Stop> {
        let locks = ranks.entered(rank);
        let heavy = ranks.needs_heavy_fence();
        self.fence(ranks, heavy)?;
        Ok(ranks.left(rank) == locks)
    }

    fn fence<R: Ranks>(&self, ranks: &mut R, heavy: bool) -> Result<(), R::Stop> {
        if heavy && ranks.broken() != Some(Broken::LiteWithoutMembarrier) {
            self.heavy_fences.fetch_add(1, Relaxed);
            return ranks.heavy_fence();
        }
        prim::full();
        Ok(())
    }
}

impl Default for GpState {
    fn default() -> GpState {
        GpState::new()
    }
}

/// A cheap guess at `is_quiet`, which saves process-wide fences. Promises nothing either way.
fn looks_quiet<R: Ranks>(ranks: &R, rank: Rank) -> bool {
    if cfg!(loom) {
        return true;
    }
    // One expedited membarrier costs as much as some hundred of these looks.
    (0..64).any(|_| {
        let unlocks = ranks.left(rank);
        let quiet = ranks.entered(rank) == unlocks;
        if !quiet {
            core::hint::spin_loop();
        }
        quiet
    })
}

impl Block<'_> {
    /// The number of the current grace period, with its phase.
    pub fn gp_seq(self) -> u64 {
        self.head().gp.seq()
    }

    /// The cookie of a request made now. Starts nothing.
    pub fn snap(self) -> Cookie {
        self.head().gp.snap()
    }

    /// True once a whole grace period has passed since the cookie was taken.
    pub fn poll(self, cookie: Cookie) -> bool {
        self.head().gp.poll(cookie)
    }

    /// Runs one whole grace period, or the rest of one that was interrupted.
    ///
    /// ```compile_fail,E0133
    /// struct Nothing;
    /// impl rcu::Env for Nothing {
    ///     fn heavy_fence(&mut self) {}
    ///     fn pause(&mut self, _: &rcu::Waiting) {}
    /// }
    /// let domain = rcu::Domain::new("example");
    /// domain.block().run_gp(&mut Nothing, false); // not without `unsafe`
    /// ```
    ///
    /// # Safety
    /// Callers must take turns: nobody else may run a grace period of this block meanwhile, so nobody but a
    /// [`Domain`](crate::Domain) itself may run one of its block. After `env.heavy_fence()`, every thread that reads the
    /// block must have executed a full fence.
    pub unsafe fn run_gp(self, env: &mut impl Env, expedited: bool) {
        let Ok(()) = self.head().gp.run(&mut Own { block: self, env }, expedited);
    }

    /// Process-wide fences that grace periods of this block have made.
    pub fn heavy_fences(self) -> u64 {
        self.head().gp.heavy_fences()
    }

    /// Grace periods that have ended.
    pub fn periods(self) -> u64 {
        self.head().gp.periods()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Readers of which a test says who has entered and left, and a driver with patience for so many polls.
    struct Counted {
        rank: Rank,
        entered: [u64; 2],
        left: [u64; 2],
        patience: u32,
        flips: u32,
    }

    impl Ranks for Counted {
        type Stop = ();

        fn rank(&self) -> Rank {
            self.rank
        }
        fn flip(&mut self, to: Rank) -> Result<(), ()> {
            (self.rank, self.flips) = (to, self.flips + 1);
            Ok(())
        }
        fn entered(&self, rank: Rank) -> u64 {
            self.entered[rank.index() as usize]
        }
        fn left(&self, rank: Rank) -> u64 {
            self.left[rank.index() as usize]
        }
        fn needs_heavy_fence(&self) -> bool {
            true
        }
        fn heavy_fence(&mut self) -> Result<(), ()> {
            Ok(())
        }
        fn pause(&mut self, waiting: &Waiting) -> Result<(), ()> {
            if waiting.polls < self.patience { Ok(()) } else { Err(()) }
        }
    }

    #[test]
    fn who_gives_up_has_ended_nothing_and_goes_on_where_it_was() {
        for inside in [0, 1] {
            let mut readers =
                Counted { rank: Rank::from_index(0), entered: [7, 9], left: [7, 9], patience: 3, flips: 0 };
            readers.entered[inside] += 1;
            let state = GpState::new();
            let cookie = state.snap();
            for _ in 0..3 {
                assert_eq!(state.run(&mut readers, true), Err(()));
                assert!(!state.poll(cookie), "a reader is inside");
                assert_eq!(state.periods(), 0);
            }
            readers.left[inside] += 1;
            assert_eq!(state.run(&mut readers, true), Ok(()));
            assert!(state.poll(cookie));
            assert_eq!((state.periods(), readers.flips), (1, 1), "one grace period, one flip");
        }
    }

    #[test]
    fn sums_that_wrap_are_compared_as_they_are() {
        let mut readers = Counted {
            rank: Rank::from_index(1),
            entered: [2, u64::MAX],
            left: [2, u64::MAX],
            patience: 0,
            flips: 0,
        };
        assert_eq!(GpState::new().run(&mut readers, false), Ok(()));
        readers.entered[0] = 1;
        assert_eq!(GpState::new().run(&mut readers, false), Err(()), "more have left than entered");
    }
}
