//! Atomics of the list and the tree, for loom and without.
//!
//! For:     `list`, `tree`.
//! State:   none.
//! Context: hit, signal, target.
//! Keeps:   nothing.
//! Checked: by use.

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicPtr, AtomicU64};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicPtr, AtomicU64};

pub use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
