//! Values into the aggregates of a table, and their sums.
//!
//! For:     programs; whoever shows them.
//! State:   an element's words: a copy for all, then one for each CPU.
//! Context: hit, signal, target; checked: control.
//! Keeps:   see `table`, T3. No word of a CPU is ever set to zero while it is added to: what is to be forgotten is taken off the
//!          copy for all.
//! Checked: tests/programs/table.rs.

use super::{Slot, Table};
use crate::Error;
use crate::aggregate::{Agg, Effect, in_series};
use crate::place::Access;
use crate::prim::{Acquire, AtomicU64, Relaxed, Release};
use crate::way::{Outside, Way};

/// Set in the first word of an interval while somebody changes it.
const TAKEN: u64 = 1 << 63;
/// How often a word is tried.
const TRIES: u32 = 16;
/// Words of an interval.
const FOUR: usize = 4;

/// One word.
struct Word<M>(M);

impl<M: Access> core::ops::Deref for Word<M> {
    type Target = AtomicU64;

    #[inline(always)]
    fn deref(&self) -> &AtomicU64 {
        self.0.u64(0)
    }
}

impl<M: Access> Table<M> {
    /// What it aggregates.
    #[inline(always)]
    pub fn agg(&self) -> Option<Agg> {
        Agg::from_words(self.agg)
    }

    /// Takes a value into a key's aggregate, which is made if it is not there.
    ///
    /// # Errors
    /// Full, Busy, Length; NotFound if it is a table of plain values.
    #[inline(always)]
    pub fn aggregate(&self, key: &[u8], value: u64, stamp: u64, way: impl Way) -> Result<(), Error> {
        let slot = self.find_or_init(key, way)?;
        // The commonest first: it needs nothing of the value.
        if self.agg[0] == 1 {
            self.add(slot, 0, 1, way);
            return Ok(());
        }
        self.take_in(slot, value, stamp, way)
    }

    /// Takes a value in so many times, from outside: of a count, a sum, a histogram.
    ///
    /// # Errors
    /// As for [`aggregate`](Self::aggregate); NotFound for other aggregates too.
    pub fn aggregate_many(&self, key: &[u8], value: u64, times: u64) -> Result<(), Error> {
        let effect = self.agg().map(|agg| agg.effect(value, 0));
        let Some(Effect::Add { word, n }) = effect else { return Err(Error::NotFound) };
        let slot = self.find_or_init(key, Outside)?;
        self.add(slot, word, n.wrapping_mul(times), Outside);
        Ok(())
    }

