//! Events on their way to the controller: one ring of records for each CPU.
//!
//! For:     `trace`.
//! State:   in the arena; hits write, the controller reads and says how far it has read.
//! Context: hit, control.
//! Keeps:   R1 a record is read once it is whole: its `turn` says which turn of the ring it belongs to.
//!          R2 a record that was not read is never overwritten; what finds no room is counted as lost.
//! Checked: runtime's rings tests; testkit `tracing`.

use core::sync::atomic::AtomicU64;

/// Records of one ring.
pub const RECORDS: usize = 16384;

/// One event.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Record {
    /// Position in the ring's history plus one, written last; 0 before the first.
    pub turn: AtomicU64,
    /// Time stamp counter.
    pub stamp: AtomicU64,
    /// Which call, as in [`crate::frames`]: entry and exit have the same.
    pub place: AtomicU64,
    /// Number of the function, and above it 1 for an entry, 2 for an exit.
    pub what: AtomicU64,
    /// Thread, 0 if it cannot be told.
    pub tid: AtomicU64,
    /// First arguments; at an exit what is returned, and the stamp of the entry, 0 if that was not written.
    pub values: [AtomicU64; 3],
}

/// Above the function's number in [`Record::what`].
pub const ENTRY: u64 = 1 << 32;
/// The same for an exit.
pub const EXIT: u64 = 2 << 32;

/// One CPU's ring.
#[repr(C)]
#[derive(Debug)]
pub struct Ring {
    /// Records begun so far.
    pub head: Line,
    /// Records read so far; written by the controller.
    pub tail: Line,
    /// The records.
    pub records: [Record; RECORDS],
}

/// A word with a cache line of its own.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Line(pub AtomicU64);

/// Bytes of one ring, a multiple of a page.
pub const LEN_BYTES: usize = size_of::<Ring>().next_multiple_of(4096);
