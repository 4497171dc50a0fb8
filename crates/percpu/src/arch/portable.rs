//! An architecture (or checker) without restartable sequences of ours: only the fallback works.
//!
//! For:     Miri; aarch64, but for the adds by a table and the changes of a CPU's own words.
//! State:   none.
//! Context: hit, signal, target, control.
//! Keeps:   a sequence always reports that it did not run, so that callers take their fallback.
//! Orderings: `full_fence` is one; the labels stand where it is used.
//! Checked: Miri runs the tests of `percpu` and `rcu` through this file.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence, fence};

#[inline(always)]
pub unsafe fn rseq_inc<const SHIFT: u32, const DISP: usize>(_: isize, _: *mut u64) -> bool {
    false
}

#[inline(always)]
pub unsafe fn rseq_add<const SHIFT: u32>(_: isize, _: *mut u64, _: u32, _: u64) -> bool {
    false
}

#[cfg(any(not(target_arch = "aarch64"), miri))]
#[inline(always)]
pub unsafe fn rseq_store_if(_: isize, _: u32, _: *mut u64, _: u64, _: u64) -> bool {
    false
}

#[cfg(any(not(target_arch = "aarch64"), miri))]
#[inline(always)]
pub unsafe fn rseq_add_if(_: isize, _: u32, _: *mut u64, _: u64) -> bool {
    false
}

#[cfg(any(not(target_arch = "aarch64"), miri))]
#[inline(always)]
pub unsafe fn rseq_cpu(_: isize) -> u32 {
    u32::MAX
}

#[inline(always)]
pub unsafe fn rseq_list_pop<const SHIFT: u32, const DISP: usize, const BOUND: isize>(
    _: isize,
    _: *mut u8,
    _: *const u8,
) -> Option<(u32, u32)> {
    None
}

#[inline(always)]
pub unsafe fn rseq_list_push<const SHIFT: u32, const DISP: usize, const BOUND: isize>(
    _: isize,
    _: *mut u8,
    _: u32,
) -> bool {
    false
}

pub unsafe fn rseq_list_push_all<const SHIFT: u32, const DISP: usize, const BOUND: isize>(
    _: isize,
    _: *mut u8,
    _: *const u32,
    _: u32,
) -> u32 {
    0
}

pub unsafe fn rseq_list_pop_all<const SHIFT: u32, const DISP: usize, const BOUND: isize>(
    _: isize,
    _: *mut u8,
    _: *mut u32,
    _: u32,
) -> u32 {
    0
}

#[cfg(any(not(target_arch = "aarch64"), miri))]
pub unsafe fn table_add<const AREA: usize, const TABLE: usize>(_: *const u8, _: u64, _: u64, _: u64) -> bool {
    false
}

#[cfg(any(not(target_arch = "aarch64"), miri))]
pub unsafe fn table_count<const AREA: usize, const TABLE: usize, const CELL: usize>(
    _: *const u8,
    _: u64,
    _: *const u8,
) -> bool {
    false
}

#[cfg(any(not(target_arch = "aarch64"), miri))]
pub unsafe fn table_count_run<
    const AREA: usize,
    const TABLE: usize,
    const CELL: usize,
    const STRIDE: usize,
>(
    _: *const u8,
    _: u64,
    _: *const u8,
    count: u64,
    _: u64,
) -> u64 {
    count
}

pub fn cpu_by_segment() -> u64 {
    0
}

pub fn node_and_cpu() -> u64 {
    0
}

pub fn cpu() -> u32 {
    0
}

#[inline(always)]
pub fn full_fence() {
    fence(Ordering::SeqCst);
}

/// Atomic, since nothing else keeps a signal handler out.
/// # Safety
/// As [`crate::inc_own`].
#[inline(always)]
pub unsafe fn inc_own<const DISP: usize>(base: *mut u64, offset: usize) {
    // SAFETY: writable and aligned (contract of this function).
    let cell = unsafe { AtomicU64::from_ptr(base.wrapping_byte_add(DISP + offset)) };
    compiler_fence(Ordering::SeqCst);
    cell.fetch_add(1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
}

/// # Safety
/// As [`crate::exchange_own`].
#[inline(always)]
pub unsafe fn exchange_own(word: *mut u32, old: u32, new: u32) -> bool {
    // SAFETY: readable, writable, aligned, accessed as an atomic (contract of this function).
    let word = unsafe { AtomicU32::from_ptr(word) };
    // [CPU-OWN] What the thread did before is seen with the word. Pairs with whatever its users name.
    word.compare_exchange(old, new, Ordering::Release, Ordering::Relaxed).is_ok()
}

#[cfg(feature = "std")]
pub fn libc_rseq() -> Option<(isize, u32)> {
    None
}
