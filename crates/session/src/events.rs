//! Reading the rings of events.
//!
//! For:     `trace`.
//! State:   `wire::rings`; this side owns each ring's tail.
//! Context: control, while hits write.
//! Keeps:   R1 and R2 of wire::rings.
//! Checked: testkit `tracing` (none lost, torn or doubled); runtime's rings tests have the same reader.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use wire::rings::{RECORDS, Ring};

/// One end of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Time stamp counter.
    pub stamp: u64,
    /// Which call: equal at its entry and its exit.
    pub place: u64,
    /// The function's number in the plan.
    pub function: u32,
    /// At an exit.
    pub is_exit: bool,
    /// Thread, 0 if it cannot be told.
    pub tid: u64,
    /// First arguments; at an exit what is returned, and the stamp of the entry, 0 if that was not seen.
    pub values: [u64; 3],
}

/// The next event of a ring, if it is whole.
pub(crate) fn read(ring: &Ring) -> Option<Event> {
    let tail = ring.tail.0.load(Relaxed);
    let record = &ring.records[tail as usize % RECORDS];
    // [RING-2] Orders the turn before the record's words. Pairs with [RING-1].
    if record.turn.load(Acquire) != tail + 1 {
        return None;
    }
    let what = record.what.load(Relaxed);
    let event = Event {
        stamp: record.stamp.load(Relaxed),
        place: record.place.load(Relaxed),
        function: what as u32,
        is_exit: what & !u64::from(u32::MAX) == wire::rings::EXIT,
        tid: record.tid.load(Relaxed),
        values: [0, 1, 2].map(|i| record.values[i].load(Relaxed)),
    };
    // [RING-4] Orders our reads before the room that they make. Pairs with [RING-3].
    ring.tail.0.store(tail + 1, Release);
    Some(event)
}
