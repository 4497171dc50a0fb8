//! How many have so many: counts whose highest non-empty bucket is the answer.
//!
//! For:     the split engine.
//! State:   one atomic bucket for each number from 1 to the slots; in shards where many write.
//! Context: target. Adds from anywhere; the maximum is looked for while nobody adds.
//! Keeps:   H1 the sum over shards is exact when nobody adds; one shard alone may be negative.
//! Checked: tests below, `tests/agree.rs`.

use core::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// 16 words: two cache lines, which the processor fetches together.
const LINE: usize = 16;

/// Histograms of the same number of buckets, some side by side, in one or more shards.
pub(super) struct Histograms {
    cells: Box<[AtomicI64]>,
    slots: usize,
    shards: usize,
    /// Cells of one shard.
    stride: usize,
}

impl Histograms {
    /// `many` histograms in one shard.
    pub(super) fn plain(many: usize, slots: usize) -> Self {
        Self::new(many, slots, 1)
    }

    /// `many` histograms, with one shard for each CPU of the real machine.
    pub(super) fn sharded(many: usize, slots: usize) -> Self {
        Self::new(many, slots, percpu::possible_cpus() as usize)
    }

    fn new(many: usize, slots: usize, shards: usize) -> Self {
        let stride = (many * slots).next_multiple_of(LINE);
        let cells = (0..stride * shards).map(|_| AtomicI64::new(0)).collect();
        Histograms { cells, slots, shards, stride }
    }

    fn bucket(&self, which: usize, number: u32) -> Option<&AtomicI64> {
        let shard = if self.shards == 1 { 0 } else { percpu::current_cpu() as usize % self.shards };
        let index = (number as usize).checked_sub(1)?;
        debug_assert!(index < self.slots, "more breakpoints than slots");
        self.cells.get(shard * self.stride + which * self.slots + index)
    }

    /// One that had `from` has `to` now; 0 is in no bucket.
    #[inline]
    pub(super) fn step(&self, which: usize, from: u32, to: u32) {
        if let Some(bucket) = self.bucket(which, from) {
            bucket.fetch_sub(1, Relaxed);
        }
        if let Some(bucket) = self.bucket(which, to) {
            bucket.fetch_add(1, Relaxed);
        }
    }

    /// The count of one bucket, over all shards.
    fn sum(&self, which: usize, index: usize) -> i64 {
        (0..self.shards).map(|s| self.cells[s * self.stride + which * self.slots + index].load(Relaxed)).sum()
    }

    /// The highest number that anyone has.
    #[inline]
    pub(super) fn max(&self, which: usize) -> u32 {
        (0..self.slots).rev().find(|i| self.sum(which, *i) > 0).map_or(0, |i| i as u32 + 1)
    }

    /// The highest number that anyone has in either of two.
    pub(super) fn max_of(&self, which: usize, other: &Histograms, other_which: usize) -> u32 {
        let either = |i: &usize| self.sum(which, *i) + other.sum(other_which, *i) > 0;
        (0..self.slots).rev().find(either).map_or(0, |i| i as u32 + 1)
    }

    /// True if every sum is zero.
    pub(super) fn is_empty(&self) -> bool {
        (0..self.stride).all(|at| {
            (0..self.shards).map(|s| self.cells[s * self.stride + at].load(Relaxed)).sum::<i64>() == 0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maximum_follows_steps_up_and_down() {
        let h = Histograms::sharded(2, 4);
        h.step(1, 0, 1);
        h.step(1, 1, 3);
        h.step(1, 0, 2);
        assert_eq!((h.max(0), h.max(1)), (0, 3));
        h.step(1, 3, 0);
        assert_eq!(h.max(1), 2);
        h.step(1, 2, 0);
        assert!(h.is_empty());
    }
}
