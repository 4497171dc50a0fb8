//! The full fence.
//!
//! For:     code that needs a store ordered before a later load.
//! State:   none.
//! Context: hit, signal, target, control.
//! Keeps:   nothing of its own; users label what they order with it.
//! Checked: the models of the users.

use crate::arch;

/// True if the processor keeps every load before the stores that follow it (x86-64: total store order).
pub const IS_TSO: bool = cfg!(target_arch = "x86_64");

/// Orders every load and store before it against every one after it.
///
/// # Cost
/// About 5 ns on x86-64, a quarter of `core::sync::atomic::fence(SeqCst)`: `bench refscale`.
#[inline(always)]
pub fn full() {
    arch::full_fence();
}

/// Adds one to the cell that lies `DISP` and `offset` bytes behind `base`, in one instruction: no signal handler comes
/// between load and store. The compiler moves nothing across.
///
/// # Safety
/// The cell must be writable and aligned, and no other thread write it.
#[inline(always)]
pub unsafe fn inc_own<const DISP: usize>(base: *mut u64, offset: usize) {
    // SAFETY: the caller's duties are the same.
    unsafe { arch::inc_own::<DISP>(base, offset) };
}

/// Stores `new` in a word that holds `old`, in one instruction: neither a handler that interrupts the thread nor another thread of
/// its CPU comes between. What the thread did before is seen with it. True if it was done.
///
/// # Cost
/// One instruction without the lock prefix on x86-64, not measured by itself; elsewhere it is one that all CPUs see whole.
///
/// # Safety
/// The word must be readable, writable, aligned and accessed as an atomic. What another CPU stores at the same moment may be
/// overwritten, on x86-64: for words that one thread writes.
#[inline(always)]
pub unsafe fn exchange_own(word: *mut u32, old: u32, new: u32) -> bool {
    // SAFETY: the caller's duties are the same.
    unsafe { arch::exchange_own(word, old, new) }
}
