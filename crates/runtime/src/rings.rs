//! Writing events.
//!
//! For:     the handlers of `trace`.
//! State:   `wire::rings`, in the arena.
//! Context: hit, signal included: a handler that interrupts a write takes the next record.
//! Keeps:   R1 and R2 of wire::rings; written + lost = events.
//! Checked: tests below (threads on one ring, R1, R2); testkit `tracing`.
//!
//! The reservation is a locked compare-and-exchange on a line that belongs to this CPU: a thread that is moved to
//! another CPU in between pays for it in time, not in a record.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use wire::rings::{RECORDS, Ring};

/// What an event says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Time stamp counter.
    pub stamp: u64,
    /// Which call.
    pub place: u64,
    /// Function and kind.
    pub what: u64,
    /// Thread.
    pub tid: u64,
    /// Arguments, or what is returned.
    pub values: [u64; 3],
}

/// Writes an event; false if the ring is full.
#[inline(always)]
pub fn write(ring: &Ring, event: &Event) -> bool {
    let mut head = ring.head.0.load(Relaxed);
    loop {
        // [RING-3] Orders the controller's reads of a record before we write it again. Pairs with [RING-4].
        if head.wrapping_sub(ring.tail.0.load(Acquire)) >= RECORDS as u64 {
            return false;
        }
        match ring.head.0.compare_exchange_weak(head, head + 1, Relaxed, Relaxed) {
            Ok(_) => break,
            Err(now) => head = now,
        }
    }
    let record = &ring.records[head as usize % RECORDS];
    record.stamp.store(event.stamp, Relaxed);
    record.place.store(event.place, Relaxed);
    record.what.store(event.what, Relaxed);
    record.tid.store(event.tid, Relaxed);
    for (to, value) in record.values.iter().zip(event.values) {
        to.store(value, Relaxed);
    }
    // [RING-1] Orders the record's words before its turn. Pairs with [RING-2].
    record.turn.store(head + 1, Release);
    true
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::boxed::Box;
    use std::vec::Vec;

    /// The controller's reader (session/live/events.rs).
    fn read(ring: &Ring) -> Option<Event> {
        let tail = ring.tail.0.load(Relaxed);
        let record = &ring.records[tail as usize % RECORDS];
        if record.turn.load(Acquire) != tail + 1 {
            return None;
        }
        let event = Event {
            stamp: record.stamp.load(Relaxed),
            place: record.place.load(Relaxed),
            what: record.what.load(Relaxed),
            tid: record.tid.load(Relaxed),
            values: [0, 1, 2].map(|i| record.values[i].load(Relaxed)),
        };
        ring.tail.0.store(tail + 1, Release);
        Some(event)
    }

    fn ring() -> Box<Ring> {
        let layout = std::alloc::Layout::new::<Ring>();
        // SAFETY: the layout is not empty.
        let memory = unsafe { std::alloc::alloc_zeroed(layout) }.cast::<Ring>();
        // SAFETY: just allocated with this type's layout, and a ring of zeroes is a ring.
        unsafe { Box::from_raw(memory) }
    }

    fn event(n: u64) -> Event {
        Event { stamp: n, place: n + 1, what: n + 2, tid: n + 3, values: [n + 4, n + 5, n + 6] }
    }

    #[test]
    fn events_are_read_in_order_and_a_full_ring_takes_no_more() {
        let ring = ring();
        assert_eq!(read(&ring), None);
        for round in 0..3 {
            let base = round * 10_000;
            assert!((0..RECORDS as u64).all(|i| write(&ring, &event(base + i))));
            assert!(!write(&ring, &event(7)));
            assert!((0..RECORDS as u64).all(|i| read(&ring) == Some(event(base + i))));
            assert_eq!(read(&ring), None);
        }
    }

    #[test]
    fn an_event_is_read_whole_and_once_while_threads_write_into_one_ring() {
        let ring = ring();
        let (threads, each) = (4, if cfg!(miri) { 50 } else { 100_000u64 });
        let (mut seen, mut lost) = (Vec::new(), 0);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..threads)
                .map(|t| {
                    let ring = &ring;
                    scope
                        .spawn(move || (0..each).filter(|i| !write(ring, &event(t << 32 | i))).count() as u64)
                })
                .collect();
            while !writers.iter().all(|w| w.is_finished()) {
                seen.extend(std::iter::from_fn(|| read(&ring)));
            }
            lost = writers.into_iter().map(|w| w.join().unwrap()).sum();
        });
        seen.extend(std::iter::from_fn(|| read(&ring)));
        assert_eq!(seen.len() as u64 + lost, threads * each);
        assert!(seen.iter().all(|e| *e == event(e.stamp)), "none is torn");
        let mut stamps: Vec<u64> = seen.iter().map(|e| e.stamp).collect();
        stamps.sort_unstable();
        stamps.dedup();
        assert_eq!(stamps.len(), seen.len(), "none is read twice");
    }
}
