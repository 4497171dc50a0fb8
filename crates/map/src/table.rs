//! The hash of a program: all of it lies in one piece of memory, which is copied as it is.
//!
//! For:     programs in targets, and the controller, which makes it and goes on using it.
//! State:   a form, which says where its parts lie; counts, chains, a pool of elements, values. Of a per-CPU table values lie
//!          apart: a copy for all, then one for each CPU.
//! Context: hit, signal, target; checked: control.
//! Keeps:   T1 no more keys than the limit: there are no more elements.
//!          T2 a walk meets a key that is there all the time once.
//!          T3 what is added to an aggregate is in its sum, whatever threads do meanwhile, and whoever makes it zero.
//!          T5 a key that is removed sleeps in its chain, while half of the elements were never used: one that comes back is there by two
//!             words. Elements that sleep are taken before the table says that it is full.
//!          T6 where keys are their threads' own, the first half of all elements stay with their keys, and there are as many others, for
//!             as many keys as were asked for. What a thread does to its key touches no other.
//!          T4 through a checked table nothing outside is reached, and every call ends, whatever lies there.
//! Checked: tests/programs/table.rs (T1 to T3, threads and signals), tests/programs/sleep.rs (T5), tests/programs/stay.rs and model `stay` (T6), tests/programs/hostile.rs (T4), `bench program-maps`.
//! Source:  kernel `kernel/bpf/hashtab.c` for the meaning of preallocated maps: an element that is removed is another key's at
//!          once, so that who changes a value by its address while another removes the key may change the next key's.

mod aggregates;
mod form;
mod glance;
mod pool;
mod walk;

pub use form::{Form, Kind, Spec};
pub use glance::{Glance, Near, add_to_copies, set_key_asleep};

use crate::Error;
use crate::hash::{Entries, Flag, LRU, Met};
#[cfg(feature = "std")]
use crate::place::Checked;
use crate::place::{Access, Place};
use crate::prim::Relaxed;
use crate::way::Way;
use core::ptr::NonNull;
use pool::Pool;

/// How often a key is looked for that others change.
const TRIES: u32 = 16;

/// A program's hash, as whoever uses it sees it.
pub struct Table<M: Access = Place> {
    entries: Entries<M>,
    pool: Pool<M>,
    agg: [u64; 4],
    is_per_cpu: bool,
    is_lru: bool,
    is_of_stayers: bool,
}

/// An element of a table; it may be another key's by the time that it is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot(pub u32);

impl Table {
    /// The table with this form, of which it is the head.
    ///
    /// # Safety
    /// The form must be that of a table which lies there as [`Form::lay_out`] made it, in memory that is mapped as long as the
    /// value is used, and be changed by nobody.
    #[inline(always)]
    pub unsafe fn at(form: &Form) -> Table {
        // SAFETY: all parts lie behind the form, in the table (contract).
        let head = unsafe { Place::new(NonNull::from(form).cast()) };
        Table::over(head, form)
    }

    /// The address of a value: of a per-CPU table that of the thread's CPU.
    #[inline(always)]
    pub fn address(&self, slot: Slot, way: impl Way) -> NonNull<u8> {
        self.entries.value_of(slot.0, self.copy(way)).ptr()
    }
}

#[cfg(feature = "std")]
impl<'a> Table<Checked<'a>> {
    /// The table of this form, which is the caller's own, `offset` bytes into memory that somebody else writes.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it does not fit there.
    pub fn in_untrusted(
        memory: wire::Untrusted<'a>,
        offset: usize,
        form: &Form,
    ) -> Result<Table<Checked<'a>>, Error> {
        let head = Checked::new(memory, offset, form.len()).ok_or(Error::Damaged)?;
        Ok(Table::over(head, form))
    }
}

impl<M: Access> Table<M> {
    #[inline(always)]
    fn over(head: M, form: &Form) -> Table<M> {
        let entries = form.entries(head);
        Table {
            pool: Pool { place: entries.credits(), cpus: form.cpus, limit: form.limit },
            entries,
            agg: form.agg,
            is_per_cpu: form.is_per_cpu(),
            is_lru: form.kind & LRU != 0,
            is_of_stayers: form.stay != 0,
        }
    }

