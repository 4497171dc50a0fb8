//! Slots that are taken for one hit: the dynamic scheme.
//!
//! For:     [`super`].
//! State:   a bit a slot, the number of sleepers, and a word that they sleep on.
//! Context: hit; no lock, no allocation; a system call to sleep and to wake.
//! Keeps:   F1 from `take` to `give` a slot is one thread's.
//!          F2 a slot that is given back after a thread said that it sleeps wakes one.
//! Checked: tests below; tests/aarch64_hits.rs.
//! Orderings: [SLOT-1] and [SLOT-2] are the pair; all others are as strong, since all of it is one order: bits, sleepers, turn.
//! Source:  kernel-facts 1.10: first zero bit, test and set, a fence between the clear and the look at sleepers.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// A sleeper looks again after this long, so that a defect shows as slowness and not as a hang.
const LOOK_AGAIN_NS: u64 = 1_000_000_000;

/// A set of free slots.
#[derive(Debug)]
pub struct Free {
    /// A set bit is a slot that is taken, or none.
    words: Vec<AtomicU64>,
    sleepers: AtomicU32,
    turn: AtomicU32,
    slept: AtomicU64,
    overslept: AtomicU64,
}

impl Free {
    /// `slots` slots, all free.
    pub fn new(slots: usize) -> Free {
        let word = |index: usize| match slots - index * 64 {
            rest @ ..64 => !0 << rest,
            _ => 0,
        };
        let words = (0..slots.div_ceil(64)).map(|index| AtomicU64::new(word(index))).collect();
        Free {
            words,
            sleepers: AtomicU32::new(0),
            turn: AtomicU32::new(0),
            slept: AtomicU64::new(0),
            overslept: AtomicU64::new(0),
        }
    }

    /// The first free slot, now the caller's; `None` when all are taken.
    pub fn take(&self) -> Option<usize> {
        self.words.iter().enumerate().find_map(|(index, word)| {
            let mut seen = word.load(SeqCst);
            while seen != u64::MAX {
                let bit = (!seen).trailing_zeros();
                // [SLOT-1] Orders the last owner's use before ours, and the announcement of a sleeper before its
                // second look. Pairs with [SLOT-2].
                seen = word.fetch_or(1 << bit, SeqCst);
                if seen >> bit & 1 == 0 {
                    return Some(64 * index + bit as usize);
                }
            }
            None
        })
    }

    /// A slot, slept for if need be.
    pub fn take_wait(&self) -> usize {
        loop {
            if let Some(slot) = self.take() {
                return slot;
            }
            let turn = self.announce();
            let slot = self.look_again(turn);
            self.sleepers.fetch_sub(1, SeqCst);
            if let Some(slot) = slot {
                return slot;
            }
        }
    }

    /// The caller will sleep unless it finds a slot after all; until the turn is another one than now.
    fn announce(&self) -> u32 {
        let turn = self.turn.load(SeqCst);
        self.sleepers.fetch_add(1, SeqCst);
        turn
    }

    /// A slot that came free before the announcement was heard, or else sleep.
    fn look_again(&self, turn: u32) -> Option<usize> {
        self.take().or_else(|| self.sleep(turn))
    }

    /// Until the turn is another one. After a long time without, a slot that is free all the same: its owner woke
    /// nobody, which is counted.
    fn sleep(&self, turn: u32) -> Option<usize> {
        self.slept.fetch_add(1, Relaxed);
        let woken = sys::futex_wait(&self.turn, turn, Some(LOOK_AGAIN_NS));
        if woken != Err(sys::Errno::ETIMEDOUT) || self.turn.load(SeqCst) != turn {
            return None;
        }
        let slot = self.take()?;
        self.overslept.fetch_add(1, Relaxed);
        Some(slot)
    }

