//! The memory that parent and child share.
//!
//! For:     producers' counts, the clock's ticks.
//! State:   a word that the parent sets, and for each producer its calls and a record per tick.
//! Context: control.
//! Keeps:   S1 a producer writes only lines of its own.
//!          S2 a record is complete once the child has said that its producers ended.
//! Checked: tests below; `bench trig-*` (hits = calls).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use sys::Errno;
use sys::mapping::SharedMapping;

/// The tick that tells producers to end.
pub const STOP: u64 = u64::MAX;
/// Words in two cache lines: processors fetch them in pairs.
const LINES: usize = 16;

/// What a producer had done at a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Calls since it began.
    pub calls: u64,
    /// Its processor time.
    pub cpu_ns: u64,
}

/// A mapping with room for some producers and ticks.
#[derive(Debug)]
pub struct Shared {
    map: SharedMapping,
    producers: usize,
    ticks: usize,
}

impl Shared {
    /// Bytes that the file needs.
    pub fn len_bytes(producers: usize, ticks: usize) -> usize {
        8 * (LINES + producers * Shared::stride(ticks))
    }

    /// Maps the file.
    pub fn map(fd: i32, producers: usize, ticks: usize) -> Result<Shared, Errno> {
        let map = SharedMapping::of_file(fd, Shared::len_bytes(producers, ticks))?;
        Ok(Shared { map, producers, ticks })
    }

    fn stride(ticks: usize) -> usize {
        (LINES + 2 * ticks).next_multiple_of(LINES)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(8 * index + 8 <= self.map.len_bytes(), "word in the mapping");
        let at = self.map.base().cast::<AtomicU64>().wrapping_add(index);
        // SAFETY: in bounds (asserted), aligned since the base is a page, mapped as long as `self` lives, and
        // only ever accessed as an atomic word by both processes.
        unsafe { &*at }
    }

    fn slot(&self, producer: usize) -> usize {
        LINES + producer * Shared::stride(self.ticks)
    }

    /// The tick that it is; the parent's to set.
    pub fn tick(&self) -> &AtomicU64 {
        self.word(0)
    }

    /// Calls that a producer has made; its own to set.
    pub fn calls(&self, producer: usize) -> &AtomicU64 {
        self.word(self.slot(producer))
    }

    /// Calls of all.
    pub fn all_calls(&self) -> u64 {
        (0..self.producers).map(|p| self.calls(p).load(Relaxed)).sum()
    }

    /// Writes what a producer has done by `tick`; ticks beyond the room are left out.
    pub fn record(&self, producer: usize, tick: u64, record: Record) {
        let Some(at) = self.record_at(producer, tick) else { return };
        self.word(at).store(record.calls, Relaxed);
        self.word(at + 1).store(record.cpu_ns, Relaxed);
    }

    /// What a producer had done by `tick`, if it came to say.
    pub fn recorded(&self, producer: usize, tick: u64) -> Option<Record> {
        let at = self.record_at(producer, tick)?;
        let record = Record { calls: self.word(at).load(Relaxed), cpu_ns: self.word(at + 1).load(Relaxed) };
        (record.cpu_ns != 0).then_some(record)
    }

    fn record_at(&self, producer: usize, tick: u64) -> Option<usize> {
        let tick = usize::try_from(tick).ok().filter(|t| *t < self.ticks)?;
        Some(self.slot(producer) + LINES + 2 * tick)
    }

    /// As new; no producer may exist.
    pub fn clear(&self) {
        (0..self.map.len_bytes() / 8).for_each(|i| self.word(i).store(0, Relaxed));
    }

    /// How many producers there is room for.
    pub fn producers(&self) -> usize {
        self.producers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(producers: usize, ticks: usize) -> Shared {
        let fd = sys::memfd_inheritable(c"test", Shared::len_bytes(producers, ticks)).unwrap();
        Shared::map(fd, producers, ticks).unwrap()
    }

    #[test]
    fn what_one_producer_writes_is_not_seen_at_another() {
        let shared = shared(2, 5);
        let record = Record { calls: 7, cpu_ns: 9 };
        shared.record(0, 4, record);
        shared.calls(0).store(7, Relaxed);
        assert_eq!(shared.recorded(0, 4), Some(record));
        assert_eq!((shared.recorded(0, 3), shared.recorded(1, 4)), (None, None));
        assert_eq!((shared.calls(1).load(Relaxed), shared.all_calls()), (0, 7));
        shared.clear();
        assert_eq!((shared.recorded(0, 4), shared.all_calls()), (None, 0));
    }

    #[test]
    fn a_tick_without_room_is_left_out() {
        let shared = shared(1, 2);
        shared.record(0, 2, Record { calls: 1, cpu_ns: 1 });
        assert_eq!(shared.recorded(0, 2), None);
    }
}
