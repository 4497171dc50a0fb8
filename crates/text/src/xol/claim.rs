//! Slots taken and given back.
//!
//! For:     hits.
//! State:   the control page's bitmap or counts, and the records of slots.
//! Context: hit, signal; `wait` may sleep. No lock, no allocation; a system call to sleep, to wake, and to broadcast.
//! Keeps:   C1 dynamic: a slot is one thread's from its bit's test-and-set to its release.
//!          C2 cached: a slot is written by who raised its count from 0 to `WRITER`, and entered by who counted itself
//!          in and still finds its own token there.
//!          C3 a slot that is given back after a thread said that it sleeps wakes one.
//! Checked: `tests.rs`, `torture xol`, broken variants of each.
//! Source:  kernel `xol_get_insn_slot`, `xol_free_insn_slot` (v7.0).

use super::area::{Area, Binding, Broken, Scheme, WRITER, is_broken};
use super::{Event, PAGE_SLOTS};
use insn::SlotCode;
use std::sync::atomic::{Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst};

impl Area {
    /// Takes a slot, puts the instruction there if it is not there yet, and says where it is. `None`: all are taken;
    /// [`Area::wait`] until one may be free.
    ///
    /// The thread that got a slot must go there, and leaves it by itself; or [`Area::settle`] takes it out.
    ///
    /// # Context
    /// Hit. The code must have been found to [reach](Area::reaches) what it refers to.
    pub fn enter(&self, code: &SlotCode, binding: &Binding) -> Option<u64> {
        let number = match self.options.scheme {
            Scheme::Dynamic => self.enter_dynamic(code),
            Scheme::Cached => self.enter_cached(code, binding),
        }?;
        self.note(Event::Entered { number });
        Some(self.slot_addr(number))
    }

    fn enter_dynamic(&self, code: &SlotCode) -> Option<usize> {
        let number = self.take_bit()?;
        if self.fill(number, code).is_err() {
            self.give_back(number);
            return None;
        }
        Some(number)
    }

    /// The first zero bit, set.
    fn take_bit(&self) -> Option<usize> {
        let words = &self.control().bitmap[..self.pages];
        for (page, word) in words.iter().enumerate() {
            let mut seen = word.load(Relaxed);
            while seen != u32::MAX {
                let bit = (!seen).trailing_zeros();
                // [XOL-2] Orders the last owner's use of the slot before ours. Pairs with [XOL-1], [XOL-8]; the release
                // routine's locked instruction is the other half.
                seen = word.fetch_or(1 << bit, AcqRel);
                if seen & 1 << bit == 0 {
                    return Some(page * PAGE_SLOTS + bit as usize);
                }
            }
        }
        None
    }

    fn enter_cached(&self, code: &SlotCode, binding: &Binding) -> Option<usize> {
        let number = binding.slot.load(Relaxed) as usize;
        // Looked at before, so that who waits for a slot does not wake itself by counting in and out.
        if number != 0 && self.slots[number].owner.load(Relaxed) == binding.token {
            // [XOL-3] Orders the count before the look at the token, and the slot's bytes before ours.
            // Pairs with [XOL-1], [XOL-5], [XOL-7].
            let users = self.control().users[number].fetch_add(1, SeqCst);
            let slot = &self.slots[number];
            if users & WRITER == 0 && slot.owner.load(SeqCst) == binding.token {
                let now = self.written.load(Relaxed);
                if slot.stamp.load(Relaxed) != now {
                    slot.stamp.store(now, Relaxed);
                }
                return Some(number);
            }
            self.give_back(number);
        }
        self.bind(code, binding)
    }

