//! Atomics; with `place` the only file that knows loom.
//!
//! For:     the whole crate.
//! State:   none.
//! Context: hit, signal, target.
//! Keeps:   nothing.
//! Orderings: this file passes fences on; the labels stand where they are used.
//! Checked: the build.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, fence};

pub use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Waits a moment before another try.
#[inline(always)]
pub fn spin() {
    #[cfg(not(loom))]
    core::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}
