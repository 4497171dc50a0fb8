//! Memory that another process may write at any moment.
//!
//! For:     whatever outside the target reads what the target can write: counts, rings, open calls, the doorbell.
//! State:   where it lies and how long it is: known to us, never read from it.
//! Context: control.
//! Keeps:   V1 nothing outside the view is read or written, whatever offset is asked for.
//!          V2 a word is copied out by one load: what was checked is what is used.
//! Checked: tests below; testkit `hostile`, a target that scribbles over all of it.

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes that are shared with somebody who is not trusted.
#[derive(Clone, Copy, Debug)]
pub struct Untrusted<'a> {
    base: NonNull<u8>,
    len: usize,
    mapped: PhantomData<&'a AtomicU64>,
}

impl<'a> Untrusted<'a> {
    /// The `len` bytes at `base`.
    ///
    /// # Safety
    /// They must be mapped, readable and writable as long as `'a`, `base` a multiple of 8, the file behind them must not
    /// become shorter, and this process must use them as atomics alone.
    pub unsafe fn new(base: NonNull<u8>, len: usize) -> Untrusted<'a> {
        Untrusted { base, len, mapped: PhantomData }
    }

    /// How many bytes.
    pub fn len_bytes(self) -> usize {
        self.len
    }

    /// The `len` bytes from `offset` on; `None` if they are not all there.
    pub fn part(self, offset: usize, len: usize) -> Option<Untrusted<'a>> {
        let at = self.place(offset, len, 8)?;
        Some(Untrusted { base: at, len, mapped: PhantomData })
    }

    /// The word at `offset`; `None` if it is not in here, or not at a multiple of 8.
    pub fn word(self, offset: usize) -> Option<&'a AtomicU64> {
        let at = self.place(offset, size_of::<u64>(), align_of::<AtomicU64>())?.cast::<AtomicU64>();
        // SAFETY: in bounds and aligned (`place`), mapped as long as `'a` and used as atomics alone (contract of `new`).
        Some(unsafe { at.as_ref() })
    }

    /// The word of 32 bits at `offset`, under the same conditions.
    pub fn half(self, offset: usize) -> Option<&'a AtomicU32> {
        let at = self.place(offset, size_of::<u32>(), align_of::<AtomicU32>())?.cast::<AtomicU32>();
        // SAFETY: as in `word`.
        Some(unsafe { at.as_ref() })
    }

    /// The `len` words of 32 bits from `offset` on, under the same conditions.
    pub fn halves(self, offset: usize, len: usize) -> Option<&'a [AtomicU32]> {
        let bytes = len.checked_mul(size_of::<u32>())?;
        let at = self.place(offset, bytes, align_of::<AtomicU32>())?.cast::<AtomicU32>();
        // SAFETY: as in `word`, for all of them; any bytes are atomics.
        Some(unsafe { core::slice::from_raw_parts(at.as_ptr(), len) })
    }

    /// A copy of the word at `offset`: one load, ordered with nothing.
    pub fn load(self, offset: usize) -> Option<u64> {
        self.word(offset).map(|word| word.load(Ordering::Relaxed))
    }

    fn place(self, offset: usize, len: usize, align: usize) -> Option<NonNull<u8>> {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        if !is_inside || !offset.is_multiple_of(align) {
            return None;
        }
        NonNull::new(self.base.as_ptr().wrapping_add(offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_is_reached_and_nothing_askew() {
        let words: [AtomicU64; 4] = [1, 2, 3, 4].map(AtomicU64::new);
        // SAFETY: four aligned words that outlive the view, used as atomics alone.
        let view: Untrusted<'_> = unsafe { Untrusted::new(NonNull::from(&words).cast(), 32) };
        assert_eq!([0, 8, 24].map(|at| view.load(at)), [Some(1), Some(2), Some(4)]);
        for wrong in [25, 32, 4, 1, usize::MAX, usize::MAX - 7] {
            assert!(view.load(wrong).is_none(), "{wrong}");
        }
        assert!(view.half(28).is_some() && view.half(32).is_none() && view.half(2).is_none());
        assert_eq!(view.halves(8, 6).map(<[AtomicU32]>::len), Some(6));
        assert!(
            view.halves(8, 7).is_none()
                && view.halves(2, 1).is_none()
                && view.halves(0, usize::MAX).is_none()
        );
        let part = view.part(8, 16).unwrap();
        assert_eq!((part.len_bytes(), part.load(8), part.load(16)), (16, Some(3), None));
        for (offset, len) in [(8, 25), (usize::MAX, 2), (8, usize::MAX), (4, 8)] {
            assert!(view.part(offset, len).is_none(), "{offset} {len}");
        }
    }
}