    /// Bytes of a key.
    #[inline(always)]
    pub fn key_bytes(&self) -> usize {
        self.entries.key_bytes()
    }

    /// Bytes of a value.
    #[inline(always)]
    pub fn value_bytes(&self) -> usize {
        self.entries.value_bytes()
    }

    /// How many keys there are; exact while nobody changes it.
    pub fn len(&self) -> u32 {
        if self.is_of_stayers {
            // Who wakes and sleeps by a store counts nothing.
            let live = (1..=self.pool.used()).filter(|index| self.entries.is_live(*index));
            return u32::try_from(live.count()).unwrap_or(u32::MAX);
        }
        let asleep = u32::try_from(self.pool.asleep()).unwrap_or(0);
        self.entries.len().saturating_sub(asleep)
    }

    /// True without keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls that ended in Busy.
    pub fn busy(&self) -> u64 {
        self.entries.busy()
    }

    /// Keys that were forgotten to make room.
    pub fn evicted(&self) -> u64 {
        self.entries.evicted()
    }

    /// The copy of a value that a thread has.
    #[inline(always)]
    fn copy(&self, way: impl Way) -> u32 {
        let cpu = if self.is_per_cpu { way.cpu() } else { u32::MAX };
        if cpu < self.pool.cpus { 1 + cpu } else { 0 }
    }

    /// The element of a key.
    ///
    /// # Errors
    /// NotFound, Length, Busy.
    #[inline(always)]
    pub fn find(&self, key: &[u8]) -> Result<Slot, Error> {
        Error::check(key.len(), self.key_bytes())?;
        match <&[u8; 8]>::try_from(key) {
            Ok(key) => self.find_one(key),
            Err(_) => self.find_any(key),
        }
    }

    #[inline(always)]
    fn find_one(&self, key: &[u8]) -> Result<Slot, Error> {
        self.entries.find(key, |element, index| {
            self.entries.use_it(element);
            Slot(index)
        })
    }

    #[inline(never)]
    fn find_any(&self, key: &[u8]) -> Result<Slot, Error> {
        self.find_one(key)
    }

    /// The element of a key, which is made of zeros if it is not there: one walk for a key that is.
    ///
    /// # Errors
    /// Full, Busy, Length.
    #[inline(always)]
    pub fn find_or_init(&self, key: &[u8], way: impl Way) -> Result<Slot, Error> {
        match self.find(key) {
            Err(Error::NotFound) => self.init(key, way),
            found => found,
        }
    }

    #[cold]
    #[inline(never)]
    fn init(&self, key: &[u8], way: impl Way) -> Result<Slot, Error> {
        for _ in 0..TRIES {
            let Ok(met) = self.entries.seek(key) else { break };
            if !met.is_asleep() || self.wake(met, way, |index| self.clean(index)) {
                return Ok(Slot(met.index));
            }
        }
        let own = self.pool.of(&self.entries, way.cpu());
        let made = self.entries.find_or_make(&own, key, |index| self.clean(index));
        made.map(|(index, _)| Slot(index)).map_err(Self::named)
    }

    /// Makes a key be there whose element is asleep, once `write` has written all of its value; false if somebody else did something to it.
    #[inline(always)]
    fn wake(&self, met: Met, way: impl Way, write: impl FnOnce(u32)) -> bool {
        if self.entries.stays(met.index) {
            write(met.index);
            return self.entries.set_asleep(met, false);
        }
        let is_awake = self.entries.rewrite(met, write);
        if is_awake {
            self.pool.count_asleep(u64::MAX, way);
        }
        is_awake
    }

    /// No element is left: that is a full map.
    fn named(error: Error) -> Error {
        if error == Error::NoMemory { Error::Full } else { error }
    }

