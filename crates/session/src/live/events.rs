//! Reading the rings of events.
//!
//! For:     `trace`.
//! State:   how far each ring was read: ours, the target sees a copy; what was found that cannot be.
//! Context: control, while hits write.
//! Keeps:   R1 and R2 of wire::rings.
//!          R3 a look takes as many events as there is room for, however fast they come.
//!          R4 each word of a record is read once; a record that no hit can have written is dropped and counted.
//! Checked: tests below; testkit `tracing` (none lost, torn or doubled), `hostile`; runtime's rings tests have the same
//!          reader.

use crate::facts::calls::Event;
use std::mem::offset_of;
use std::sync::atomic::Ordering::{Acquire, Release};
use wire::Untrusted;
use wire::rings::{ENTRY, EXIT, RECORDS, Record, Ring};

/// Events that one look takes at most, of all rings.
const LOOK_MAX: usize = 1 << 16;

/// The one reader of a session's rings.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// Records read so far, of each ring.
    tails: Vec<u64>,
    /// Which ring is looked at first: the others were, the last time.
    first: usize,
    /// Records that no hit can have written.
    pub damaged: u64,
}

/// What an event may say: stamps of this time, functions that are probed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub since: u64,
    pub now: fn() -> u64,
    pub functions: u32,
}

/// Counters of two processors may differ by so many ticks.
const SKEW: u64 = 1 << 20;

impl Reader {
    /// Takes events out of the rings; those of one CPU are in order. False if there may be more.
    pub fn take<'a>(
        &mut self,
        rings: impl ExactSizeIterator<Item = Untrusted<'a>>,
        bounds: Bounds,
        mut take: impl FnMut(Event),
    ) -> bool {
        let rings: Vec<Untrusted<'_>> = rings.collect();
        self.tails.resize(rings.len(), 0);
        let (mut left, mut now) = (LOOK_MAX, 0);
        for i in 0..rings.len() {
            let n = (self.first + i) % rings.len();
            let before = left;
            while left > 0 && before - left < RECORDS {
                match next(rings[n], &mut self.tails[n]) {
                    Next::Empty => break,
                    Next::Event(event) if is_believed(&event, &mut now, bounds) => take(event),
                    Next::Event(_) | Next::Damaged => self.damaged += 1,
                }
                left -= 1;
            }
        }
        self.first = if rings.is_empty() { 0 } else { (self.first + 1) % rings.len() };
        left > 0
    }
}

fn is_believed(event: &Event, now: &mut u64, bounds: Bounds) -> bool {
    if event.stamp > *now {
        *now = (bounds.now)().saturating_add(SKEW);
    }
    let is_of_now = (bounds.since..=*now).contains(&event.stamp);
    is_of_now && event.function < bounds.functions && i32::try_from(event.tid).is_ok()
}

enum Next {
    Event(Event),
    /// Nothing that is whole.
    Empty,
    /// A record that cannot be: it is passed over.
    Damaged,
}

/// The next event of a ring of which `tail` records were read.
fn next(ring: Untrusted<'_>, tail: &mut u64) -> Next {
    let at = offset_of!(Ring, records) + (*tail % RECORDS as u64) as usize * size_of::<Record>();
    let Some(record) = ring.part(at, size_of::<Record>()) else { return Next::Empty };
    let word = |offset: usize| record.load(offset).unwrap_or(0);
    // [RING-2] Orders the turn before the record's words. Pairs with [RING-1].
    let turn = record.word(offset_of!(Record, turn)).map_or(0, |turn| turn.load(Acquire));
    if turn != *tail + 1 {
        let is_old = turn == (*tail + 1).saturating_sub(RECORDS as u64);
        let head = ring.load(offset_of!(Ring, head)).unwrap_or(0);
        let is_begun = (1..=RECORDS as u64).contains(&head.wrapping_sub(*tail));
        if is_old || !is_begun {
            return Next::Empty;
        }
        pass(ring, tail);
        return Next::Damaged;
    }
    let what = word(offset_of!(Record, what));
    let values = offset_of!(Record, values);
    let event = Event {
        stamp: word(offset_of!(Record, stamp)),
        place: word(offset_of!(Record, place)),
        function: what as u32,
        is_exit: what & !u64::from(u32::MAX) == EXIT,
        tid: word(offset_of!(Record, tid)),
        values: [0, 1, 2].map(|i| word(values + i * 8)),
    };
    pass(ring, tail);
    match what & !u64::from(u32::MAX) {
        ENTRY | EXIT => Next::Event(event),
        _ => Next::Damaged,
    }
}

