//! A look for a key of a word or of half of one, and no more than that takes.
//!
//! For:     programs at hits: nearly every hit finds its key, near the head of its chain.
//! State:   none: a form.
//! Context: hit, signal, target.
//! Keeps:   G1 what is found is what [`Table::find`](super::Table::find) finds at that moment.
//!          G2 `None` and false say nothing, and nothing was done: who gets them asks the table, which looks again.
//!          G3 a look ends after [`LOOKS`] elements.
//!          G4 where a key was found before is a guess: what stands there is looked at as if it were met in a chain.
//! Checked: tests/programs/glance.rs (G1, G2 and G4 beside a table, G3 on damage, exact sums of threads); `bench scripts by-arg0`.
//!
//! A `Table` is thirty words that are computed for each call, which costs more than the look itself: an add took 25 ns by it, and
//! takes 6 so (2026-11, AMD family 26, helpers in a loop).

use super::pool::Pool;
use super::{Form, Slot};
use crate::aggregate::hist_bucket;
use crate::hash::{Bucket, DATA, END, IS_LIVE, LRU, Met, NEXT, USED, VERSION, WAS_USED, hash_of_word};
use crate::place::{ASLEEP, Place, claim_write, close_write, put_to_sleep, set_asleep, versioned_as};
use crate::prim::{Acquire, AtomicU64, Relaxed};
use crate::way::Way;
use core::ptr::NonNull;
use wire::maps::NearAdd;

/// So many elements of a chain are looked at.
const LOOKS: usize = 4;

/// Where a thread has found its key in one table: the element's index, and how often it was another one's since.
///
/// A key that a thread comes back to (its own number, a table's only one) is found without its hash and without its chain. Who has
/// other keys all the time is asked no more after [`WASTED`] looks in vain.
#[derive(Clone, Copy, Debug)]
pub struct Near<'a>(Option<&'a AtomicU64>);

/// So many looks at a place are in vain before nobody looks there again.
const WASTED: u64 = 64;

impl<'a> Near<'a> {
    /// What stands in a word of the thread's own, 0 at first; none remembers nothing.
    #[inline(always)]
    pub fn new(word: Option<&'a AtomicU64>) -> Near<'a> {
        Near(word)
    }

    /// The index, which may be any number.
    #[inline(always)]
    fn index(self) -> u32 {
        self.0.map_or(0, |word| word.load(Relaxed) as u32)
    }

    /// The key was found there instead. Code that interrupts this one leaves an index too, and what stands there is always looked at.
    fn is_at(self, index: u32) {
        let Some(word) = self.0 else { return };
        let wasted = (word.load(Relaxed) >> 32) + 1;
        if wasted <= WASTED {
            word.store(wasted << 32 | if wasted == WASTED { 0 } else { u64::from(index) }, Relaxed);
        }
    }
}

/// A table, for a glance.
#[derive(Clone, Copy, Debug)]
pub struct Glance<'a> {
    form: &'a Form,
    near: Near<'a>,
    /// Chains are not looked through.
    is_near_only: bool,
}

