//! Atomics; the only file that knows loom.
//!
//! For:     the whole crate.
//! State:   none.
//! Context: target.
//! Keeps:   nothing.
//! Checked: by use.

#[cfg(not(loom))]
pub use core::sync::atomic::AtomicPtr;
#[cfg(loom)]
pub use loom::sync::atomic::AtomicPtr;

pub use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Lets another thread get on; `tries` is how often that was done before.
pub fn pause(tries: u32) {
    #[cfg(loom)]
    {
        let _ = tries;
        loom::thread::yield_now();
    }
    #[cfg(not(loom))]
    if tries < 64 {
        core::hint::spin_loop();
    } else {
        // More threads than CPUs: who holds the lock may be waiting for ours.
        std::thread::yield_now();
    }
}
