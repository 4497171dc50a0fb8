//! The two-rank grace period.
//!
//! For:     `Domain`, and an agent's control thread that has only a block.
//! State:   the sequence number and the current rank, in the block's header.
//! Context: target, control. Blocks as long as the caller's `Env::pause` does.
//! Keeps:   G1 when `run` returns, every reader that was inside when it began has left.
//!          G2 readers that enter later are not waited for: they enter the other rank.
//!          G3 a flavour that shows up between the two sums is never taken for a fenced one.
//!          G4 an interrupted grace period is taken up where it was (the child of a fork).
//! Checked: model `gp` (mutants RCU-3, one-rank, sum-order), `torture rcu --broken`.
//! Source:  kernel `srcu_readers_active_idx_check`, `srcu_advance_state` (v7.0). Departs: an expedited
//!          membarrier where that has an RCU grace period.

use crate::block::{Block, Rank};
use crate::prim::{self, Acquire, Relaxed, Release};
use crate::seq::{self, Phase};
use crate::{Cookie, FlavourSet};

/// What a grace period needs from the place where it runs.
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

impl<'a> Block<'a> {
    /// The number of the current grace period, with its phase.
    pub fn gp_seq(self) -> u64 {
        // [RCU-7] What a finished grace period waited for is visible to who reads its number.
        // Pairs with [RCU-8], [RCU-21].
        self.head().gp.seq.load(Acquire)
    }

    /// The cookie of a request made now. Starts nothing.
    pub fn snap(self) -> Cookie {
        // [RCU-9] Orders the caller's unlinking before the number is read: a grace period that the
        // cookie counts on has then begun after it. Pairs with [RCU-10].
        #[cfg(not(mutant = "RCU-9"))]
        prim::full();
        let cookie = Cookie::snap(self.head().gp.seq.load(Relaxed));
        prim::full();
        cookie
    }

    /// True once a whole grace period has passed since the cookie was taken.
    pub fn poll(self, cookie: Cookie) -> bool {
        let done = cookie.is_done(self.gp_seq());
        if done {
            // Not needed for memory that the caller frees ([RCU-7] orders that); the kernel
            // promises a full fence to who sees a cookie done, and so does this.
            prim::full();
        }
        done
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
        let gp = &self.head().gp;
        let mut now = gp.seq.load(Relaxed);
        let mut first_fence = false;
        if seq::phase(now) == Phase::Idle {
            now = now.wrapping_add(1);
            gp.seq.store(now, Relaxed);
            // [RCU-10] Orders the start before every sum: a cookie taken after this start does not
            // count on this grace period. Pairs with [RCU-9]. Not strictly needed: the fence of the
            // first scan stands between the start and the locks, and a mutant without this one lived.
            // Kept because it is cheap and makes the argument local.
            prim::full();
        }
        if seq::phase(now) == Phase::Scan1 {
            let current = self.rank();
            if env.broken() != Some(Broken::OneRank) && cfg!(not(mutant = "one-rank")) {
                first_fence = self.wait_for(current.other(), Phase::Scan1, env, expedited, false);
            }
            // New readers go to the other rank from here on; those that are slow to notice are
            // what the next grace period's first scan is for. The control dependency on the first
            // scan orders the flip after it.
            self.head().rank.store(current.other().0, Relaxed);
            now = now.wrapping_add(1);
            gp.seq.store(now, Relaxed);
            // [RCU-11] Only saves scans: readers see the flip soon. Not needed for G1.
            // Pairs with [RCU-1].
            prim::full();
        }
        let previous = self.rank().other();
        // One process-wide fence serves both scans of an expedited grace period where loads are not
        // moved below later stores: every reader that may hold what was unlinked has its lock counted
        // by the first fence, on either rank; and an unlock that is seen says that its section is
        // over. Plain grace periods keep the second, as promised (restriction 4).
        let skip = first_fence && expedited && percpu::IS_TSO;
        self.wait_for(previous, Phase::Scan2, env, expedited, skip);
        gp.periods.fetch_add(1, Relaxed);
        prim::full();
        // [RCU-8] Publishes the end: who reads the number may free what readers have left.
        // Pairs with [RCU-7].
        gp.seq.store(seq::ended(now), Release);
    }

