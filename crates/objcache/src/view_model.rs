//! What stands for a cache in models of what is built on it.
//!
//! For:     the models of `map`: elements are taken and given back, and may be taken again at once.
//! State:   per model a list of free elements under a lock, which orders what their owners do, as lists and stacks do.
//! Context: models.
//! Keeps:   nothing that is not obvious.
//! Checked: the models of `map`; those of this crate check the real lists.

use crate::Index;
use core::marker::PhantomData;
use core::ptr::NonNull;
use loom::sync::Mutex;
use percpu::RseqOffset;
use std::cell::Cell;

struct Free(Mutex<Vec<u32>>);

// loom runs all threads of a model on the thread of its test.
std::thread_local! {
    static FREE: Cell<*const Free> = const { Cell::new(core::ptr::null()) };
}

/// The elements of a model.
#[derive(Clone, Copy)]
pub struct View<'a>(PhantomData<&'a ()>);

impl View<'_> {
    /// Begins a model with these elements, the last one to be taken first.
    pub fn begin(indexes: &[u32]) {
        // Never freed: models are many, but short-lived and small.
        FREE.set(Box::leak(Box::new(Free(Mutex::new(indexes.to_vec())))));
    }

    fn free_list(&self) -> &'static Free {
        // SAFETY: set by `begin`, which a model calls first, to what is never freed.
        unsafe { &*FREE.get() }
    }

    /// # Safety
    /// None here.
    pub unsafe fn at(_: NonNull<u8>, _: usize, _: RseqOffset) -> Self {
        View(PhantomData)
    }

    pub fn alloc(&self) -> Option<Index> {
        self.free_list().0.lock().ok()?.pop().map(Index)
    }

    /// # Safety
    /// The caller's element.
    pub unsafe fn free(&self, index: Index) {
        if let Ok(mut list) = self.free_list().0.lock() {
            list.push(index.get());
        }
    }

    /// # Safety
    /// The caller's element.
    pub unsafe fn free_rcu(&self, index: Index) {
        // SAFETY: the caller's duties are the same.
        unsafe { self.free(index) };
    }

    pub fn last_index(&self) -> u32 {
        u32::MAX
    }

    pub fn payload(&self, index: Index) -> NonNull<u8> {
        NonNull::without_provenance(
            core::num::NonZero::new(index.get() as usize * 8 + 8).unwrap_or(core::num::NonZero::<usize>::MIN),
        )
    }

    pub fn index_of(&self, object: NonNull<u8>) -> Index {
        Index((object.as_ptr() as usize / 8 - 1) as u32)
    }
}
