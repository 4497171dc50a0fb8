//! Open calls: what a probe at a function's entry leaves for the one where it is left.
//!
//! For:     durations of calls, without a thread's identity and without touching a return address.
//! State:   a table in the arena; a call is found by the place of its return address on the stack, which no other
//!          live call has.
//! Context: hit; control reads it after the last hit.
//! Keeps:   F1 a frame's key is 0 or that of one call; whoever sets it from 0 or replaces it owns the frame.
//! Checked: runtime's frames tests; testkit `returns`.
//!
//! Neighbours on one stack are neighbours here: a thread writes the lines that it wrote a moment ago, and two threads
//! meet in a line only if their stacks' blocks share a group.

use core::sync::atomic::AtomicU64;

/// One open call.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Frame {
    /// Which call; 0 for none.
    pub key: AtomicU64,
    /// Time stamp counter at its entry.
    pub stamp: AtomicU64,
}

/// Groups of frames; each serves blocks of stack of [`BLOCK_BYTES`].
pub const GROUPS: usize = 4096;
/// Frames of a group, one for each place that a return address can have in a block.
pub const FRAMES: usize = 128;
/// Bytes of stack that share a group: 16 for each frame.
pub const BLOCK_BYTES: u64 = 16 * FRAMES as u64;
/// Groups in which a call may be found.
pub const WAYS: usize = 4;
/// All frames.
pub type Table = [Frame; GROUPS * FRAMES];
/// Bytes of the table. Pages that no call comes by are never touched.
pub const LEN_BYTES: usize = size_of::<Table>();

/// The cells of one function whose calls are timed.
pub mod latency {
    /// Entries; a cell is 8 bytes.
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

    /// The bucket of a duration.
    #[inline(always)]
    pub const fn bucket_of(ns: u64) -> u32 {
        const LONGEST: u64 = (1 << 40) - 1;
        let ns = if ns > LONGEST { LONGEST } else { ns };
        if ns < 4 {
            return ns as u32;
        }
        let exponent = 63 - ns.leading_zeros();
        (exponent - 1) * 4 + ((ns >> (exponent - 2)) & 3) as u32
    }

    /// The shortest duration of a bucket.
    pub const fn lowest_of(bucket: u32) -> u64 {
        if bucket < 4 {
            return bucket as u64;
        }
        let exponent = bucket / 4 + 1;
        (4 + (bucket % 4) as u64) << (exponent - 2)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_bucket_begins_where_the_one_before_ends() {
            for bucket in 0..BUCKETS_LEN {
                let lowest = lowest_of(bucket);
                assert_eq!(bucket_of(lowest), bucket);
                if bucket > 0 {
                    assert_eq!(bucket_of(lowest - 1), bucket - 1);
                }
            }
            assert_eq!(bucket_of(u64::MAX), BUCKETS_LEN - 1);
        }
    }
}
