//! Reading the rings of events.
//!
//! For:     `trace`.
//! State:   how far each ring was read: ours, the target sees a copy; what was found that cannot be.
//! Context: control, while hits write.
//! Keeps:   E1 a look takes as many events as there is room for, however fast they come.
//!          E2 an event that no hit can have written is dropped and counted.
//! Checked: tests below; testkit `tracing` (none lost, torn or doubled), `hostile`; map's `ring` and `untrusted`.

use crate::facts::calls::Event;
use map::{Checked, Cursor, Next, Ring};

/// Events that one look takes at most, of all rings.
const LOOK_MAX: usize = 1 << 16;

/// The one reader of a session's rings.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// How far each ring was read.
    cursors: Vec<Cursor>,
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
        rings: impl Iterator<Item = Ring<Checked<'a>>>,
        bounds: Bounds,
        mut take: impl FnMut(Event),
    ) -> bool {
        let rings: Vec<_> = rings.collect();
        self.cursors.resize(rings.len(), Cursor::default());
        let (mut left, mut now) = (LOOK_MAX, 0);
        for i in 0..rings.len() {
            let n = (self.first + i) % rings.len();
            let before = self.cursors[n];
            // SAFETY: a ring is read here alone, and under the lock of its session.
            let mut reader = unsafe { map::Reader::resume(rings[n].clone(), before) };
            let mut words = [0; wire::Event::WORDS];
            while left > 0 && reader.cursor().bytes() - before.bytes() < wire::Event::RING_BYTES as u64 {
                match reader.next_words(&mut words) {
                    Next::Empty | Next::Open => break,
                    Next::Damaged => self.damaged += 1,
                    Next::Record => match event_of(words).filter(|e| is_believed(e, &mut now, bounds)) {
                        Some(event) => take(event),
                        None => self.damaged += 1,
                    },
                }
                left -= 1;
            }
            self.cursors[n] = reader.cursor();
        }
        self.first = if rings.is_empty() { 0 } else { (self.first + 1) % rings.len() };
        left > 0
    }
}

fn event_of(words: [u64; wire::Event::WORDS]) -> Option<Event> {
    wire::Event::of(words).map(Event::from)
}

fn is_believed(event: &Event, now: &mut u64, bounds: Bounds) -> bool {
    if event.stamp > *now {
        *now = (bounds.now)().saturating_add(SKEW);
    }
    let is_of_now = (bounds.since..=*now).contains(&event.stamp);
    is_of_now && event.function < bounds.functions && i32::try_from(event.tid).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::NonNull;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;
    use wire::{Event as Written, Untrusted};

    const BOUNDS: Bounds = Bounds { since: 10, now: || 1 << 40, functions: 3 };
    const ENTRY: u64 = Written::ENTRY;
    const EXIT: u64 = Written::EXIT;
    /// Events that fit a ring.
    const ROOM: u64 = Written::RING_BYTES as u64 / 64;

    /// A ring in memory of ours, and the words of which it is made.
    struct Shared(Vec<AtomicU64>);

    impl Shared {
        fn new() -> Shared {
            let shared = Shared((0..Written::RING_STRIDE / 8).map(|_| AtomicU64::new(0)).collect());
            Ring::lay_out(shared.view(), 0, Written::RING_BYTES).unwrap();
            shared
        }

        fn base(&self) -> NonNull<u8> {
            NonNull::from(self.0.as_slice()).cast()
        }

        fn view(&self) -> Untrusted<'_> {
            // SAFETY: the words live as long as the view and are used as atomics alone.
            unsafe { Untrusted::new(self.base(), Written::RING_STRIDE) }
        }

        /// What the controller sees.
        fn ring(&self) -> Ring<Checked<'_>> {
            Ring::made(self.view(), 0, Written::RING_BYTES).unwrap()
        }

        /// What a hit writes; false if there is no room.
        fn write(&self, what: u64, stamp: u64) -> bool {
            // SAFETY: the ring of this length, as long as `self` lives.
            let ring = unsafe { Ring::at(self.base(), Written::RING_BYTES) };
            ring.output_words(Written { stamp, place: 5, what, tid: 7, values: [0; 3] }.words()).is_ok()
        }

        fn take(&self, reader: &mut Reader) -> Vec<Event> {
            let mut events = Vec::new();
            reader.take([self.ring()].into_iter(), BOUNDS, |event| events.push(event));
            events
        }
    }

    #[test]
    fn what_no_hit_can_have_written_is_dropped_and_counted_and_the_rest_is_read() {
        let (shared, mut reader) = (Shared::new(), Reader::default());
        for (what, stamp) in [
            (ENTRY | 2, 100),
            (ENTRY | 3, 100),    // no such function
            (7 << 32, 100),      // neither an entry nor an exit
            (EXIT | 1, 1 << 41), // from the future
            (EXIT | 1, 9),       // from before the attach
            (EXIT | 1, 200),
        ] {
            assert!(shared.write(what, stamp));
        }
        // SAFETY: the ring of this length, as long as `shared` lives.
        let ring = unsafe { Ring::at(shared.base(), Written::RING_BYTES) };
        ring.output(&[1; 24]).unwrap(); // a record of another length
        assert!(shared.write(EXIT | 1, 300));
        let events = shared.take(&mut reader);
        assert_eq!(events.iter().map(|e| e.stamp).collect::<Vec<_>>(), [100, 200, 300]);
        assert_eq!(reader.damaged, 5);
        assert!(shared.take(&mut reader).is_empty());
    }

    #[test]
    fn a_head_that_lies_is_not_followed_and_a_look_ends() {
        let (shared, mut reader) = (Shared::new(), Reader::default());
        assert!(shared.write(ENTRY | 1, 100));
        assert_eq!(shared.take(&mut reader).len(), 1);
        // The target moves what is reserved, what is read, and the size as it likes: nothing is read twice, nothing that is
        // not there.
        for (reserved, consumed) in [(u64::MAX, 0), (0, u64::MAX), (u64::MAX, u64::MAX), (1 << 40, 5)] {
            for (at, value) in [(0, consumed), (128 / 8, reserved), (256 / 8, consumed)] {
                shared.0[at].store(value, Relaxed);
            }
            assert!(shared.take(&mut reader).is_empty(), "{reserved} {consumed}");
        }
        // It writes as fast as we read: every record is the next.
        let (many, mut reader, mut taken) = (Shared::new(), Reader::default(), 0);
        (0..ROOM).for_each(|_| assert!(many.write(ENTRY | 1, 100)));
        let is_all = reader.take([many.ring()].into_iter(), BOUNDS, |_| {
            taken += 1;
            many.write(ENTRY | 1, 100);
        });
        assert!(is_all && taken == ROOM, "{taken}");
    }

    #[test]
    fn no_more_events_are_taken_at_once_than_one_look_may_and_no_ring_starves() {
        let rings: Vec<Shared> = (0..8).map(|_| Shared::new()).collect();
        for shared in &rings {
            (0..ROOM).for_each(|_| assert!(shared.write(ENTRY | 1, 100)));
            assert!(!shared.write(ENTRY | 1, 100), "full");
        }
        let (mut reader, mut taken) = (Reader::default(), 0);
        let mut looks = 0;
        while !reader.take(rings.iter().map(Shared::ring), BOUNDS, |_| taken += 1) {
            looks += 1;
            assert!(taken <= looks * LOOK_MAX);
        }
        assert_eq!(taken as u64, 8 * ROOM);
    }
}
