//! An array of buckets, and the newer one that will replace it.
//!
//! For:     the table.
//! State:   buckets, the seed that spreads keys over them, the newer array while entries move there.
//! Context: target.
//! Keeps:   A1 entries are in this array or in newer ones; once `future` is set it stays.
//! Checked: `tests/table.rs`.

use super::BuildError;
use crate::chain::{Bucket, Link};
use crate::fold::mix;
use crate::prim::{Acquire, AtomicPtr, Release};
use core::ptr;
use std::sync::Mutex;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Debug)]
pub(super) struct Array {
    mask: usize,
    seed: u64,
    buckets: Box<[Bucket]>,
    future: AtomicPtr<Array>,
}

impl Array {
    /// `len` must be a power of two.
    pub(super) fn new(len: usize, seed: u64) -> Result<Box<Array>, BuildError> {
        let bytes = len.saturating_mul(size_of::<Bucket>());
        let mut buckets = Vec::new();
        buckets.try_reserve_exact(len).map_err(|_| BuildError::NoMemory { bytes })?;
        buckets.resize_with(len, Bucket::new);
        let future = AtomicPtr::new(ptr::null_mut());
        Ok(Box::new(Array { mask: len - 1, seed, buckets: buckets.into_boxed_slice(), future }))
    }

    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.mask + 1
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    #[inline(always)]
    pub(super) fn bucket(&self, hash: u64) -> &Bucket {
        let spread = mix(hash ^ self.seed, GOLDEN) as usize;
        // The mask is the length less one, and the length a power of two.
        &self.buckets[spread & self.mask]
    }

    pub(super) fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// The newer array or null.
    #[inline(always)]
    pub(super) fn future(&self) -> *const Array {
        // [COLL-12] Orders the pointer before the array. Pairs with [COLL-13].
        self.future.load(Acquire)
    }

    /// Says that entries go to `array` from now on.
    pub(super) fn set_future(&self, array: *mut Array) {
        // [COLL-13] Orders the array's content before the pointer. Pairs with [COLL-12].
        self.future.store(array, Release);
    }

    /// Gives each entry of the chains to `free`, from the last table's drop.
    pub(super) fn drain(&self, free: impl Fn(*mut Link)) {
        let all = Mutex::new(Vec::new());
        for bucket in &self.buckets {
            let note = |at: *mut Link| {
                all.lock().unwrap_or_else(|e| e.into_inner()).push(at);
                false
            };
            // SAFETY: the table is being dropped: no reader and no writer is left, every entry is alive.
            unsafe { bucket.find(note) };
        }
        for mut at in all.into_inner().unwrap_or_else(|e| e.into_inner()) {
            while !at.is_null() {
                // SAFETY: as above; `at` is freed after its link was read.
                let dup = unsafe { Link::next_dup(at) };
                free(at);
                at = dup;
            }
        }
    }
}