impl<'a> Glance<'a> {
    /// The table with this form, whose keys the thread has found at `near`.
    ///
    /// # Safety
    /// As for [`Table::at`](super::Table::at).
    #[inline(always)]
    pub unsafe fn at(form: &'a Form, near: Near<'a>) -> Glance<'a> {
        Glance { form, near, is_near_only: false }
    }

    /// The same, for keys that stand where the thread has found them before: who looks no further calls nobody, and saves no register.
    #[inline(always)]
    pub fn near_only(self) -> Glance<'a> {
        Glance { is_near_only: true, ..self }
    }

    #[inline(always)]
    fn head(&self) -> Place {
        // SAFETY: all parts lie behind the form, in the table (contract of `at`).
        unsafe { Place::new(NonNull::from(self.form).cast()) }
    }

    /// Bytes of a key, if they are a word or half of one.
    #[inline(always)]
    pub fn key_bytes(&self) -> Option<u32> {
        matches!(self.form.key, 4 | 8).then_some(self.form.key)
    }

    /// Bytes of a plain value that every thread has, if they are a word or half of one.
    #[inline(always)]
    pub fn value_bytes(&self) -> Option<u32> {
        let is_plain = self.form.agg[0] == 0 && !self.form.is_per_cpu();
        (is_plain && matches!(self.form.value, 4 | 8)).then_some(self.form.value)
    }

    /// The element of a key of so many bytes, filled up with zeros, if it is there and is found at once.
    #[inline(always)]
    pub fn find(&self, key: u64) -> Option<Slot> {
        self.meet::<false>(key)?.map(|met| Slot(met.index))
    }

    /// The same; `Some(None)` if the key is not there.
    #[inline(always)]
    pub fn find_or_gone(&self, key: u64) -> Option<Option<Slot>> {
        self.meet::<true>(key).map(|met| met.filter(|met| !met.is_asleep()).map(|met| Slot(met.index)))
    }

    /// The element of a key, `Some(None)` if it has none; of one that is gone too if `OF_SLEEPERS`, and is asleep.
    #[inline(always)]
    fn meet<const OF_SLEEPERS: bool>(&self, key: u64) -> Option<Option<Met>> {
        let index = self.near.index();
        let number = index.wrapping_sub(1);
        if number < self.form.limit
            && let Some(version) = self.is_met::<OF_SLEEPERS>(self.element(index), key)
        {
            return Some(Some(Met { index, version }));
        }
        if self.is_near_only {
            return None;
        }
        self.meet_in_chain::<OF_SLEEPERS>(key)
    }

    /// The version of this element, if it is in its chain and this key's.
    #[inline(always)]
    fn is_met<const OF_SLEEPERS: bool>(&self, element: Place, key: u64) -> Option<u32> {
        let mut version = 0;
        let is_it = versioned_as(element.u32(VERSION), |seen| {
            version = seen;
            // Who takes an element out of its chain makes its version odd first, and it stays odd until it is a key's again, for
            // which it is marked when nothing can refuse it any more.
            (OF_SLEEPERS || seen & ASLEEP == 0)
                && element.u64(DATA).load(Relaxed) == key
                && element.u32(USED).load(Relaxed) & IS_LIVE != 0
        });
        (is_it == Some(true)).then_some(version)
    }

    /// By itself: a key that is where it was needs none of its registers.
    #[inline(never)]
    fn meet_in_chain<const OF_SLEEPERS: bool>(&self, key: u64) -> Option<Option<Met>> {
        let form = self.form;
        let hash = hash_of_word(key, self.key_bytes()?);
        let bucket = Bucket::at(self.head().at(form.chains as usize), hash & form.buckets.wrapping_sub(1));
        bucket.steady(|| {
            // [MAP-50] As [MAP-22]. Pairs with [MAP-23].
            let mut index = bucket.head().load(Acquire);
            for _ in 0..LOOKS {
                // The end of a chain and what cannot be are no element's index.
                let number = index.wrapping_sub(1);
                if number >= form.limit {
                    return (index == END | bucket.number).then_some(None);
                }
                let element = self.element(index);
                if element.u64(DATA).load(Relaxed) == key {
                    let version = self.is_met::<OF_SLEEPERS>(element, key)?;
                    if form.kind & LRU == 0 {
                        self.near.is_at(index);
                    } else if element.u32(USED).load(Relaxed) & WAS_USED == 0 {
                        return None;
                    }
                    return Some(Some(Met { index, version }));
                }
                // [MAP-51] As [MAP-27]. Pairs with [MAP-23], [MAP-24].
                index = element.u32(NEXT).load(Acquire);
            }
            None
        })
    }

    /// An element whose index is within the limit.
    #[inline(always)]
    fn element(&self, index: u32) -> Place {
        let number = index.wrapping_sub(1) as usize;
        self.head().at(self.form.elements as usize + number * self.form.unit as usize)
    }

    /// Sets the value of a key that was there before, of at most a word, which is filled up with zeros; false if the table has to
    /// do it.
    #[inline(always)]
    pub fn set(&self, key: u64, value: u64, way: impl Way) -> bool {
        let Some(met) = self.value_bytes().and_then(|_| self.meet::<true>(key)?) else { return false };
        let word = self.value(Slot(met.index), 0);
        if !met.is_asleep() {
            word.u64(0).store(value, Relaxed);
            return true;
        }
        let version = self.element(met.index);
        if self.stays(met.index) {
            word.u64(0).store(value, Relaxed);
            return set_asleep(version.u32(VERSION), met.version, false);
        }
        let is_ours = claim_write(version.u32(VERSION), met.version);
        if is_ours {
            word.u64(0).store(value, Relaxed);
            close_write(version.u32(VERSION));
            self.pool().count_asleep(u64::MAX, way);
        }
        is_ours
    }

    /// Removes a key; `Some(false)` if it is not there, `None` if the table has to do it.
    #[inline(always)]
    pub fn remove(&self, key: u64, way: impl Way) -> Option<bool> {
        let is_of_stayers = self.form.stay != 0;
        let pool = self.pool();
        if !is_of_stayers && (self.form.kind & LRU != 0 || !pool.has_room()) {
            return None;
        }
        let Some(met) = self.meet::<true>(key)?.filter(|met| !met.is_asleep()) else { return Some(false) };
        if is_of_stayers {
            let version = self.element(met.index);
            let is_done = self.stays(met.index) && set_asleep(version.u32(VERSION), met.version, true);
            return is_done.then_some(true);
        }
        put_to_sleep(self.element(met.index).u32(VERSION), met.version).then(|| {
            pool.count_asleep(1, way);
            true
        })
    }

    /// Whether an element that was met is its key's for ever.
    #[inline(always)]
    fn stays(&self, index: u32) -> bool {
        u64::from(index) <= self.form.stay
    }

    #[inline(always)]
    fn pool(&self) -> Pool<Place> {
        let place = self.head().at(self.form.pool as usize);
        Pool { place, cpus: self.form.cpus, limit: self.form.limit }
    }

    /// The address of a value that was found: of a per-CPU table that of the thread's CPU.
    #[inline(always)]
    pub fn address(&self, slot: Slot, way: impl Way) -> NonNull<u8> {
        let cpu = if self.form.is_per_cpu() { way.cpu() } else { u32::MAX };
        self.value(slot, if cpu < self.form.cpus { 1 + cpu } else { 0 }).ptr()
    }

    /// Takes a value into what a key aggregates; false if the table has to do it.
    #[inline(always)]
    pub fn add(&self, key: u64, value: u64, way: impl Way) -> bool {
        let n = match self.form.agg[0] & 0xff {
            COUNT => 1,
            SUM_OF => value,
            HIST => return self.add_to_bucket(key, value, way),
            _ => return false,
        };
        self.add_to(0, key, n, way)
    }

    /// By itself: the others need none of its registers.
    #[inline(never)]
    fn add_to_bucket(&self, key: u64, value: u64, way: impl Way) -> bool {
        self.add_to(bucket_of(value, self.form.agg[1] as u8, self.form.value / 8), key, 1, way)
    }

    #[inline(always)]
    fn add_to(&self, word: usize, key: u64, n: u64, way: impl Way) -> bool {
        let Some(slot) = self.find(key) else { return false };
        let cpu = way.cpu();
        cpu < self.form.cpus && way.add(cpu, self.value(slot, 1 + cpu).u64(8 * word), n)
    }

    /// One copy of a value that was found, whose index is within the limit.
    #[inline(always)]
    fn value(&self, slot: Slot, copy: u32) -> Place {
        let (form, number) = (self.form, slot.0.wrapping_sub(1) as usize);
        let within = number * form.value_unit as usize + copy as usize * form.copy_stride as usize;
        self.head().at(form.values as usize + within)
    }
}

