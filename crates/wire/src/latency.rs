//! The cells of one function whose calls are timed.
//!
//! For:     `lat`.
//! State:   none; a cell is 8 bytes.
//! Context: hit, control.
//! Keeps:   nothing; the buckets are `map::Buckets::DURATIONS`, whose number runtime compares when it is built.
//! Checked: testkit `returns`.

/// Entries.
pub const ENTRIES: u32 = 0;
/// Nanoseconds of all calls that returned.
pub const TOTAL_NS: u32 = 1;
/// Returns of calls that were not opened: begun before the probes came, or without room.
pub const UNMATCHED: u32 = 2;
/// First bucket of the histogram.
pub const BUCKETS: u32 = 3;
/// Number of buckets: four for each power of two below 2^40 ns, 18 minutes.
pub const BUCKETS_LEN: u32 = 156;
/// All cells.
pub const CELLS: u32 = BUCKETS + BUCKETS_LEN;