    /// Gives a slot back.
    pub fn give(&self, slot: usize) {
        // [SLOT-2] Our use of the slot before the next owner's; the cleared bit before the look at sleepers: either we
        // see the sleeper, or its second look sees the bit. Pairs with [SLOT-1].
        self.words[slot / 64].fetch_and(!(1 << (slot % 64)), SeqCst);
        if self.sleepers.load(SeqCst) > 0 {
            self.turn.fetch_add(1, SeqCst);
            let _ = sys::futex_wake(&self.turn, 1);
        }
    }

    /// How often a thread went to sleep.
    pub fn times_slept(&self) -> u64 {
        self.slept.load(Relaxed)
    }

    /// How often a thread slept although a slot was free: lost wake-ups, of which there are none.
    pub fn times_overslept(&self) -> u64 {
        self.overslept.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn all_slots_are_given_once_and_no_more() {
        for slots in [1, 63, 64, 65, 130] {
            let free = Free::new(slots);
            let mut taken: Vec<_> = std::iter::from_fn(|| free.take()).collect();
            taken.sort_unstable();
            assert_eq!(taken, (0..slots).collect::<Vec<_>>());
            free.give(slots - 1);
            assert_eq!((free.take(), free.take()), (Some(slots - 1), None));
        }
    }

    #[test]
    fn more_threads_than_slots_share_none_and_all_make_progress() {
        const ROUNDS: usize = 2000;
        let free = Free::new(3);
        let owners: [AtomicUsize; 3] = Default::default();
        std::thread::scope(|scope| {
            for thread in 1..=12 {
                let (free, owners) = (&free, &owners);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let slot = free.take_wait();
                        assert_eq!(owners[slot].swap(thread, SeqCst), 0, "slot {slot} has two owners");
                        if round % 16 == 0 {
                            std::thread::yield_now();
                        }
                        assert_eq!(owners[slot].swap(0, SeqCst), thread);
                        free.give(slot);
                    }
                });
            }
        });
        assert!(free.times_slept() > 0, "nobody ever waited");
        assert_eq!(free.sleepers.load(SeqCst), 0);
        assert_eq!(free.times_overslept(), 0, "wake-ups were lost");
    }

    #[test]
    fn the_last_slot_that_is_given_back_wakes_the_one_who_waits() {
        const ROUNDS: u64 = 600;
        let free = Free::new(1);
        let (begun, ended) = (AtomicU64::new(0), AtomicU64::new(0));
        let reaches = |word: &AtomicU64, round| {
            while word.load(SeqCst) < round {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    reaches(&begun, round);
                    let slot = free.take_wait();
                    free.give(slot);
                    ended.store(round, SeqCst);
                }
            });
            // No traffic but the two of a round, so that nothing later makes up for what was lost. One lost wake-up is
            // enough to know; each costs a second.
            for round in (1..=ROUNDS).take_while(|_| free.times_overslept() == 0) {
                let slot = free.take_wait();
                begun.store(round, SeqCst);
                (0..round % 64 * 16).for_each(|_| std::hint::spin_loop());
                if round % 8 == 0 {
                    std::thread::yield_now();
                }
                free.give(slot);
                reaches(&ended, round);
            }
            begun.store(u64::MAX, SeqCst);
        });
        assert_eq!(free.times_overslept(), 0, "a wake-up was lost");
        assert!(free.times_slept() > 0, "nobody ever waited");
    }

    #[test]
    fn a_slot_given_back_at_any_moment_before_the_sleep_is_found_without_it() {
        let free = Free::new(1);
        // Before the announcement: the second look finds it. After: so does it, and the turn is another one.
        for is_late in [false, true] {
            let slot = free.take().unwrap();
            if !is_late {
                free.give(slot);
            }
            let turn = free.announce();
            if is_late {
                free.give(slot);
                assert_ne!(free.turn.load(SeqCst), turn);
            }
            assert_eq!(free.look_again(turn), Some(slot));
            free.sleepers.fetch_sub(1, SeqCst);
            free.give(slot);
        }
        assert_eq!(free.times_slept(), 0);
    }
}
