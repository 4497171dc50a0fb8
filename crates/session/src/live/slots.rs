//! Places that are given out and taken back: of consumers' descriptors, of cells.
//!
//! For:     `live::lists`.
//! State:   what is free, in blocks by size. In our memory: the arena is never asked.
//! Context: control.
//! Keeps:   P1 no place is given out twice before it is taken back.
//!          P2 what is taken back is as good as new: free neighbours become one block again.
//! Checked: tests below (P1, P2, against a plain map); `torture live`, whose arena must stay flat.

use std::collections::BTreeSet;
use std::ops::Range;

/// Places `0..n` of which some are free.
#[derive(Debug)]
pub(crate) struct Slots {
    /// Starts of free blocks of 2^k places, each at a multiple of its size.
    free: [BTreeSet<u32>; 32],
}

impl Default for Slots {
    fn default() -> Slots {
        Slots { free: std::array::from_fn(|_| BTreeSet::new()) }
    }
}

impl Slots {
    /// So many places in a row; `None` if there is no such room.
    pub fn take(&mut self, count: u32) -> Option<Range<u32>> {
        let order = count.checked_next_power_of_two()?.trailing_zeros() as usize;
        // The lowest there is, whatever that splits: pages that were in use are used again before others are touched.
        let blocks = (order..self.free.len()).filter_map(|k| Some((*self.free[k].first()?, k)));
        let (start, from) = blocks.min()?;
        self.free[from].remove(&start);
        let end = start + count;
        self.give(end..start + (1 << from));
        Some(start..end)
    }

    /// Takes places back, or for the first time.
    pub fn give(&mut self, places: Range<u32>) {
        let Range { mut start, end } = places;
        while start < end {
            let order = start.trailing_zeros().min((end - start).ilog2());
            self.put(start, order as usize);
            start += 1 << order;
        }
    }

    fn put(&mut self, mut start: u32, mut order: usize) {
        while order + 1 < self.free.len() && self.free[order].remove(&(start ^ 1 << order)) {
            start &= !(1 << order);
            order += 1;
        }
        let is_new = self.free[order].insert(start);
        debug_assert!(is_new, "given back twice: {start}");
    }

    /// How many places are free.
    pub fn free(&self) -> u32 {
        self.free.iter().zip(0..).map(|(blocks, order)| (blocks.len() as u32) << order).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_never_overlaps_and_what_came_back_is_one_block_again() {
        let mut slots = Slots::default();
        slots.give(37..5000);
        let mut out: Vec<Range<u32>> = Vec::new();
        let mut is_out = vec![false; 5000];
        let mut random = 12345u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (choice, size) = (random >> 33, (random >> 50) as u32 % 90 + 1);
            if choice % 2 == 0 || out.is_empty() {
                let Some(range) = slots.take(size) else { continue };
                assert_eq!(range.len(), size as usize);
                assert!(range.start >= 37 && range.end <= 5000);
                range.clone().for_each(|i| assert!(!std::mem::replace(&mut is_out[i as usize], true)));
                out.push(range);
            } else {
                let range = out.swap_remove(choice as usize % out.len());
                range.clone().for_each(|i| is_out[i as usize] = false);
                slots.give(range);
            }
            let count = is_out.iter().filter(|out| **out).count();
            assert_eq!(slots.free() as usize, 5000 - 37 - count);
        }
        out.into_iter().for_each(|range| slots.give(range));
        let mut fresh = Slots::default();
        fresh.give(37..5000);
        assert_eq!(slots.free, fresh.free);
        assert!(slots.take(2049).is_none(), "4096 in a row are free, but at no multiple of it");
        assert!(slots.take(2048).is_some() && slots.take(0).is_none_or(|none| none.is_empty()));
    }
}