    /// Sets a key's value, of a per-CPU table the thread's.
    ///
    /// # Errors
    /// Full, Exists, NotFound by the flag, Busy, Length.
    pub fn update(&self, key: &[u8], value: &[u8], flag: Flag, way: impl Way) -> Result<(), Error> {
        Error::check(value.len(), self.value_bytes())?;
        let copy = self.copy(way);
        let write = |index: u32| self.entries.value_of(index, copy).write(value);
        // A key that comes and goes under us is somebody's who changes it too: one of the two is first.
        for _ in 0..TRIES {
            let is_done = match self.entries.seek(key) {
                Ok(met) if met.is_asleep() => {
                    if flag == Flag::Exist {
                        return Err(Error::NotFound);
                    }
                    self.wake(met, way, |index| {
                        // A word is written whole.
                        if self.is_per_cpu || value.len() > 8 {
                            self.clean(index);
                        }
                        write(index);
                    })
                }
                Ok(_) if flag == Flag::NoExist => return Err(Error::Exists),
                Ok(met) if value.len() <= 8 || self.is_per_cpu => {
                    write(met.index);
                    true
                }
                // Readers see the old value or the new one.
                Ok(met) => self.entries.rewrite(met, write),
                Err(Error::NotFound) if flag == Flag::Exist => return Err(Error::NotFound),
                Err(Error::NotFound) => {
                    let own = self.pool.of(&self.entries, way.cpu());
                    let made = self.entries.make(&own, key, Flag::NoExist, |index| {
                        self.clean(index);
                        write(index);
                    });
                    match made {
                        Err(Error::Exists) if flag == Flag::Any => false,
                        made => return made.map(|_| ()).map_err(Self::named),
                    }
                }
                Err(error) => return Err(error),
            };
            if is_done {
                return Ok(());
            }
        }
        Err(self.entries.said_busy())
    }

    /// Removes a key.
    ///
    /// # Errors
    /// NotFound, Busy, Length.
    pub fn delete(&self, key: &[u8], way: impl Way) -> Result<(), Error> {
        Error::check(key.len(), self.key_bytes())?;
        if self.is_of_stayers {
            for _ in 0..TRIES {
                let met = self.entries.seek(key)?;
                if met.is_asleep() {
                    return Err(Error::NotFound);
                }
                if !self.entries.stays(met.index) {
                    break;
                }
                if self.entries.set_asleep(met, true) {
                    return Ok(());
                }
            }
        }
        if self.is_lru || self.is_of_stayers || !self.pool.has_room() {
            return self.entries.remove(&self.pool.of(&self.entries, way.cpu()), key);
        }
        for _ in 0..TRIES {
            let met = self.entries.seek(key)?;
            if met.is_asleep() {
                return Err(Error::NotFound);
            }
            if self.entries.let_sleep(met) {
                self.pool.count_asleep(1, way);
                return Ok(());
            }
        }
        Err(self.entries.said_busy())
    }

    /// Removes all keys that are there all the time.
    pub fn clear(&self) {
        self.entries.remove_all(&self.pool.of(&self.entries, u32::MAX));
    }

    /// Copies a value, of a per-CPU table what one CPU has (0: the copy for all).
    pub fn read(&self, slot: Slot, copy: u32, to: &mut [u8]) {
        let to = to.split_at_mut(to.len().min(self.value_bytes())).0;
        self.entries.value_of(slot.0, copy).read(to);
    }

    /// How many copies of a value there are.
    pub fn copies(&self) -> u32 {
        if self.is_per_cpu { 1 + self.pool.cpus } else { 1 }
    }

    /// A word of a value: what it holds becomes `new` if it is `old`; else what it holds. `None` if there is no such word.
    pub fn exchange(&self, slot: Slot, at: usize, old: u64, new: u64) -> Option<Result<u64, u64>> {
        let is_there = at.is_multiple_of(8) && at + 8 <= self.value_bytes().next_multiple_of(8);
        let word = self.entries.value_of(slot.0, 0);
        is_there.then(|| word.u64(at).compare_exchange(old, new, Relaxed, Relaxed))
    }
}