    /// Returns when the rank is quiet; true if that took a process-wide fence.
    fn wait_for(self, rank: Rank, phase: Phase, env: &mut impl Env, expedited: bool, skip: bool) -> bool {
        if env.broken() == Some(Broken::NoWait) {
            return false;
        }
        let mut polls = 0;
        loop {
            // The guess sums in the right order, and would hide the wrong one.
            let guess = env.broken() != Some(Broken::SwappedSums);
            if !guess || self.looks_quiet(rank, env.seats()) {
                let heavy = self.needs_heavy_fence();
                if self.is_quiet(rank, env, heavy, skip) {
                    return heavy;
                }
            }
            polls += 1;
            env.pause(&Waiting { rank, phase, polls, expedited });
        }
    }

    /// A cheap guess at `is_quiet`, which saves process-wide fences. Promises nothing either way.
    fn looks_quiet(self, rank: Rank, seats: u32) -> bool {
        if cfg!(loom) {
            return true;
        }
        // One expedited membarrier costs as much as some hundred of these looks.
        (0..64).any(|_| {
            let unlocks = self.sum_unlocks(rank, seats);
            let quiet = self.sum_locks(rank, seats) == unlocks;
            if !quiet {
                core::hint::spin_loop();
            }
            quiet
        })
    }

    /// True if there was an instant, after the call began, without readers of `rank` that may hold
    /// what was unlinked before it. The order of the steps is the heart: unlocks, fence, locks.
    fn is_quiet(self, rank: Rank, env: &mut impl Env, heavy: bool, skip: bool) -> bool {
        if env.broken() == Some(Broken::SwappedSums) || cfg!(mutant = "sum-order") {
            return self.is_quiet_swapped(rank, env);
        }
        // Unlocks first: a reader that comes and goes between the two sums must make them
        // differ, never agree.
        let unlocks = self.sum_unlocks(rank, env.seats());
        // [RCU-3] Orders the unlocks seen after their sections, and the locks not yet seen before
        // theirs. Pairs with [RCU-1], [RCU-2], [RCU-4], [RCU-5], [RCU-6].
        // Where `skip` is set, the first scan's fence has done the latter, and an acquire the former.
        #[cfg(not(mutant = "RCU-3"))]
        if skip {
            prim::acquire()
        } else {
            self.fence(heavy, env)
        }
        // Asked anew: a reader that has sat down since the unlocks were summed counts, too.
        let locks = self.sum_locks(rank, env.seats());
        // A fenceless flavour that was recorded meanwhile has not been fenced for: not quiet. A mutant
        // without this look lived, because [RCU-6] alone makes such a reader see what was published;
        // kept, as the kernel does, because it makes the argument local.
        unlocks == locks && heavy == self.needs_heavy_fence()
    }

    /// The wrong order, which torture and the model must catch.
    #[cold]
    fn is_quiet_swapped(self, rank: Rank, env: &mut impl Env) -> bool {
        let locks = self.sum_locks(rank, env.seats());
        self.fence(self.needs_heavy_fence(), env);
        self.sum_unlocks(rank, env.seats()) == locks
    }

    fn needs_heavy_fence(self) -> bool {
        !self.has_reader_fences() && self.recorded().meets(FlavourSet::FENCELESS)
    }

    fn fence(self, heavy: bool, env: &mut impl Env) {
        if heavy && env.broken() != Some(Broken::LiteWithoutMembarrier) {
            self.head().gp.heavy_fences.fetch_add(1, Relaxed);
            env.heavy_fence();
        } else {
            prim::full();
        }
    }

    /// Process-wide fences that grace periods of this block have made.
    pub fn heavy_fences(self) -> u64 {
        self.head().gp.heavy_fences.load(Relaxed)
    }

    /// Grace periods that have ended.
    pub fn periods(self) -> u64 {
        self.head().gp.periods.load(Relaxed)
    }
}
