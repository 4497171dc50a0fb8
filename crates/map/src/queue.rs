//! Values in the order in which they came, or the other way round.
//!
//! For:     programs: work to be done later, free numbers.
//! State:   a head with a version, which is odd while somebody changes the map; then the values.
//! Context: hit, signal, target; `nth` also in another process, and in one that does not trust the others.
//! Keeps:   Q1 each value that was pushed is popped once, whole. Q2 who finds another one at work, perhaps the one that it
//!          interrupted, gives up with Busy after a bounded time.
//! Checked: tests/queue.rs, tests/untrusted.rs, model `queue` (mutants MAP-18, no-queue-turn).
//! Source:  kernel `kernel/bpf/queue_stack_maps.c` for semantics and error numbers. Departs: Busy also outside of handlers,
//!          after a bounded wait.

#[cfg(not(loom))]
use crate::place::Checked;
use crate::place::{Access, Place, close_write, open_write, versioned, words};
#[cfg(all(feature = "std", not(loom)))]
use crate::place::{length, sized};
use crate::prim::{Acquire, Relaxed, spin};
use crate::{Error, Flag};
use core::ptr::NonNull;

const HEAD: usize = 64;
const VERSION: usize = 0;
const ENTRIES: usize = 4;
const VALUE: usize = 8;
const IS_STACK: usize = 12;
const FIRST: usize = 16;
const LEN: usize = 20;
const BUSY: usize = 24;

/// How often somebody looks before he says Busy.
const TRIES: u32 = if cfg!(loom) { 3 } else { 256 };

/// Which end a value is taken from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// The oldest first (BPF_MAP_TYPE_QUEUE).
    Queue,
    /// The newest first (BPF_MAP_TYPE_STACK).
    Stack,
}

/// A queue or a stack of values of one length.
#[derive(Clone)]
pub struct Queue<M = Place> {
    place: M,
    entries: u32,
    value: usize,
    order: Order,
    #[cfg(all(feature = "std", not(loom)))]
    home: Option<(objcache::Arena, usize)>,
}

/// Writes the head of an empty queue into a model's memory.
#[cfg(loom)]
pub fn lay_out_queue(base: NonNull<u8>, entries: u32, value: usize) {
    // SAFETY: a model's memory.
    let place = unsafe { Place::new(base) };
    [(VERSION, 2), (ENTRIES, entries), (VALUE, value as u32)]
        .into_iter()
        .for_each(|(at, word)| place.u32(at).store(word, Relaxed));
}

impl Queue {
    /// An empty one for so many values.
    ///
    /// # Errors
    /// [`Error::Setup`].
    #[cfg(all(feature = "std", not(loom)))]
    pub fn create(
        arena: &objcache::Arena,
        order: Order,
        entries: u32,
        value_bytes: usize,
    ) -> Result<Queue, Error> {
        if entries == 0 {
            return Err(Error::Setup(objcache::Error::ZeroSize));
        }
        let length = length(value_bytes)?;
        let offset = arena.take(sized(HEAD, entries as usize, words(value_bytes))?)?;
        // SAFETY: taken just now; the queue keeps the arena.
        let place = unsafe { Place::new(arena.base()) }.at(offset);
        // Versions begin at 2: 0 is what returned memory reads as.
        let head =
            [(VERSION, 2), (ENTRIES, entries), (VALUE, length), (IS_STACK, (order == Order::Stack).into())];
        head.into_iter().for_each(|(at, word)| place.u32(at).store(word, Relaxed));
        Ok(Queue { place, entries, value: value_bytes, order, home: Some((arena.clone(), offset)) })
    }

