//! The maps of a script in the controller.
//!
//! For:     the machine: what programs do to maps, and what is printed of them.
//! State:   elements in slots; a deleted one's slot is used again only after the run of the program that deleted it.
//! Context: control; one thread.
//! Keeps:   M1 a value's address stays good until the run ends in which it was looked up.
//!          M2 no more than `max_entries` keys, no more than twice as many slots.
//! Checked: tests below, tests/scripts.rs.
//!
//! These are collections of the standard library, not the arena's maps of crate `map`: those have tables of fixed size for
//! hits in targets. This file is the only one that knows; a map that targets share takes its place behind the same functions.

use super::aggregate;
use crate::MapKind;
use crate::program::{MapDecl, words};
use crate::types::{Agg, Type};
use std::collections::HashMap;

/// A map.
#[derive(Debug)]
pub struct Map {
    /// As the script has it.
    pub decl: MapDecl,
    index: HashMap<Box<[u8]>, u32>,
    keys: Vec<Option<Box<[u8]>>>,
    /// Values of `stride` bytes.
    values: Vec<u8>,
    /// Instead of them, of aggregates.
    words: Vec<Box<[u64]>>,
    free: Vec<u32>,
    freed: Vec<u32>,
    used: Vec<u64>,
    clock: u64,
}

/// A map that takes no further key.
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

impl Map {
    pub fn new(decl: MapDecl) -> Map {
        Map {
            decl,
            index: HashMap::new(),
            keys: Vec::new(),
            values: Vec::new(),
            words: Vec::new(),
            free: Vec::new(),
            freed: Vec::new(),
            used: Vec::new(),
            clock: 0,
        }
    }

    /// Bytes from one value to the next.
    pub fn stride(&self) -> usize {
        self.decl.value_size.next_multiple_of(8).max(8)
    }

