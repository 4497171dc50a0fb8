//! Helpers of maps.
//!
//! For:     programs.
//! State:   tables in the arena.
//! Context: hit.
//! Keeps:   see `map::Table`; an argument that is no map, or a key that is not the program's, is counted and changes nothing.
//! Checked: tests/helpers.

use crate::around::{Around, errno};
use crate::cell::Adder;
use map::{Error, Flag, Slot, Table};
use wire::maps::HelperError::BadArgument;

impl Around<'_> {
    #[inline(always)]
    fn table_and_key(&self, map: u64, key: u64) -> Option<(Table, &[u8])> {
        let table = self.table(map)?;
        let key = self.bytes(key, table.key_bytes() as u64)?;
        Some((table, key))
    }

    /// The same for a key of 4 or 8 bytes that was given itself.
    #[inline(always)]
    fn table_and_word<'k>(&self, map: u64, key: &'k [u8; 8]) -> Option<(Table, &'k [u8])> {
        let table = self.table(map)?;
        let key = as_long(key, table.key_bytes())?;
        Some((table, key))
    }

    /// (map, key) -> the value's address or 0.
    #[inline(always)]
    pub fn map_lookup<A: Adder>(&self, map: u64, key: u64) -> u64 {
        let Some((table, key)) = self.table_and_key(map, key) else { return self.scratch_or_none(map) };
        self.lookup::<A>(&table, key)
    }

    /// The same, of a word.
    pub fn word_lookup<A: Adder>(&self, map: u64, key: u64) -> u64 {
        let key = key.to_ne_bytes();
        let Some((table, key)) = self.table_and_word(map, &key) else { return self.refused(BadArgument, 0) };
        self.lookup::<A>(&table, key)
    }

    #[inline(always)]
    fn lookup<A: Adder>(&self, table: &Table, key: &[u8]) -> u64 {
        match table.find(key) {
            Ok(slot) => table.address(slot, self.way::<A>()).as_ptr() as u64,
            Err(Error::NotFound) => 0,
            Err(error) => {
                self.result(error);
                0
            }
        }
    }

    #[cold]
    fn scratch_or_none(&self, map: u64) -> u64 {
        if self.is_scratch(map) { self.scratch.start } else { self.refused(BadArgument, 0) }
    }

    /// (map, key) -> the value's address, made of zeros if it was not there; 0 if the map is full.
    #[inline(always)]
    pub fn lookup_or_init<A: Adder>(&self, map: u64, key: u64) -> u64 {
        let Some((table, key)) = self.table_and_key(map, key) else { return self.refused(BadArgument, 0) };
        self.init::<A>(&table, key)
    }

    /// The same, of a word.
    pub fn word_lookup_or_init<A: Adder>(&self, map: u64, key: u64) -> u64 {
        let key = key.to_ne_bytes();
        let Some((table, key)) = self.table_and_word(map, &key) else { return self.refused(BadArgument, 0) };
        self.init::<A>(&table, key)
    }

    #[inline(always)]
    fn init<A: Adder>(&self, table: &Table, key: &[u8]) -> u64 {
        let way = self.way::<A>();
        match table.find_or_init(key, way) {
            Ok(slot) => table.address(slot, way).as_ptr() as u64,
            Err(error) => {
                self.result(error);
                0
            }
        }
    }

    /// (map, key, value, flags) -> 0 or an error.
    pub fn map_update<A: Adder>(&self, map: u64, key: u64, value: u64, flags: u64) -> u64 {
        let flag = match flags {
            0 => Flag::Any,
            1 => Flag::NoExist,
            2 => Flag::Exist,
            _ => return self.refused(BadArgument, errno::EINVAL),
        };
        let found = self.table_and_key(map, key).and_then(|(table, key)| {
            let value = self.bytes(value, table.value_bytes() as u64)?;
            Some((table, key, value)).filter(|(table, ..)| table.agg().is_none())
        });
        let Some((table, key, value)) = found else { return self.refused(BadArgument, errno::EINVAL) };
        self.done(table.update(key, value, flag, self.way::<A>()))
    }

    /// (map, key, value) -> 0 or an error, of words.
    pub fn word_update<A: Adder>(&self, map: u64, key: u64, value: u64) -> u64 {
        let (key, value) = (key.to_ne_bytes(), value.to_ne_bytes());
        let found = self.table_and_word(map, &key).and_then(|(table, key)| {
            let value = as_long(&value, table.value_bytes())?;
            Some((table, key, value)).filter(|(table, ..)| table.agg().is_none())
        });
        let Some((table, key, value)) = found else { return self.refused(BadArgument, errno::EINVAL) };
        self.done(table.update(key, value, Flag::Any, self.way::<A>()))
    }

    /// (map, key) -> 0 or an error.
    pub fn map_delete<A: Adder>(&self, map: u64, key: u64) -> u64 {
        let Some((table, key)) = self.table_and_key(map, key) else {
            return self.refused(BadArgument, errno::EINVAL);
        };
        self.done(table.delete(key, self.way::<A>()))
    }

    /// The same, of a word.
    pub fn word_delete<A: Adder>(&self, map: u64, key: u64) -> u64 {
        let key = key.to_ne_bytes();
        let Some((table, key)) = self.table_and_word(map, &key) else {
            return self.refused(BadArgument, errno::EINVAL);
        };
        self.done(table.delete(key, self.way::<A>()))
    }

    /// (map, key, value, time) -> 0 or an error: takes a value into an aggregate.
    #[inline(always)]
    pub fn aggregate<A: Adder>(&self, map: u64, key: u64, value: u64, stamp: u64) -> u64 {
        let Some((table, key)) = self.table_and_key(map, key) else {
            return self.refused(BadArgument, errno::EINVAL);
        };
        self.done(table.aggregate(key, value, stamp, self.way::<A>()))
    }

    /// The same, of a word.
    pub fn word_aggregate<A: Adder>(&self, map: u64, key: u64, value: u64, stamp: u64) -> u64 {
        let key = key.to_ne_bytes();
        let Some((table, key)) = self.table_and_word(map, &key) else {
            return self.refused(BadArgument, errno::EINVAL);
        };
        self.done(table.aggregate(key, value, stamp, self.way::<A>()))
    }

    #[inline(always)]
    fn done(&self, done: Result<(), Error>) -> u64 {
        done.map_or_else(|error| self.result(error), |()| 0)
    }

    /// (map, key) -> one number of an aggregate over all CPUs, 0 without an element.
    pub fn aggregated(&self, map: u64, key: u64) -> u64 {
        let Some((table, key)) = self.table_and_key(map, key) else { return self.refused(BadArgument, 0) };
        table.find(key).map_or(0, |slot| table.aggregated(slot))
    }

    /// (map) -> number of elements.
    pub fn map_len(&self, map: u64) -> u64 {
        self.table(map).map_or_else(|| self.refused(BadArgument, 0), |table| u64::from(table.len()))
    }

    /// (map, cursor, key, value) -> 1 and the next element, or 0 at the end.
    pub fn map_next(&self, map: u64, cursor: u64, key: u64, value: u64) -> u64 {
        let Some(table) = self.table(map) else { return self.refused(BadArgument, 0) };
        let is_agg = table.agg().is_some();
        let value_len = if is_agg { 8 } else { table.value_bytes() as u64 };
        let is_ours = self.may_write(cursor, 8)
            && self.may_write(key, table.key_bytes() as u64)
            && self.may_write(value, value_len);
        let Some(at) = self.bytes(cursor, 8).filter(|_| is_ours).and_then(|at| at.first_chunk::<8>()) else {
            return self.refused(BadArgument, 0);
        };
        let mut slot = Slot(u32::try_from(u64::from_ne_bytes(*at)).unwrap_or(u32::MAX));
        while let Some(next) = table.next(slot) {
            slot = next;
            let is_read = self.bytes_mut(key, table.key_bytes() as u64).is_some_and(|to| table.key(slot, to));
            let Some(to) = self.bytes_mut(value, value_len).filter(|_| is_read) else { continue };
            match is_agg {
                true => put(to, table.aggregated(slot)),
                // One that changes at every look is as good as gone.
                false if !table.value(slot, to) => continue,
                false => {}
            }
            if let Some(to) = self.bytes_mut(cursor, 8) {
                put(to, slot.0.into());
            }
            return 1;
        }
        0
    }
}

/// A word's bytes, or those of its lower half.
#[inline(always)]
fn as_long(word: &[u8; 8], len: usize) -> Option<&[u8]> {
    word.get(..len).filter(|_| matches!(len, 4 | 8))
}

/// Writes a word to as many bytes.
fn put(to: &mut [u8], mut word: u64) {
    for byte in to {
        (*byte, word) = (word as u8, word >> 8);
    }
}
