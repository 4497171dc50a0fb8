//! Atomics; with `items` the only file that knows loom.
//!
//! For:     what the models of `tests/model` run: links, trays, stacks.
//! State:   none.
//! Context: hit, signal, target.
//! Keeps:   nothing.
//! Checked: the build.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64};

pub use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