    fn take_in(&self, slot: Slot, value: u64, stamp: u64, way: impl Way) -> Result<(), Error> {
        let agg = self.agg().ok_or(Error::NotFound)?;
        match agg.effect(value, stamp) {
            Effect::Add { word, n } => self.add(slot, word, n, way),
            Effect::AddBoth => {
                self.add(slot, 0, 1, way);
                self.add(slot, 1, value, way);
            }
            Effect::Raise(to) => {
                self.raise(slot, 0, to, way);
                self.raise(slot, 1, 1, way);
            }
            Effect::Series { epoch, slot: at } => {
                return self.in_interval(slot, at, epoch, (value, stamp), agg, way);
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn add(&self, slot: Slot, word: usize, n: u64, way: impl Way) {
        let cpu = way.cpu();
        if cpu < self.pool.cpus {
            let copy = self.entries.value_of(slot.0, 1 + cpu);
            if way.add(cpu, copy.u64(8 * word), n) {
                return;
            }
        }
        self.entries.value_of(slot.0, 0).u64(8 * word).fetch_add(n, Relaxed);
    }

    /// Raises a word to a number, in the thread's copy or in that for all.
    fn raise(&self, slot: Slot, word: usize, to: u64, way: impl Way) {
        for _ in 0..TRIES {
            let cpu = way.cpu();
            if cpu >= self.pool.cpus {
                break;
            }
            let copy = self.entries.value_of(slot.0, 1 + cpu);
            let old = copy.u64(8 * word).load(Relaxed);
            if old >= to || way.store_if(cpu, copy.u64(8 * word), old, to) {
                return;
            }
        }
        self.entries.value_of(slot.0, 0).u64(8 * word).fetch_max(to, Relaxed);
    }

    /// Takes a value into an interval of whatever copy nobody changes just now: the thread's own first.
    fn in_interval(
        &self,
        slot: Slot,
        at: usize,
        epoch: u64,
        (value, stamp): (u64, u64),
        agg: Agg,
        way: impl Way,
    ) -> Result<(), Error> {
        let Agg::Tseries { how, signed, .. } = agg else { return Err(Error::NotFound) };
        let own = self.copy(way);
        let copies = self.copies();
        for n in own..own + copies {
            let place = self.entries.value_of(slot.0, if n < copies { n } else { n - copies }).at(8 * at);
            let first = place.u64(0);
            let old = first.load(Relaxed);
            // [MAP-42] Sees what the last one wrote. Pairs with [MAP-43].
            if old & TAKEN != 0 || first.compare_exchange(old, old | TAKEN, Acquire, Relaxed).is_err() {
                continue;
            }
            let word = |n: usize| place.u64(8 * n).load(Relaxed);
            let new = in_series([old, word(1), word(2), word(3)], epoch, value, stamp, how, signed);
            new.into_iter().enumerate().skip(1).for_each(|(n, word)| place.u64(8 * n).store(word, Relaxed));
            // [MAP-43] The words come before the right to change them. Pairs with [MAP-42], [MAP-44].
            let [number, ..] = new;
            first.store(number & !TAKEN, Release);
            return Ok(());
        }
        Err(self.entries.said_busy())
    }

    #[inline(always)]
    fn word(&self, slot: Slot, copy: u32, word: usize) -> Word<M> {
        Word(self.entries.value_word(slot.0, copy, word))
    }

    /// The sum of a word over all copies.
    fn sum(&self, slot: Slot, word: usize) -> u64 {
        (0..self.copies()).fold(0u64, |sum, copy| sum.wrapping_add(self.word(slot, copy, word).load(Relaxed)))
    }

    /// One number of a key's aggregate over all CPUs: count, sum, smallest, largest, average; 0 of a key that is not there.
    pub fn aggregated(&self, slot: Slot) -> u64 {
        let Some(agg) = self.agg() else { return 0 };
        match agg {
            Agg::Hist { .. } | Agg::Lhist { .. } => {
                (0..self.value_bytes() / 8).fold(0u64, |sum, word| sum.wrapping_add(self.sum(slot, word)))
            }
            Agg::Min { .. } | Agg::Max { .. } => {
                let mut all = [0; 2];
                for copy in 0..self.copies() {
                    let words = [0, 1].map(|n| self.word(slot, copy, n).load(Relaxed));
                    agg.merge_into(&mut all, &words);
                }
                agg.shown(&mut all);
                all[0]
            }
            Agg::Tseries { num, .. } => {
                let firsts = (0..num.max(1) as usize)
                    .flat_map(|n| (0..self.copies()).map(move |copy| (FOUR * n, copy)));
                firsts.fold(0, |most, (word, copy)| {
                    most.max(self.word(slot, copy, word).load(Relaxed) & !TAKEN)
                })
            }
            _ => agg.number(&[self.sum(slot, 0), self.second(agg, slot)]),
        }
    }

    fn second(&self, agg: Agg, slot: Slot) -> u64 {
        if agg.words() > 1 { self.sum(slot, 1) } else { 0 }
    }

    /// The words of a key's aggregate over all CPUs, as they are shown.
    #[cfg(feature = "std")]
    pub fn words(&self, slot: Slot) -> Vec<u64> {
        let mut all = self.merged(slot);
        self.agg().into_iter().for_each(|agg| agg.shown(&mut all));
        all
    }

    /// The same as they are kept, which [`merge`](Self::merge) takes in.
    #[cfg(feature = "std")]
    pub fn merged(&self, slot: Slot) -> Vec<u64> {
        let Some(agg) = self.agg() else { return Vec::new() };
        let mut all = vec![0; agg.words()];
        let mut one = all.clone();
        for copy in 0..self.copies() {
            one.iter_mut().enumerate().for_each(|(n, word)| *word = self.word(slot, copy, n).load(Relaxed));
            if matches!(agg, Agg::Tseries { .. }) {
                one.chunks_mut(FOUR).enumerate().for_each(|(n, four)| self.interval(slot, copy, n, four));
            }
            agg.merge_into(&mut all, &one);
        }
        all
    }

    /// An interval of a copy, if need be while it is changed.
    #[cfg(feature = "std")]
    fn interval(&self, slot: Slot, copy: u32, n: usize, four: &mut [u64]) {
        for _ in 0..TRIES {
            // [MAP-44] Words that belong together. Pairs with [MAP-43].
            let first = self.word(slot, copy, FOUR * n).load(Acquire);
            for (i, word) in four.iter_mut().enumerate().skip(1) {
                *word = self.word(slot, copy, FOUR * n + i).load(Relaxed);
            }
            four[0] = first & !TAKEN;
            if first & TAKEN == 0 && self.word(slot, copy, FOUR * n).load(Relaxed) == first {
                return;
            }
        }
    }

    /// Makes an element's value zero, for a new key.
    pub(super) fn clean(&self, index: u32) {
        // An element that was never used is zeros.
        if self.entries.is_first_use(index) {
            return;
        }
        self.forget(Slot(index));
    }

    /// Makes a value zero that others may be adding to.
    fn forget(&self, slot: Slot) {
        let words = self.value_bytes().div_ceil(8);
        let is_sum = self.agg().is_some_and(Agg::is_sum);
        for word in 0..words {
            if is_sum {
                self.word(slot, 0, word).fetch_sub(self.sum(slot, word), Relaxed);
            } else {
                (0..self.copies()).for_each(|copy| self.word(slot, copy, word).store(0, Relaxed));
            }
        }
    }

    /// Takes words that were aggregated elsewhere into a key's, which is made if it is not there.
    ///
    /// # Errors
    /// As for [`aggregate`](Self::aggregate).
    #[cfg(feature = "std")]
    pub fn merge(&self, key: &[u8], words: &[u64], way: impl Way) -> Result<(), Error> {
        let agg = self.agg().ok_or(Error::NotFound)?;
        let slot = self.find_or_init(key, way)?;
        for (n, word) in words.iter().enumerate().take(agg.words()).filter(|(_, word)| **word != 0) {
            let own = self.word(slot, 0, n);
            match agg {
                Agg::Min { .. } | Agg::Max { .. } => own.fetch_max(*word, Relaxed),
                Agg::Tseries { .. } => own.swap(*word, Relaxed),
                _ => own.fetch_add(*word, Relaxed),
            };
        }
        Ok(())
    }

    /// The words of a key's aggregate over all CPUs, which are taken out of it: nothing that is added meanwhile is lost, or counted
    /// twice. For sums alone; of others what is there is left.
    #[cfg(feature = "std")]
    pub fn take(&self, slot: Slot) -> Vec<u64> {
        let words = if self.agg().is_some_and(Agg::is_sum) { self.value_bytes() / 8 } else { 0 };
        let take = |word| {
            let sum = self.sum(slot, word);
            self.word(slot, 0, word).fetch_sub(sum, Relaxed);
            sum
        };
        (0..words).map(take).collect()
    }

    /// Makes all values zero; no key is removed.
    pub fn zero(&self) {
        let mut at = Slot(0);
        while let Some(slot) = self.next(at) {
            at = slot;
            if self.agg().is_some() {
                self.forget(slot);
                continue;
            }
            // A key that others change all the time is theirs.
            let _ = (0..TRIES).any(|_| self.entries.rewrite_there(slot.0, |index| self.forget(Slot(index))));
        }
    }
}
