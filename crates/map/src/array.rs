//! Values by index.
//!
//! For:     settings, state, sums that programs keep by number.
//! State:   a head, then per entry a version and the value.
//! Context: hit, signal, target; `get` also in another process, and in one that does not trust the others.
//! Keeps:   A1 a value read is one that was written, whole. A2 a writer that finds another one at work, perhaps
//!          the one that it interrupted, gives up with Busy after a bounded time.
//! Checked: tests/semantics.rs, tests/other_process.rs.

use crate::Error;
use crate::place::{Access, Checked, Place, close_write, open_write, versioned, words};
#[cfg(all(feature = "std", not(loom)))]
use crate::place::{length, sized};
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

/// How often a reader or writer looks before it says Busy.
const TRIES: u32 = 1000;

const HEAD: usize = 64;
const ENTRIES: usize = 0;
const VALUE: usize = 4;

/// An array of values of one length.
#[derive(Clone)]
pub struct Array<M = Place> {
    place: M,
    entries: u32,
    value: usize,
    #[cfg(all(feature = "std", not(loom)))]
    home: Option<(objcache::Arena, usize)>,
}

impl Array {
    /// A new array of zeros.
    ///
    /// # Errors
    /// [`Error::Setup`].
    #[cfg(all(feature = "std", not(loom)))]
    pub fn create(arena: &objcache::Arena, entries: u32, value_bytes: usize) -> Result<Array, Error> {
        if entries == 0 {
            return Err(Error::Setup(objcache::Error::ZeroSize));
        }
        let length = length(value_bytes)?;
        let offset = arena.take(sized(HEAD, entries as usize, 8 + words(value_bytes))?)?;
        // SAFETY: taken just now; the array keeps the arena.
        let place = unsafe { Place::new(arena.base()) }.at(offset);
        place.u32(ENTRIES).store(entries, Relaxed);
        place.u32(VALUE).store(length, Relaxed);
        let array = Array { place, entries, value: value_bytes, home: Some((arena.clone(), offset)) };
        // Versions begin at 2: 0 is what returned memory reads as.
        (0..entries).for_each(|i| array.entry(i).u32(0).store(2, Relaxed));
        Ok(array)
    }

    /// The array at an offset in an arena mapped at `base`, made by another process.
    ///
    /// # Safety
    /// An array must lie there and stay mapped while the value is used.
    pub unsafe fn attach(base: NonNull<u8>, offset: usize) -> Array {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new(base) }.at(offset);
        let (entries, value) = (place.u32(ENTRIES).load(Relaxed), place.u32(VALUE).load(Relaxed) as usize);
        Array {
            place,
            entries,
            value,
            #[cfg(all(feature = "std", not(loom)))]
            home: None,
        }
    }

    /// Where it lies in its arena, for [`attach`](Self::attach); 0 if this is an attached one.
    #[cfg(all(feature = "std", not(loom)))]
    pub fn offset(&self) -> usize {
        self.home.as_ref().map_or(0, |(_, offset)| *offset)
    }
}

impl<'a> Array<Checked<'a>> {
    /// The array of so many values of this length at an offset in memory that somebody else writes.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it does not fit there, or its head says something else.
    pub fn in_untrusted(
        arena: wire::Untrusted<'a>,
        offset: usize,
        entries: u32,
        value_bytes: usize,
    ) -> Result<Self, Error> {
        let parts =
            value_bytes.checked_next_multiple_of(8).and_then(|v| (v + 8).checked_mul(entries as usize));
        let bytes = parts.and_then(|parts| parts.checked_add(HEAD)).ok_or(Error::Damaged)?;
        let place = Checked::new(arena, offset, bytes).ok_or(Error::Damaged)?;
        let found = (place.u32(ENTRIES).load(Relaxed), place.u32(VALUE).load(Relaxed) as usize);
        if found != (entries, value_bytes) {
            return Err(Error::Damaged);
        }
        Ok(Array {
            place,
            entries,
            value: value_bytes,
            #[cfg(all(feature = "std", not(loom)))]
            home: None,
        })
    }
}

impl<M: Access> Array<M> {
    /// The number of entries.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    fn entry(&self, index: u32) -> M {
        self.place.at(HEAD + index as usize * (8 + words(self.value)))
    }

    fn checked(&self, index: u32, given: usize) -> Result<M, Error> {
        Error::check(given, self.value)?;
        if index < self.entries { Ok(self.entry(index)) } else { Err(Error::NotFound) }
    }

    /// Reads a value.
    ///
    /// # Errors
    /// NotFound beyond the end, Length, Busy if a writer does not finish.
    pub fn get(&self, index: u32, out: &mut [u8]) -> Result<(), Error> {
        let entry = self.checked(index, out.len())?;
        for _ in 0..TRIES {
            if versioned(entry.u32(0), || entry.at(8).read(out)).is_some() {
                return Ok(());
            }
            core::hint::spin_loop();
        }
        Err(Error::Busy)
    }

    /// Writes a value.
    ///
    /// # Errors
    /// Full beyond the end (as the kernel says), Length, Busy if another writer does not finish.
    pub fn set(&self, index: u32, value: &[u8]) -> Result<(), Error> {
        let entry = self.checked(index, value.len()).map_err(|error| match error {
            Error::NotFound => Error::Full,
            other => other,
        })?;
        let version = entry.u32(0);
        for _ in 0..TRIES {
            let old = version.load(Relaxed);
            // [MAP-4] Taking the entry sees what the last writer did. Pairs with [MAP-2].
            if old & 1 == 0 && version.compare_exchange(old, old | 1, Acquire, Relaxed).is_ok() {
                open_write(version);
                entry.at(8).write(value);
                close_write(version);
                return Ok(());
            }
            core::hint::spin_loop();
        }
        Err(Error::Busy)
    }

    /// Adds to the word `word` (8 bytes each) of a value, in place; the sum before.
    ///
    /// # Errors
    /// NotFound beyond the end of the array or the value.
    pub fn add(&self, index: u32, word: usize, n: u64) -> Result<u64, Error> {
        if index >= self.entries || word >= self.value / 8 {
            return Err(Error::NotFound);
        }
        Ok(self.entry(index).u64(8 + word * 8).fetch_add(n, Relaxed))
    }
}

#[cfg(all(feature = "std", not(loom)))]
impl Array {
    /// Frees the array's memory.
    ///
    /// # Safety
    /// Nobody may use it any more, in any process.
    pub unsafe fn destroy(self) {
        if let Some((arena, offset)) = self.home {
            let bytes = HEAD + self.entries as usize * (8 + words(self.value));
            // SAFETY: the caller's promise.
            unsafe { arena.give_back(offset, bytes) };
        }
    }
}
