//! The area as its owner writes it.
//!
//! For:     the controller: tables are added while hits read.
//! State:   which modules are in the index; how far the area is used.
//! Context: control.
//! Keeps:   A1 what an index names is written before the index is named, and never changed after.
//!          A2 a file's table is in the area once, wherever and however often it is mapped.
//! Checked: tests below; tests/tables.rs.

use crate::make::Table;
use crate::tables::{ENTRY, HEAD_WORDS, INDEX};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Relaxed, Release};
use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;
use std::vec::Vec;

/// A module of the process that has a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded<K> {
    /// Where its code is.
    pub range: Range<u64>,
    /// What was added to the addresses of its file.
    pub bias: u64,
    /// Which file it is.
    pub file: K,
}

/// What is in an area, by its owner.
#[derive(Debug)]
pub struct Area<K> {
    tables: HashMap<K, Option<usize>>,
    used: usize,
}

impl<K: Clone + Eq + Hash> Default for Area<K> {
    fn default() -> Self {
        Area { tables: HashMap::new(), used: HEAD_WORDS }
    }
}

impl<K: Clone + Eq + Hash> Area<K> {
    /// Whether this file has been added, with or without a table.
    pub fn has(&self, file: &K) -> bool {
        self.tables.contains_key(file)
    }

    /// Words in use.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Adds a file's table, or notes that it has none; false if there is no room for it.
    pub fn add(&mut self, area: &[AtomicU32], file: K, table: Option<&Table>) -> bool {
        if self.has(&file) {
            return true;
        }
        let place = table.filter(|table| table.rows > 0).map(|table| self.put(area, &table.words));
        let is_placed = place != Some(None);
        self.tables.insert(file, place.flatten());
        is_placed
    }

    /// Makes these the modules that walks know, in the place of those before; those whose file has no table are left out.
    /// False if there is no room for the index: then the one before stands.
    pub fn publish(&mut self, area: &[AtomicU32], modules: &[Loaded<K>]) -> bool {
        let mut known: Vec<(&Loaded<K>, usize)> = modules
            .iter()
            .filter_map(|module| Some((module, self.tables.get(&module.file).copied().flatten()?)))
            .collect();
        known.sort_by_key(|(module, _)| module.range.start);
        let mut words = Vec::with_capacity(1 + known.len() * ENTRY);
        words.push(known.len() as u32);
        for (module, table) in known {
            for long in [module.range.start, module.range.end, module.bias] {
                words.extend([long as u32, (long >> 32) as u32]);
            }
            words.extend([table as u32, 0]);
        }
        let (Some(at), Some(index)) = (self.put(area, &words), area.get(INDEX)) else { return false };
        // [UNWIND-2] What the index leads to is written before it is named. Pairs with [UNWIND-1].
        index.store(at as u32, Release);
        true
    }

    fn put(&mut self, area: &[AtomicU32], words: &[u32]) -> Option<usize> {
        let at = self.used;
        let to = area.get(at..at.checked_add(words.len())?)?;
        to.iter().zip(words).for_each(|(to, word)| to.store(*word, Relaxed));
        // The next begins with a cache line of its own.
        self.used = (at + words.len()).next_multiple_of(16);
        Some(at)
    }
}
