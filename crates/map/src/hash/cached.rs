//! Update, delete, add in a hash whose elements come from a cache.
//!
//! For:     programs in the process whose worker tends the cache.
//! State:   none of its own.
//! Context: hit, signal, target.
//! Keeps:   see `hash`.
//! Checked: model `hash`, tests/semantics.rs, tests/init.rs.

use super::{Entries, Flag, Hash, PER_CPU, PLAIN, Store};
use crate::Error;
use crate::place::{Access, Place};
use crate::prim::Relaxed;
use core::ptr::NonNull;
use objcache::{Index, View};

/// A cache, and credits for keys beside its elements.
pub(super) struct Cached<'a> {
    entries: &'a Entries,
    view: &'a View<'static>,
}

impl Cached<'_> {
    fn back(&self, index: u32, is_plain: bool) {
        let Some(index) = Index::from_raw(index) else { return };
        if is_plain {
            // SAFETY: unlinked by this thread, or never linked; readers tell by the version.
            unsafe { self.view.free(index) };
        } else {
            // SAFETY: unlinked by this thread.
            unsafe { self.view.free_rcu(index) };
        }
    }
}

impl Store for Cached<'_> {
    #[inline(always)]
    fn take(&self) -> Option<u32> {
        self.view.alloc().map(Index::get)
    }

    fn untake(&self, index: u32) {
        self.back(index, true);
    }

    fn give(&self, index: u32) {
        self.back(index, self.entries.shape.kind & PLAIN != 0);
    }

    fn may_add(&self) -> bool {
        self.entries.credits.take()
    }

    fn has_removed(&self) {
        self.entries.credits.give();
    }
}

impl Hash {
    #[inline(always)]
    pub(super) fn store(&self) -> Cached<'_> {
        Cached { entries: &self.entries, view: &self.view }
    }

    /// The address of a key's value, to be changed in place.
    ///
    /// # Errors
    /// NotFound, Length, Busy.
    /// # Context
    /// In a reader of the cache's domain, which keeps the value what it is; without one, or in a map with
    /// plain free, the bytes may come to be another key's value.
    #[inline]
    pub fn value_ptr(&self, key: &[u8]) -> Result<NonNull<u8>, Error> {
        Error::check(key.len(), self.key)?;
        let copy = self.my_copy();
        self.find(key, |element, index| {
            self.use_it(element);
            self.value_of(index, copy).ptr()
        })
    }

    /// The address of a key's value, which is made of `init` if the key is not there: one walk for a key that is.
    ///
    /// Of a per-CPU hash that of the calling CPU; those of others begin as zeros.
    ///
    /// # Errors
    /// As [`update`](Self::update).
    /// # Context
    /// As [`value_ptr`](Self::value_ptr).
    #[inline]
    pub fn value_or_init(&self, key: &[u8], init: &[u8]) -> Result<NonNull<u8>, Error> {
        Error::check(key.len(), self.key)?;
        Error::check(init.len(), self.value)?;
        let copy = self.my_copy();
        let first = |index| {
            self.zero(index);
            self.value_of(index, copy).write(init);
        };
        self.find_or_make(&self.store(), key, first).map(|(index, _)| self.value_of(index, copy).ptr())
    }

    /// Adds to the first word of a key's value, which is made if it is not there.
    ///
    /// # Errors
    /// As [`update`](Self::update).
    /// # Context
    /// As [`value_ptr`](Self::value_ptr).
    #[inline]
    pub fn add(&self, key: &[u8], n: u64) -> Result<(), Error> {
        Error::check(key.len(), self.key)?;
        let copy = self.my_copy();
        let first = |index| {
            self.zero(index);
            self.value_of(index, copy).u64(0).store(n, Relaxed);
        };
        let (index, is_new) = self.find_or_make(&self.store(), key, first)?;
        if !is_new {
            self.value_of(index, copy).u64(0).fetch_add(n, Relaxed);
        }
        Ok(())
    }

    /// Sets the value of a key; of a per-CPU hash that of the calling CPU, the others of a new key are zeros.
    ///
    /// A value that is replaced goes to a new element: readers see the old one or the new one.
    ///
    /// # Errors
    /// Exists, NotFound by the flag; Full, NoMemory, Busy, Length.
    #[inline]
    pub fn update(&self, key: &[u8], value: &[u8], flag: Flag) -> Result<(), Error> {
        Error::check(key.len(), self.key)?;
        Error::check(value.len(), self.value)?;
        let copy = self.my_copy();
        if self.shape.kind & PER_CPU != 0 && flag != Flag::NoExist {
            // In place: only this CPU's threads write to the copy.
            let done = self.find(key, |_, index| self.value_of(index, copy).write(value));
            if done != Err(Error::NotFound) {
                return done;
            }
        }
        let fill = |index| {
            if self.copies > 1 {
                self.zero(index);
            }
            self.value_of(index, copy).write(value);
        };
        self.make(&self.store(), key, flag, fill).map(|_| ())
    }

    /// Removes a key.
    ///
    /// # Errors
    /// NotFound, Busy, Length.
    pub fn delete(&self, key: &[u8]) -> Result<(), Error> {
        Error::check(key.len(), self.key)?;
        self.remove(&self.store(), key)
    }

    fn zero(&self, index: u32) {
        let bytes = self.copies as usize * self.shape.value_stride();
        let first: Place = self.value_of(index, 0);
        (0..bytes / 8).for_each(|n| Access::u64(&first, n * 8).store(0, Relaxed));
    }
}
