//! Counters that the target and the torture share.
//!
//! For:     comparing hits with calls, exactly.
//! State:   a memfd of zeros, mapped by both; forked children and programs that they execute have it too.
//! Context: control; target.
//! Keeps:   H1 each thread of the target adds to a row of its own.
//! Checked: `tests/uprobe_live.rs`.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use sys::mapping::SharedMapping;

/// Functions, as in uprobe-stress.
pub const FUNCTIONS: usize = 100;
/// Functions with a probe that stays: one of each shape.
pub const STAY: usize = 10;
/// Functions of the library.
pub const LIBRARY_FUNCTIONS: usize = 10;
/// Threads that call, at most.
pub const ROWS: usize = 64;
/// Children that are known at once, at most.
pub const CHILDREN: usize = 32;

/// Calls of each function.
#[repr(C, align(128))]
pub struct Row {
    pub calls: [AtomicU64; FUNCTIONS],
    /// The thread's number, while it calls.
    pub tid: AtomicU32,
}

/// What is in the memory; zeros are its first value.
#[repr(C)]
pub struct Shared {
    pub stop: AtomicU32,
    pub maps: AtomicU64,
    pub forks: AtomicU64,
    pub execs: AtomicU64,
    pub loads: AtomicU64,
    pub signals: AtomicU64,
    pub handled: AtomicU64,
    /// Calls made by children that have executed themselves.
    pub exec_calls: AtomicU64,
    /// Errors: results that were not right.
    pub wrong: AtomicU64,
    /// Errors: children that did not end by themselves, or not with 0.
    pub lost_children: AtomicU64,
    /// Errors: calls of the system that failed in a role.
    pub refused: AtomicU64,
    /// Children that live.
    pub children: [AtomicU32; CHILDREN],
    /// Calls that forked children made before they executed anything.
    pub forked: Row,
    pub library: [AtomicU64; LIBRARY_FUNCTIONS],
    pub rows: [Row; ROWS],
}

/// Bytes of the memory.
pub const LEN: usize = size_of::<Shared>().next_multiple_of(4096);

impl Shared {
    /// The memory behind a descriptor of [`LEN`] bytes; it stays mapped until the process ends.
    pub fn open(fd: i32) -> Option<&'static Shared> {
        let map = SharedMapping::of_file(fd, LEN).ok()?;
        let base = map.base().cast::<Shared>();
        std::mem::forget(map);
        // SAFETY: the mapping is page aligned, has room for the struct, and stays, for it was forgotten. The struct is
        // atomic words alone, for which all bytes are values.
        Some(unsafe { &*base })
    }

    pub fn is_over(&self) -> bool {
        self.stop.load(Relaxed) != 0
    }

    /// Calls of a function by the target's own threads.
    pub fn calls_of(&self, function: usize) -> u64 {
        self.rows.iter().map(|row| row.calls[function].load(Relaxed)).sum()
    }

    /// Calls of all functions by the target's own threads.
    pub fn calls(&self) -> u64 {
        (0..FUNCTIONS).map(|f| self.calls_of(f)).sum()
    }
}
