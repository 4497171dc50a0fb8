//! What a thread is changing, and the stamps of entries.
//!
//! For:     writers: who runs the caller's code under a bucket's lock must not be called by it.
//! State:   per thread whether it changes a table, and the stamps that it may still give.
//! Context: target.
//! Keeps:   X1 a change that is asked for inside of another one on the same thread is refused by name: it could
//!          wait for a lock that its own caller holds, or close a circle between two tables.
//!          X2 no two entries of the process have one stamp.
//! Checked: `tests/rules.rs`.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

std::thread_local! {
    static CHANGES: Cell<bool> = const { Cell::new(false) };
    /// The next stamp and the first that is another thread's.
    static STAMPS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// The stamps that a thread takes at a time. 2^64 of them last for ever.
const BLOCK: u64 = 1 << 20;

/// From here to the drop, this thread holds locks of a table.
pub(super) struct Changing;

impl Changing {
    pub fn begin() -> Changing {
        CHANGES.set(true);
        Changing
    }

    /// Refuses a call that comes from inside a change.
    #[inline]
    #[track_caller]
    pub fn forbid(call: &str) {
        if CHANGES.get() {
            refuse(call);
        }
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        CHANGES.set(false);
    }
}

#[cold]
#[track_caller]
fn refuse(call: &str) -> ! {
    panic!(
        "RhlTable::{call} was called from inside a change of a table (a key's Eq or remove_if's closure), whose lock it would wait for"
    )
}

/// A number that no other entry has.
pub(super) fn new_stamp() -> u64 {
    let (next, end) = STAMPS.get();
    let (next, end) = if next < end { (next, end) } else { more() };
    STAMPS.set((next + 1, end));
    next
}

#[cold]
fn more() -> (u64, u64) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let first = NEXT.fetch_add(BLOCK, Relaxed);
    (first, first + BLOCK)
}
