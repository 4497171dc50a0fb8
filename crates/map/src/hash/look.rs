//! Lookup.
//!
//! For:     programs; whoever looks on from another process.
//! State:   chains.
//! Context: hit, signal, target, control.
//! Keeps:   see `hash`.
//! Checked: model `hash`, tests/semantics.rs, tests/untrusted.rs.

use super::{Entries, LRU, USED, WAS_USED};
use crate::Error;
use crate::place::Access;
use crate::prim::Relaxed;

impl<M: Access> Entries<M> {
    /// Copies the value of a key; of a per-CPU hash that of the calling CPU.
    ///
    /// # Errors
    /// NotFound, Length, Busy if the map changes under every try.
    #[inline]
    pub fn get(&self, key: &[u8], out: &mut [u8]) -> Result<(), Error> {
        self.get_copy(key, self.my_copy(), out)
    }

    /// Copies the value that one CPU has for a key.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    #[inline]
    pub fn get_copy(&self, key: &[u8], copy: u32, out: &mut [u8]) -> Result<(), Error> {
        Error::check(key.len(), self.key)?;
        Error::check(out.len(), self.value)?;
        // A division would cost more than the rest of a lookup.
        let copy = if copy < self.copies { copy } else { copy % self.copies };
        self.find(key, |element, index| {
            self.use_it(element);
            self.value_of(index, copy).read(out);
        })
    }

    /// The sum over all copies of the first word of a key's value.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn sum(&self, key: &[u8]) -> Result<u64, Error> {
        Error::check(key.len(), self.key)?;
        let word = |index, copy| self.value_of(index, copy).u64(0).load(Relaxed);
        self.find(key, |_, index| (0..self.copies).fold(0, |sum: u64, c| sum.wrapping_add(word(index, c))))
    }

    #[inline(always)]
    pub(crate) fn use_it(&self, element: M) {
        if M::IS_TRUSTED && self.shape.kind & LRU != 0 && element.u32(USED).load(Relaxed) & WAS_USED == 0 {
            // The other bit may be another's to change.
            element.u32(USED).fetch_or(WAS_USED, Relaxed);
        }
    }
}
