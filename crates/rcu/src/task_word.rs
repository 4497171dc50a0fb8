//! The word in which a thread counts its tasks-trace readers, and the wait for such words.
//!
//! For:     `tasks::holdout`; apart from it, so that the model can run it.
//! State:   `count` (top bit: please say when you are quiet; below it the nesting, which forgotten guards cannot bring
//!          round to zero) and `quiet`.
//! Context: readers: target, signal. `wait_for_all`: target, block.
//! Keeps:   Z3 a thread that was inside when the wait began is waited for until it was outside once,
//!          however soon it enters again.
//!          Z5 what a thread has read inside, it has read before the wait is over.
//! Checked: model `task_words` (mutants RCU-17 to RCU-20, no-holdouts), `tests/tasks.rs`,
//!          `torture rcu --flavour tasks-holdout`.
//! Source:  kernel `kernel/rcu/tasks.h` (6.2). Departs: a membarrier in the place of inter-processor
//!          interrupts, and the request sits in the count's own top bit, so that leaving tests one flag.

use crate::Rank;
use crate::gp::{Broken, Env, Waiting};
use crate::prim::{self, AtomicU32, AtomicU64, Relaxed};
use crate::seq::Phase;
use std::vec::Vec;

/// The request bit: the sign bit, so that a subtraction tests it.
const ASKED: u64 = 1 << 63;

/// One thread's word. Its owner alone counts; a grace period sets the request.
pub struct TaskWord {
    count: AtomicU64,
    quiet: AtomicU32,
}

impl TaskWord {
    /// A word of a thread that is outside.
    pub fn new() -> TaskWord {
        TaskWord { count: AtomicU64::new(0), quiet: AtomicU32::new(0) }
    }

    /// The owner enters.
    #[inline(always)]
    pub fn enter(&self) {
        self.count_in();
        // [RCU-17] Orders the count above before the section. Pairs with [RCU-19].
        #[cfg(not(mutant = "RCU-17"))]
        prim::light();
    }

    /// The count of `enter` without its fence.
    #[inline(always)]
    pub(crate) fn count_in(&self) {
        // An earlier sign of quiet needs no order before this count: a section that may hold what was
        // unlinked has its fence [RCU-17] before [RCU-19], and with it the sign before the next
        // `ask`. A mutant of a release here lived.
        prim::overwrite(&self.count, self.count.load(Relaxed).wrapping_add(1));
    }

    /// The owner leaves; false if it was not inside.
    #[inline(always)]
    pub fn leave(&self) -> bool {
        // [RCU-18] Orders the section before the count below. Pairs with [RCU-20].
        #[cfg(not(mutant = "RCU-18"))]
        prim::light();
        let count = self.count.load(Relaxed).wrapping_sub(1);
        prim::overwrite(&self.count, count);
        (count as i64) >= 0 || self.answer(count)
    }

    /// A grace period asked, or the count went below zero; false for the latter.
    #[cold]
    fn answer(&self, count: u64) -> bool {
        let nesting = count & !ASKED;
        if nesting == !ASKED {
            self.count.store(0, Relaxed);
            return false;
        }
        if nesting == 0 {
            // Outside, and the count that says so is already stored.
            self.count.fetch_and(!ASKED, Relaxed);
            self.quiet.store(1, Relaxed);
        }
        true
    }

    /// How deep the owner is inside.
    pub fn nesting(&self) -> u32 {
        u32::try_from(self.count.load(Relaxed) & !ASKED).unwrap_or(u32::MAX)
    }

    /// The word's owner is gone, or another takes it over.
    pub(crate) fn reset(&self) {
        self.count.store(0, Relaxed);
    }

    fn ask(&self) {
        self.quiet.store(0, Relaxed);
        // The sign is cleared before it is asked for.
        prim::full();
        self.count.fetch_or(ASKED, Relaxed);
    }

    fn is_quiet(&self) -> bool {
        let count = self.count.load(Relaxed);
        if count & !ASKED == 0 || self.quiet.load(Relaxed) != 0 {
            return true;
        }
        // The owner's plain add can overwrite the request: ask again.
        if count & ASKED == 0 {
            self.count.fetch_or(ASKED, Relaxed);
        }
        false
    }
}

impl Default for TaskWord {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns when every word that was inside has been outside. `all` gives the words there are, after
/// the first fence; `heavy` says that readers have no fences of their own.
pub fn wait_for_all<'w>(
    all: impl FnOnce() -> Vec<&'w TaskWord>,
    env: &mut impl Env,
    heavy: bool,
    expedited: bool,
) {
    // [RCU-19] Whoever is not seen inside after this fence enters after it, and sees what was
    // published before. Pairs with [RCU-17].
    #[cfg(not(mutant = "RCU-19"))]
    fence(env, heavy);
    let mut holdouts = all();
    holdouts.retain(|word| word.nesting() != 0 && cfg!(not(mutant = "no-holdouts")));
    holdouts.iter().for_each(|word| word.ask());
    let mut polls = 0;
    loop {
        holdouts.retain(|word| !word.is_quiet());
        if holdouts.is_empty() || env.broken() == Some(Broken::NoWait) {
            break;
        }
        polls += 1;
        env.pause(&Waiting { rank: Rank::from_index(0), phase: Phase::Scan1, polls, expedited });
    }
    // [RCU-20] What the readers seen outside have read, they read before this. Pairs with [RCU-18].
    #[cfg(not(mutant = "RCU-20"))]
    fence(env, heavy);
}

fn fence(env: &mut impl Env, heavy: bool) {
    if heavy { env.heavy_fence() } else { prim::full() }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn no_number_of_forgotten_guards_looks_like_none() {
        let word = TaskWord::new();
        for entered in [u64::from(u32::MAX), u64::from(u32::MAX) + 1, 1 << 40] {
            word.count.store(entered - 1, Relaxed);
            word.enter();
            assert_eq!(word.nesting(), u32::MAX, "{entered}");
            word.ask();
            assert!(!word.is_quiet(), "{entered}");
            assert!(word.leave() && !word.is_quiet(), "{entered}");
        }
        word.count.store(1, Relaxed);
        word.ask();
        assert!(word.leave() && word.is_quiet() && word.nesting() == 0);
        assert!(!word.leave(), "one too many is found");
    }
}