fn pass(ring: Untrusted<'_>, tail: &mut u64) {
    *tail += 1;
    if let Some(shared) = ring.word(offset_of!(Ring, tail)) {
        // [RING-4] Orders our reads before the room that they make. Pairs with [RING-3].
        shared.store(*tail, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::NonNull;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;
    use wire::rings::LEN_BYTES;

    const BOUNDS: Bounds = Bounds { since: 10, now: || 1 << 40, functions: 3 };

    /// A ring in memory of ours, and the words of which it is made.
    struct Shared(Vec<AtomicU64>);

    impl Shared {
        fn new() -> Shared {
            Shared((0..LEN_BYTES / 8).map(|_| AtomicU64::new(0)).collect())
        }

        fn view(&self) -> Untrusted<'_> {
            let base = NonNull::from(self.0.as_slice()).cast();
            // SAFETY: the words live as long as the view and are used as atomics alone.
            unsafe { Untrusted::new(base, LEN_BYTES) }
        }

        fn set(&self, offset: usize, value: u64) {
            self.0[offset / 8].store(value, Relaxed);
        }

        /// What a hit writes.
        fn write(&self, n: u64, what: u64, stamp: u64) {
            let at = offset_of!(Ring, records) + (n % RECORDS as u64) as usize * size_of::<Record>();
            self.set(offset_of!(Ring, head), n + 1);
            for (offset, value) in [
                (offset_of!(Record, stamp), stamp),
                (offset_of!(Record, what), what),
                (offset_of!(Record, tid), 7),
                (offset_of!(Record, turn), n + 1),
            ] {
                self.set(at + offset, value);
            }
        }

        fn take(&self, reader: &mut Reader) -> Vec<Event> {
            let mut events = Vec::new();
            reader.take([self.view()].into_iter(), BOUNDS, |event| events.push(event));
            events
        }
    }

    #[test]
    fn what_no_hit_can_have_written_is_dropped_and_counted_and_the_rest_is_read() {
        let (shared, mut reader) = (Shared::new(), Reader::default());
        shared.write(0, ENTRY | 2, 100);
        shared.write(1, ENTRY | 3, 100); // no such function
        shared.write(2, 7 << 32, 100); // neither an entry nor an exit
        shared.write(3, EXIT | 1, 1 << 41); // from the future
        shared.write(4, EXIT | 1, 9); // from before the attach
        shared.write(5, EXIT | 1, 200);
        shared.write(6, EXIT | 1, 200);
        let torn = offset_of!(Ring, records) + 6 * size_of::<Record>();
        shared.set(torn + offset_of!(Record, turn), 0xdead);
        shared.write(7, EXIT | 1, 300);
        let events = shared.take(&mut reader);
        assert_eq!(events.iter().map(|e| e.stamp).collect::<Vec<_>>(), [100, 200, 300]);
        assert_eq!(reader.damaged, 5);
        assert!(shared.take(&mut reader).is_empty());
    }

    #[test]
    fn counters_that_lie_are_not_followed_and_a_look_ends() {
        let (shared, mut reader) = (Shared::new(), Reader::default());
        shared.write(0, ENTRY | 1, 100);
        assert_eq!(shared.take(&mut reader).len(), 1);
        // The target moves both counters as it likes: nothing is read twice, nothing that is not there.
        for (head, tail) in [(u64::MAX, 0), (0, u64::MAX), (u64::MAX, u64::MAX), (1 << 40, 5)] {
            shared.set(offset_of!(Ring, head), head);
            shared.set(offset_of!(Ring, tail), tail);
            assert!(shared.take(&mut reader).is_empty(), "{head} {tail}");
        }
        // It writes as fast as we read: every record is the next.
        let many = Shared::new();
        (0..RECORDS as u64).for_each(|n| many.write(n, ENTRY | 1, 100));
        let mut reader = Reader::default();
        let mut taken = 0u64;
        let is_all = reader.take([many.view()].into_iter(), BOUNDS, |_| {
            taken += 1;
            many.write(RECORDS as u64 - 1 + taken, ENTRY | 1, 100);
        });
        assert!(is_all && taken == RECORDS as u64, "{taken}");
    }

    #[test]
    fn no_more_events_are_taken_at_once_than_one_look_may_and_no_ring_starves() {
        let rings: Vec<Shared> = (0..8).map(|_| Shared::new()).collect();
        for shared in &rings {
            (0..RECORDS as u64).for_each(|n| shared.write(n, ENTRY | 1, 100));
        }
        let (mut reader, mut taken) = (Reader::default(), 0);
        let mut looks = 0;
        while !reader.take(rings.iter().map(Shared::view), BOUNDS, |_| taken += 1) {
            looks += 1;
            assert!(taken <= looks * LOOK_MAX);
        }
        assert_eq!(taken, 8 * RECORDS);
    }
}
