//! Short lists that belong to one CPU, changed by restartable sequences.
//!
//! For:     free lists of an object cache: one number out or in without a lock prefix.
//! State:   none here; per CPU a [`List`]; one bound for all.
//! Context: hit, signal, target. Never blocks. A signal handler may run between any two instructions. An operation that
//!          the kernel interrupts is given up: a thread that is single-stepped is interrupted in every one.
//! Keeps:   L1 an operation that returns `Some` or true happened once, as if nothing had come between.
//!          L2 one that returns `None` or false left the list as it was.
//!          L3 once the bound is 0 and the process has been fenced for rseq, no operation is under way.
//!          L4 no operation begins again.
//! Checked: tests below (threads, migration; with signals, which fails without the stores to `rseq_cs`);
//!          tests/stepped.rs (L4); `torture mem`.

use crate::{RseqOffset, arch};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Up to `CAP` numbers, last in, first out, and one more in front of them. Zeros are an empty list.
///
/// The front is what makes a push and the pop after it cheap: the pop waits for the number alone, where it would
/// wait for the length too, and the next push for the length that the pop has stored.
#[repr(C)]
pub struct List<const CAP: usize> {
    /// A number, or 0; taken first, and put first if it is free.
    front: AtomicU64,
    /// The length in the lowest 16 bits, above it the number of changes.
    word: AtomicU64,
    slots: [AtomicU32; CAP],
}

impl<const CAP: usize> List<CAP> {
    /// How many numbers there are.
    #[inline(always)]
    pub fn len(&self) -> usize {
        (self.word.load(Relaxed) as usize & 0xffff) + usize::from(self.front.load(Relaxed) != 0)
    }

    /// True without numbers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The numbers; exact while nobody changes the list.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        let (front, len) = (self.front.load(Relaxed) as u32, self.word.load(Relaxed) as usize & 0xffff);
        let slots = self.slots.iter().take(len).map(|slot| slot.load(Relaxed));
        slots.chain((front != 0).then_some(front))
    }

    /// Empties the list. For who keeps its CPU out.
    ///
    /// # Safety
    /// L3 must hold: no operation of the list may be under way, nor begin before this returns.
    pub unsafe fn clear(&self) {
        self.front.store(0, Relaxed);
        self.word.store((self.word.load(Relaxed) | 0xffff).wrapping_add(1), Relaxed);
    }
}

/// Takes the front of the calling CPU's list, or else its last number: the number, and the CPU. `None` if nothing was
/// done.
///
/// A number that will be taken some calls later is thought to name what lies 8 times it behind `near`, and that is
/// fetched into the cache; any address will do.
///
/// The [`List`] of CPU `c` is `DISP + (c << SHIFT)` bytes from `base`, the bound (a `u32`) `BOUND` bytes from
/// it. Nothing is done without rseq, on a CPU not below the bound, if the list is empty, or if the kernel came between.
///
/// # Safety
/// * `offset` must fit the calling thread (contract of [`RseqOffset::new`]).
/// * The bound must be readable, and each CPU below it must have its list, aligned to 8, with 16 readable bytes
///   before it.
/// * The lists must be changed by functions of this file alone, and by [`List::clear`] while L3 holds.
#[inline(always)]
pub unsafe fn list_pop<const SHIFT: u32, const DISP: usize, const BOUND: isize>(
    offset: RseqOffset,
    base: *mut u8,
    near: *const u8,
) -> Option<(u32, u32)> {
    if !offset.is_some() {
        return None;
    }
    // SAFETY: the caller's duties are the same.
    unsafe { arch::rseq_list_pop::<SHIFT, DISP, BOUND>(offset.get(), base, near) }
}

/// Puts a number, not 0, in front of the calling CPU's list, or on it; false if it was not put: the list is at its
/// limit, or the kernel came between.
///
/// # Safety
/// As [`list_pop`]; and behind the bound must be the limit (a `u32`), at most the `CAP` of the lists and
/// below 65536.
#[inline(always)]
pub unsafe fn list_push<const SHIFT: u32, const DISP: usize, const BOUND: isize>(
    offset: RseqOffset,
    base: *mut u8,
    item: u32,
) -> bool {
    if !offset.is_some() {
        return false;
    }
    debug_assert!(item != 0);
    // SAFETY: the caller's duties are the same.
    unsafe { arch::rseq_list_push::<SHIFT, DISP, BOUND>(offset.get(), base, item) }
}

/// Puts numbers, none of them 0, on the calling CPU's list, as many as it has room for; how many. None if the kernel came
/// between.
///
/// # Safety
/// As [`list_push`].
pub unsafe fn list_push_all<const SHIFT: u32, const DISP: usize, const BOUND: isize>(
    offset: RseqOffset,
    base: *mut u8,
    items: &[u32],
) -> usize {
    if !offset.is_some() {
        return 0;
    }
    let (at, count) = (items.as_ptr(), items.len() as u32);
    // SAFETY: the caller's duties are the same; the slice is readable.
    (unsafe { arch::rseq_list_push_all::<SHIFT, DISP, BOUND>(offset.get(), base, at, count) }) as usize
}

/// Takes the last numbers of the calling CPU's list, as many as there are and `items` has room for; how many. None if the
/// kernel came between.
///
/// The front stays.
///
/// # Safety
/// As [`list_pop`].
pub unsafe fn list_pop_all<const SHIFT: u32, const DISP: usize, const BOUND: isize>(
    offset: RseqOffset,
    base: *mut u8,
    items: &mut [u32],
) -> usize {
    if !offset.is_some() {
        return 0;
    }
    let (at, count) = (items.as_mut_ptr(), items.len() as u32);
    // SAFETY: the caller's duties are the same; the slice is writable.
    (unsafe { arch::rseq_list_pop_all::<SHIFT, DISP, BOUND>(offset.get(), base, at, count) }) as usize
}

#[cfg(all(test, target_arch = "x86_64", target_env = "gnu", not(miri)))]
mod tests;