    /// What it aggregates.
    pub fn agg(&self) -> Option<Agg> {
        match self.decl.value {
            Type::Agg(agg) => Some(agg),
            _ => None,
        }
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    fn is_lru(&self) -> bool {
        matches!(self.decl.kind, MapKind::LruHash | MapKind::PercpuLruHash)
    }

    /// The slot of a key.
    pub fn find(&mut self, key: &[u8]) -> Option<u32> {
        let slot = *self.index.get(key)?;
        self.clock += 1;
        self.used[slot as usize] = self.clock;
        Some(slot)
    }

    /// The slot of a key, which is made with zeros.
    pub fn find_or_init(&mut self, key: &[u8]) -> Result<u32, Full> {
        if let Some(slot) = self.find(key) {
            return Ok(slot);
        }
        if self.index.len() >= self.decl.max_entries {
            if !self.is_lru() {
                return Err(Full);
            }
            self.evict();
        }
        let slot = self.new_slot()?;
        self.index.insert(key.into(), slot);
        self.keys[slot as usize] = Some(key.into());
        self.clock += 1;
        self.used[slot as usize] = self.clock;
        Ok(slot)
    }

    fn new_slot(&mut self) -> Result<u32, Full> {
        if let Some(slot) = self.free.pop() {
            let at = slot as usize;
            match self.agg() {
                Some(_) => self.words[at].fill(0),
                None => {
                    let stride = self.stride();
                    self.values[at * stride..][..stride].fill(0);
                }
            }
            return Ok(slot);
        }
        let slot = self.keys.len();
        if slot >= self.decl.max_entries.saturating_mul(2).max(2) || slot >= u32::MAX as usize {
            return Err(Full);
        }
        self.keys.push(None);
        self.used.push(0);
        match self.agg() {
            Some(agg) => self.words.push(vec![0; words(agg)].into()),
            None => self.values.resize(self.values.len() + self.stride(), 0),
        }
        Ok(slot as u32)
    }

    fn evict(&mut self) {
        let oldest = (0..self.keys.len()).filter(|i| self.keys[*i].is_some()).min_by_key(|i| self.used[*i]);
        if let Some(key) = oldest.and_then(|slot| self.keys[slot].clone()) {
            self.delete(&key);
        }
    }

    /// Whether there was one.
    pub fn delete(&mut self, key: &[u8]) -> bool {
        let Some(slot) = self.index.remove(key) else { return false };
        self.keys[slot as usize] = None;
        self.freed.push(slot);
        true
    }

    /// The slots of deleted elements may be used again: no program runs.
    pub fn settle(&mut self) {
        self.free.append(&mut self.freed);
    }

    /// Removes all.
    pub fn clear(&mut self) {
        *self = Map::new(self.decl.clone());
    }

    /// Makes all values zero.
    pub fn zero(&mut self) {
        self.values.fill(0);
        self.words.iter_mut().for_each(|words| words.fill(0));
    }

    /// The bytes of values from a slot's on; `None` if there are not so many.
    pub fn bytes(&mut self, slot: u32, offset: usize, len: usize) -> Option<&mut [u8]> {
        let stride = self.stride();
        let end = offset.checked_add(len)?;
        if end > stride {
            return None;
        }
        self.values.get_mut((slot as usize).checked_mul(stride)? + offset..)?.get_mut(..len)
    }

    /// The value of a slot.
    pub fn value(&self, slot: u32) -> &[u8] {
        let stride = self.stride();
        &self.values[slot as usize * stride..][..self.decl.value_size.min(stride)]
    }

    /// Takes a value into an aggregate.
    pub fn aggregate(&mut self, key: &[u8], value: u64, stamp: u64) -> Result<(), Full> {
        let slot = self.find_or_init(key)? as usize;
        if let (Some(agg), Some(words)) = (self.agg(), self.words.get_mut(slot)) {
            aggregate::update(agg, words, value, stamp);
        }
        Ok(())
    }

    /// The words of an aggregate, over all CPUs: here there is one.
    pub fn words(&self, slot: u32) -> Vec<u64> {
        match self.agg() {
            Some(agg) => aggregate::merge(agg, self.words.get(slot as usize).map(|words| &**words)),
            None => Vec::new(),
        }
    }

    /// The first element at or behind a slot.
    pub fn next(&self, from: u64) -> Option<(u64, &[u8])> {
        let from = usize::try_from(from).ok()?;
        let rest = self.keys.get(from..)?;
        let (i, key) = rest.iter().enumerate().find_map(|(i, key)| Some((i, key.as_deref()?)))?;
        Some(((from + i) as u64, key))
    }

    /// All elements: keys and slots, in no order.
    pub fn elements(&self) -> Vec<(Vec<u8>, u32)> {
        self.index.iter().map(|(key, slot)| (key.to_vec(), *slot)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Int;

    fn map(kind: MapKind, max_entries: usize) -> Map {
        let value = Type::Int(Int::new(8, true));
        Map::new(MapDecl {
            name: "@".into(),
            kind,
            key: Some(value.clone()),
            key_size: 8,
            value,
            value_size: 8,
            max_entries,
        })
    }

    #[test]
    fn a_full_map_refuses_and_one_that_drops_the_oldest_does_not() {
        let mut full = map(MapKind::Hash, 2);
        assert!(full.find_or_init(b"a").is_ok() && full.find_or_init(b"b").is_ok());
        assert_eq!(full.find_or_init(b"c"), Err(Full));
        let mut lru = map(MapKind::LruHash, 2);
        for key in [b"a", b"b", b"a", b"c"] {
            lru.find_or_init(key).unwrap();
            lru.settle();
        }
        assert!(lru.find(b"a").is_some() && lru.find(b"b").is_none() && lru.len() == 2);
    }

    #[test]
    fn a_deleted_slot_is_used_again_only_when_no_program_runs() {
        let mut map = map(MapKind::Hash, 2);
        let a = map.find_or_init(b"a").unwrap();
        map.bytes(a, 0, 8).unwrap().fill(7);
        assert!(map.delete(b"a") && !map.delete(b"a"));
        let b = map.find_or_init(b"b").unwrap();
        assert_ne!(a, b);
        assert_eq!(map.bytes(a, 0, 8).unwrap(), [7; 8]);
        map.settle();
        let c = map.find_or_init(b"c").unwrap();
        assert_eq!((c, map.bytes(c, 0, 8).unwrap().to_vec()), (a, vec![0; 8]));
        assert!(map.bytes(c, 4, 8).is_none(), "not beyond its value");
    }
}
