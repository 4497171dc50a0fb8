//! Every key of a hash, while it changes.
//!
//! For:     printing, and batch operations.
//! State:   none: a position is the number of a bucket, or a key.
//! Context: control; also in another process.
//! Keeps:   I1 a walk ends. I2 a key that is in the map all the time is met once.
//! Checked: tests/semantics.rs, tests/other_process.rs.
#![cfg(all(feature = "std", not(loom)))]

use super::bucket::Bucket;
use super::{DATA, END, Entries, Flag, Hash, NEXT, TRIES, VERSION};
use crate::Error;
use crate::place::{Access, versioned};
use core::sync::atomic::Ordering::Acquire;
use std::vec::Vec;

/// A key with its value, of a per-CPU hash with all copies one behind the other.
pub type Entry = (Vec<u8>, Vec<u8>);

impl<M: Access> Entries<M> {
    /// The keys of one bucket, read until nothing changed in between.
    fn entries_of(&self, bucket: u32, steps: &mut u64) -> Result<Vec<Entry>, Error> {
        for n in 0..TRIES {
            let bucket = self.bucket(bucket);
            let mut out = None;
            // Found by nobody, so that a change during the walk makes it begin again.
            let steady = bucket.steady::<()>(|| {
                out = self.try_entries(&bucket, steps);
                out.is_some().then_some(None)
            });
            if let (Some(None), Some(entries)) = (steady, out) {
                return Ok(entries);
            }
            // For whoever scribbles there nobody waits.
            if n > 16 && M::IS_TRUSTED {
                std::thread::yield_now();
            }
        }
        Err(self.said_busy())
    }

    fn try_entries(&self, bucket: &Bucket<M>, steps: &mut u64) -> Option<Vec<Entry>> {
        let mut out: Vec<Entry> = Vec::new();
        // [MAP-25] Sees what the first element's maker wrote. Pairs with [MAP-23].
        let mut index = bucket.head().load(Acquire);
        while index & END == 0 {
            *steps = steps.saturating_sub(1);
            if index == 0 || *steps == 0 || out.len() as u32 > self.limit() {
                return None;
            }
            let element = self.element(index);
            let (mut key, mut value) = (vec![0; self.key], vec![0; self.value * self.copies as usize]);
            let next = versioned(element.u32(VERSION), || {
                element.at(DATA).read(&mut key);
                for (copy, bytes) in value.chunks_exact_mut(self.value).enumerate() {
                    self.value_of(index, copy as u32).read(bytes);
                }
                // [MAP-28] As [MAP-25], for the next one. Pairs with [MAP-23].
                element.u32(NEXT).load(Acquire)
            })?;
            out.push((key, value));
            index = next;
        }
        (index == END | bucket.number).then_some(out)
    }

    /// Calls `each` with every key and value.
    ///
    /// # Errors
    /// Busy if one bucket changes under every try; what came before was handed over.
    pub fn for_each(&self, mut each: impl FnMut(&[u8], &[u8])) -> Result<(), Error> {
        let mut steps = self.steps(self.mask + 1);
        for bucket in 0..=self.mask {
            self.entries_of(bucket, &mut steps)?.iter().for_each(|(key, value)| each(key, value));
        }
        Ok(())
    }

    /// The key behind `key` in the order of the walk; the first for `None`, and if `key` is not there.
    ///
    /// # Errors
    /// NotFound after the last; Length, Busy.
    pub fn next_key(&self, key: Option<&[u8]>) -> Result<Vec<u8>, Error> {
        let (mut bucket, mut steps) = (0, self.steps(self.mask + 1));
        if let Some(key) = key {
            Error::check(key.len(), self.key)?;
            let own = super::hash_of(key) & self.mask;
            let entries = self.entries_of(own, &mut steps)?;
            if let Some(at) = entries.iter().position(|(k, _)| k == key) {
                match entries.into_iter().nth(at + 1) {
                    Some((next, _)) => return Ok(next),
                    None => bucket = own + 1,
                }
            }
        }
        for bucket in bucket..=self.mask {
            if let Some((first, _)) = self.entries_of(bucket, &mut steps)?.into_iter().next() {
                return Ok(first);
            }
        }
        Err(Error::NotFound)
    }

    /// About `most` entries from position `cursor` on, which moves; fewer at the end, where it is 0 again.
    ///
    /// # Errors
    /// Busy.
    pub fn get_batch(&self, cursor: &mut u32, most: usize) -> Result<Vec<Entry>, Error> {
        let mut out = Vec::new();
        // A cursor is the caller's number: one that is no bucket's begins anew.
        *cursor &= self.mask;
        let mut steps = self.steps(self.mask + 1);
        while out.len() < most {
            out.extend(self.entries_of(*cursor, &mut steps)?);
            *cursor = if *cursor == self.mask { 0 } else { *cursor + 1 };
            if *cursor == 0 {
                break;
            }
        }
        Ok(out)
    }
}

impl Hash {
    /// As [`get_batch`](Self::get_batch), and removes them; a key that somebody else removed is left off.
    ///
    /// # Errors
    /// Busy; what was removed before is lost to the caller only if it was of the same bucket.
    pub fn take_batch(&self, cursor: &mut u32, most: usize) -> Result<Vec<Entry>, Error> {
        let mut all = self.get_batch(cursor, most)?;
        all.retain(|(key, _)| self.delete(key).is_ok());
        Ok(all)
    }

    /// Sets many keys; how many, and the error that ended it.
    pub fn update_batch<'a>(
        &self,
        entries: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        flag: Flag,
    ) -> (usize, Result<(), Error>) {
        count(entries.into_iter().map(|(key, value)| self.update(key, value, flag)))
    }

    /// Removes many keys; how many, and the error that ended it.
    pub fn delete_batch<'a>(&self, keys: impl IntoIterator<Item = &'a [u8]>) -> (usize, Result<(), Error>) {
        count(keys.into_iter().map(|key| self.delete(key)))
    }

    /// Removes every key.
    pub fn clear(&self) {
        for bucket in 0..=self.mask {
            for (key, _) in self.entries_of(bucket, &mut self.steps(1)).unwrap_or_default() {
                let _ = self.delete(&key);
            }
        }
    }
}

fn count(results: impl Iterator<Item = Result<(), Error>>) -> (usize, Result<(), Error>) {
    let mut done = 0;
    for result in results {
        match result {
            Ok(()) => done += 1,
            Err(error) => return (done, Err(error)),
        }
    }
    (done, Ok(()))
}