/// The word of a histogram that a value is counted on: the last one, of what is beyond them.
#[inline(always)]
fn bucket_of(value: u64, bits: u8, words: u32) -> usize {
    hist_bucket(value.cast_signed(), bits).min(words.saturating_sub(1) as usize)
}

/// A key whose element stays its own is gone from here on, or there again; false if its version is not what was seen any more.
///
/// # Safety
/// `version` must be the version of an element of a table that is mapped, which was found awake or asleep as the other of the two.
#[inline(always)]
pub unsafe fn set_key_asleep(version: *mut u32, seen: u32, is_asleep: bool) -> bool {
    // SAFETY: of an element, valid, aligned, used as an atomic (contract).
    set_asleep(unsafe { crate::prim::AtomicU32::from_ptr(version) }, seen, is_asleep)
}

/// Takes a value into a key's words, as [`NearAdd::to_word`] says how; false if there are none of this CPU's.
///
/// # Safety
/// `first` must be the address of the first CPU's words of a key, `copies` the bytes from one CPU's to the next and their number, and
/// all of them mapped.
#[inline(always)]
pub unsafe fn add_to_copies(first: u64, value: u64, how: u64, copies: (u64, u32), way: impl Way) -> bool {
    let cpu = way.cpu();
    if cpu >= copies.1 {
        return false;
    }
    let (word, n) = match NearAdd::hist_of(how) {
        None => (0, value),
        Some((bits, words)) => (bucket_of(value, bits, words), 1),
    };
    let at = first + u64::from(cpu) * copies.0 + 8 * word as u64;
    // SAFETY: one of this CPU's words, aligned, used as an atomic (contract).
    way.add(cpu, unsafe { AtomicU64::from_ptr(at as *mut u64) }, n)
}

/// The aggregations that add one number to one word, as `Agg::to_words` names them.
const COUNT: u64 = 1;
/// Another one.
const SUM_OF: u64 = 2;
/// And one that adds 1 to a word that it chooses.
const HIST: u64 = 7;

#[cfg(test)]
mod tests {
    use super::{COUNT, HIST, SUM_OF};
    use crate::Agg;

    #[test]
    fn aggregations_are_named_as_they_name_themselves() {
        assert_eq!(Agg::Count.to_words()[0], COUNT);
        assert_eq!(Agg::Hist { bits: 3 }.to_words()[..2], [HIST, 3]);
        assert!([false, true].into_iter().all(|signed| Agg::Sum { signed }.to_words()[0] & 0xff == SUM_OF));
    }
}