    /// Gives the least recently used slot that nobody is in to the probe.
    fn bind(&self, code: &SlotCode, binding: &Binding) -> Option<usize> {
        loop {
            let number = self.least_recently_used()?;
            let users = &self.control().users[number];
            // [XOL-5] Orders the count, with its WRITER bit, before the token that is taken away. Pairs with [XOL-3].
            if users.compare_exchange(0, WRITER, SeqCst, Relaxed).is_err() {
                if !is_broken(&self.options, Broken::RecycleInUse) {
                    continue;
                }
                users.fetch_or(WRITER, SeqCst);
            }
            let slot = &self.slots[number];
            slot.owner.store(0, SeqCst);
            let filled = self.fill(number, code);
            if filled.is_ok() {
                slot.stamp.store(self.written.load(Relaxed), Relaxed);
                slot.owner.store(binding.token, SeqCst);
                binding.slot.store(number as u32, Relaxed);
            }
            // [XOL-7] Orders the slot's bytes and token before it may be entered. Pairs with [XOL-3].
            // Others may have counted themselves in and will find that they must not have: the count is kept.
            users.fetch_sub(WRITER - u32::from(filled.is_ok()), SeqCst);
            return filled.ok().map(|()| number);
        }
    }

    /// A slot without users, the one entered longest ago.
    fn least_recently_used(&self) -> Option<usize> {
        let breaks = is_broken(&self.options, Broken::RecycleInUse);
        let users = &self.control().users;
        let all = (0..self.slots.len()).filter(|number| number % PAGE_SLOTS != 0);
        let free = all.filter(|number| breaks || users[*number].load(Relaxed) == 0);
        free.min_by_key(|number| self.slots[*number].stamp.load(Relaxed))
    }

    /// Keeps a slot out of use.
    pub(super) fn take_for_ever(&self, number: usize) {
        self.control().bitmap[number / PAGE_SLOTS].fetch_or(1 << (number % PAGE_SLOTS), Relaxed);
        self.control().users[number].store(1, Relaxed);
    }

    /// What the release routine does, for threads that leave a slot in another way.
    pub(super) fn give_back(&self, number: usize) {
        let control = self.control();
        // [XOL-8] Orders our use of the slot before the next owner's, and the slot given back before the look at sleepers,
        // as the release routine's locked instruction does. Pairs with [XOL-2], [XOL-4], [XOL-9].
        match self.options.scheme {
            Scheme::Dynamic => {
                control.bitmap[number / PAGE_SLOTS].fetch_and(!(1 << (number % PAGE_SLOTS)), SeqCst);
            }
            Scheme::Cached => {
                control.users[number].fetch_sub(1, SeqCst);
            }
        }
        if control.waiters.load(SeqCst) != 0 {
            control.seq.fetch_add(1, SeqCst);
            let _ = sys::futex_wake(&control.seq, 1);
        }
    }

    /// Tries again and again, asleep between times, until there is an answer.
    ///
    /// # Context
    /// Signal, target; sleeps. Not inside a reader.
    pub fn wait<T>(&self, mut attempt: impl FnMut() -> Option<T>) -> T {
        let control = self.control();
        loop {
            // [XOL-4] Orders "somebody sleeps" before the look for a free slot: either the look finds the slot, or who
            // gave it back finds us. Pairs with [XOL-6], [XOL-8], and with the locked instruction of the release routine.
            control.waiters.fetch_add(1, SeqCst);
            // [XOL-6] Orders the number before the look: a slot given back after it makes the sleep end at once.
            // Pairs with [XOL-4].
            let seq = control.seq.load(Acquire);
            let got = attempt();
            if got.is_none() {
                self.slept.fetch_add(1, Relaxed);
                let _ = sys::futex_wait(&control.seq, seq, None);
            }
            control.waiters.fetch_sub(1, SeqCst);
            if let Some(got) = got {
                return got;
            }
        }
    }

    /// Threads that are in a slot now, or on their way there.
    pub fn users(&self) -> u32 {
        let control = self.control();
        let out_of_use = (self.pages * (PAGE_SLOTS - 1) - self.slots()) as u32;
        // [XOL-9] Orders what a thread did in its slot before its being gone. Pairs with [XOL-8].
        let taken: u32 = match self.options.scheme {
            Scheme::Dynamic => {
                control.bitmap[..self.pages].iter().map(|w| w.load(Acquire).count_ones() - 1).sum()
            }
            Scheme::Cached => control.users.iter().map(|n| n.load(Acquire) & !WRITER).sum(),
        };
        taken - out_of_use
    }
}