    /// The one at an offset in an arena mapped at `base`, made by another process.
    ///
    /// # Safety
    /// One must lie there and stay mapped while the value is used.
    pub unsafe fn attach(base: NonNull<u8>, offset: usize) -> Queue {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new(base) }.at(offset);
        let get = |at| place.u32(at).load(Relaxed);
        Queue {
            place,
            entries: get(ENTRIES),
            value: get(VALUE) as usize,
            order: if get(IS_STACK) == 0 { Order::Queue } else { Order::Stack },
            #[cfg(all(feature = "std", not(loom)))]
            home: None,
        }
    }

    /// Where it lies in its arena, for [`attach`](Self::attach); 0 if this is an attached one.
    #[cfg(all(feature = "std", not(loom)))]
    pub fn offset(&self) -> usize {
        self.home.as_ref().map_or(0, |(_, offset)| *offset)
    }

    /// Puts a value in; in a full one [`Flag::Exist`] drops the oldest value for it (as the kernel has it).
    ///
    /// # Errors
    /// Full, Length, Busy; Exists for [`Flag::NoExist`], which means nothing here.
    pub fn push(&self, value: &[u8], flag: Flag) -> Result<(), Error> {
        Error::check(value.len(), self.value)?;
        if flag == Flag::NoExist {
            return Err(Error::Exists);
        }
        self.change(|first, len| {
            let is_full = *len == self.entries;
            if is_full && flag != Flag::Exist {
                return Err(Error::Full);
            }
            if is_full {
                (*first, *len) = (self.after(*first, 1), *len - 1);
            }
            self.entry(self.after(*first, *len)).write(value);
            *len += 1;
            Ok(())
        })
    }

    /// Takes out the value whose turn it is.
    ///
    /// # Errors
    /// NotFound if there is none; Length, Busy.
    pub fn pop(&self, out: &mut [u8]) -> Result<(), Error> {
        Error::check(out.len(), self.value)?;
        self.change(|first, len| {
            let entry = self.number(*first, *len, 0).ok_or(Error::NotFound)?;
            self.entry(entry).read(out);
            if self.order == Order::Queue {
                *first = self.after(*first, 1);
            }
            *len -= 1;
            Ok(())
        })
    }

    /// Runs `change` on the number of the oldest value and how many there are, alone.
    fn change(&self, change: impl FnOnce(&mut u32, &mut u32) -> Result<(), Error>) -> Result<(), Error> {
        let version = self.place.u32(VERSION);
        for _ in 0..TRIES {
            let old = version.load(Relaxed);
            // [MAP-18] Who has the turn sees what the last one did. Pairs with [MAP-2].
            #[cfg(not(mutant = "MAP-18"))]
            let order = Acquire;
            #[cfg(mutant = "MAP-18")]
            let order = Relaxed;
            #[cfg(not(mutant = "no-queue-turn"))]
            let is_mine = old & 1 == 0 && version.compare_exchange(old, old | 1, order, Relaxed).is_ok();
            #[cfg(mutant = "no-queue-turn")]
            let is_mine = order == Acquire;
            if is_mine {
                open_write(version);
                let (to_first, to_len) = (self.place.u32(FIRST), self.place.u32(LEN));
                let (mut first, mut len) = (to_first.load(Relaxed), to_len.load(Relaxed));
                let result = change(&mut first, &mut len);
                to_first.store(first, Relaxed);
                to_len.store(len, Relaxed);
                close_write(version);
                return result;
            }
            spin();
        }
        self.place.u64(BUSY).fetch_add(1, Relaxed);
        Err(Error::Busy)
    }
}

#[cfg(not(loom))]
impl<'a> Queue<Checked<'a>> {
    /// The one for so many values of this length at an offset in memory that somebody else writes.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it does not fit there, or its head says something else.
    pub fn in_untrusted(
        arena: wire::Untrusted<'a>,
        offset: usize,
        order: Order,
        entries: u32,
        value_bytes: usize,
    ) -> Result<Self, Error> {
        let parts = value_bytes.checked_next_multiple_of(8).and_then(|v| v.checked_mul(entries as usize));
        let bytes = parts.and_then(|parts| parts.checked_add(HEAD)).ok_or(Error::Damaged)?;
        let place = Checked::new(arena, offset, bytes).ok_or(Error::Damaged)?;
        let found = [ENTRIES, VALUE, IS_STACK].map(|at| place.u32(at).load(Relaxed));
        if found.map(|n| n as usize) != [entries as usize, value_bytes, (order == Order::Stack).into()] {
            return Err(Error::Damaged);
        }
        Ok(Queue {
            place,
            entries,
            value: value_bytes,
            order,
            #[cfg(all(feature = "std", not(loom)))]
            home: None,
        })
    }
}

impl<M: Access> Queue<M> {
    /// The most values.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// How many values there are.
    pub fn len(&self) -> u32 {
        self.place.u32(LEN).load(Relaxed).min(self.entries)
    }

    /// True without values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls that ended in Busy.
    pub fn busy(&self) -> u64 {
        self.place.u64(BUSY).load(Relaxed)
    }

    /// Copies the value that would be the next to be popped.
    ///
    /// # Errors
    /// As [`pop`](Self::pop).
    pub fn peek(&self, out: &mut [u8]) -> Result<(), Error> {
        self.nth(0, out)
    }

    /// Copies the value before which so many would be popped.
    ///
    /// # Errors
    /// As [`pop`](Self::pop).
    pub fn nth(&self, nth: u32, out: &mut [u8]) -> Result<(), Error> {
        Error::check(out.len(), self.value)?;
        for _ in 0..TRIES {
            let found = versioned(self.place.u32(VERSION), || {
                let (first, len) = (self.place.u32(FIRST).load(Relaxed), self.len());
                let entry = self.number(first, len, nth)?;
                self.entry(entry).read(out);
                Some(())
            });
            match found {
                Some(found) => return found.ok_or(Error::NotFound),
                None => spin(),
            }
        }
        Err(Error::Busy)
    }

    /// Which entry has the value before which `nth` would be popped.
    fn number(&self, first: u32, len: u32, nth: u32) -> Option<u32> {
        let behind = len.checked_sub(nth.checked_add(1)?)?;
        Some(self.after(first, if self.order == Order::Queue { nth } else { behind }))
    }

    /// So many entries behind one.
    fn after(&self, entry: u32, steps: u32) -> u32 {
        // At most one turn, and less than two are left of what honest processes write.
        let at = u64::from(entry) + u64::from(steps);
        (at % u64::from(self.entries).max(1)) as u32
    }

    fn entry(&self, number: u32) -> M {
        self.place.at(HEAD + number as usize * words(self.value))
    }
}
