//! Every key of a table, while it changes.
//!
//! For:     programs that go over a map; printing.
//! State:   none: a place in the walk is an element.
//! Context: hit, signal, target; checked: control.
//! Keeps:   see `table`, T2.
//! Checked: tests/programs/table.rs.

use super::{Slot, Table};
use crate::hash::{DATA, VERSION};
use crate::place::{Access, versioned};

/// How often a key is read that others change.
const TRIES: u32 = 8;

impl<M: Access> Table<M> {
    /// How many elements were ever used.
    pub fn used(&self) -> u32 {
        self.pool.used()
    }

    /// The first element of a key behind this one; [`Slot`]`(0)` stands before all.
    pub fn next(&self, behind: Slot) -> Option<Slot> {
        let first = behind.0.checked_add(1)?;
        (first..=self.pool.used()).find(|index| self.entries.is_live(*index)).map(Slot)
    }

    /// The key of an element; false if it changes at every look.
    pub fn key(&self, slot: Slot, to: &mut [u8]) -> bool {
        let to = to.split_at_mut(to.len().min(self.key_bytes())).0;
        let element = self.entries.element(slot.0);
        (0..TRIES).any(|_| versioned(element.u32(VERSION), || element.at(DATA).read(to)).is_some())
    }

    /// The value of an element of a table of plain values, whole: of a per-CPU table the sum of numbers, or the first that is not
    /// zeros.
    pub fn value(&self, slot: Slot, to: &mut [u8]) -> bool {
        let to = to.split_at_mut(to.len().min(self.value_bytes())).0;
        let element = self.entries.element(slot.0);
        if !self.is_per_cpu {
            return (0..TRIES).any(|_| versioned(element.u32(VERSION), || self.read(slot, 0, to)).is_some());
        }
        if let Ok(to) = <&mut [u8; 8]>::try_from(&mut *to) {
            let sum = (0..self.copies()).fold(0u64, |sum, copy| {
                let mut word = [0; 8];
                self.read(slot, copy, &mut word);
                sum.wrapping_add(u64::from_ne_bytes(word))
            });
            *to = sum.to_ne_bytes();
            return true;
        }
        for copy in 0..self.copies() {
            self.read(slot, copy, to);
            if to.iter().any(|byte| *byte != 0) {
                break;
            }
        }
        true
    }
}
