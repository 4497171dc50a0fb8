//! Lists that belong to one CPU, changed by restartable sequences.
//!
//! For:     free lists of an object cache: one item out or in without a lock prefix.
//! State:   none here; per CPU one word (head's index, length), per item a link word, one bound.
//! Context: hit, signal, target. Never blocks. A signal handler may run between any two instructions.
//! Keeps:   L1 an operation that returns `Some` or true happened once, as if nothing had come between.
//!          L2 one that returns `None` or false left the list as it was.
//!          L3 once the bound is 0 and the process has been fenced for rseq, no operation is under way.
//! Checked: tests below (threads, migration, signals); `torture mem`.

use crate::{RseqOffset, arch};

/// A list's word: the index of its head in the upper half, its length in the lower. Zero is empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub struct ListWord(pub u64);

impl ListWord {
    /// The list of `len` items that begins at index `head`.
    #[inline(always)]
    pub const fn new(head: u32, len: u32) -> ListWord {
        ListWord((head as u64) << 32 | len as u64)
    }

    /// The index of the first item; 0 if there is none.
    #[inline(always)]
    pub const fn head(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// How many items there are.
    #[inline(always)]
    pub const fn len(self) -> u32 {
        self.0 as u32
    }

    /// True without items.
    #[inline(always)]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Takes the first item of the calling CPU's list: its index, and the CPU. `None` if nothing was done.
///
/// The word of CPU `c` is `DISP + (c << SHIFT)` bytes from `base`, the bound (a `u32`) `BOUND` bytes from it;
/// item `i` lies `8 * i` bytes from `items`. Nothing is done without rseq, on a CPU not below the bound,
/// or if the list is empty.
///
/// # Safety
/// * `offset` must fit the calling thread (contract of [`RseqOffset::new`]).
/// * The bound must be readable, and each CPU below it must have its word, writable and aligned.
/// * The words must be written by functions of this file alone, or while L3 holds.
/// * An item on a list must be readable, begin with the index of the next item (`u32`, 0 at the end), and
///   be on that list alone.
#[inline(always)]
pub unsafe fn list_pop<const SHIFT: u32, const DISP: usize, const BOUND: isize>(
    offset: RseqOffset,
    base: *mut u8,
    items: *const u8,
) -> Option<(u32, u32)> {
    if !offset.is_some() {
        return None;
    }
    // SAFETY: the caller's duties are the same.
    unsafe { arch::rseq_list_pop::<SHIFT, DISP, BOUND>(offset.get(), base, items) }
}

/// Puts an item in front of the calling CPU's list: the list's new word. `None` if it was not put.
///
/// The item's first 8 bytes become the next item's index, 0 above it; also when it was not put they may
/// have changed.
///
/// # Safety
/// As [`list_pop`]; and `item` must be the address of item `index`, writable, aligned and the caller's own.
#[inline(always)]
pub unsafe fn list_push<const SHIFT: u32, const DISP: usize, const BOUND: isize>(
    offset: RseqOffset,
    base: *mut u8,
    item: *mut u8,
    index: u32,
) -> Option<ListWord> {
    if !offset.is_some() {
        return None;
    }
    // SAFETY: the caller's duties are the same.
    let word =
        unsafe { arch::rseq_list_push::<SHIFT, DISP, BOUND>(offset.get(), base, item, (index as u64) << 32) };
    word.map(ListWord)
}

/// Stores `new` if the thread is on `cpu`, `cpu` is below the bound and the word is `expect`; else false.
///
/// # Safety
/// As [`list_pop`]: `word` must be that of `cpu`. Whoever stores a list must own its items, and who
/// replaces one owns those afterwards.
#[inline(always)]
pub unsafe fn store_if_below(
    offset: RseqOffset,
    cpu: u32,
    bound: *const u32,
    word: *mut u64,
    expect: ListWord,
    new: ListWord,
) -> bool {
    if !offset.is_some() {
        return false;
    }
    // SAFETY: the caller's duties are the same.
    unsafe { arch::rseq_store_if_below(offset.get(), cpu, bound, word, expect.0, new.0) }
}

#[cfg(all(test, target_arch = "x86_64", target_env = "gnu", not(miri)))]
mod tests;
