//! Caches of every size up to 4088 bytes.
//!
//! For:     callers whose sizes are not known beforehand.
//! State:   eleven caches in one arena.
//! Context: as `ObjectCache`.
//! Keeps:   Z1 an object goes back to the cache that it came from, found by its chunk.
//! Checked: tests/life.rs.

use crate::chunk::CHUNK;
use crate::sizes::{CLASSES, HEADER, class_of};
use crate::{Arena, Error, Grace, ObjectCache};
use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

/// Objects of any size up to 4088 bytes, from eleven caches.
pub struct SizedCaches {
    arena: Arena,
    caches: Vec<ObjectCache>,
    first_id: u32,
}

impl SizedCaches {
    /// The eleven caches in an arena, with grace periods of `rcu` or of the default domain.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn new(arena: &Arena, rcu: Option<Arc<dyn Grace>>) -> Result<SizedCaches, Error> {
        let mut caches = Vec::new();
        for unit in CLASSES {
            let mut builder = ObjectCache::builder((unit - HEADER) as usize).arena(arena);
            if let Some(rcu) = &rcu {
                builder = builder.rcu(rcu.clone());
            }
            caches.push(builder.build()?);
        }
        let first_id = caches[0].view().head().id;
        Ok(SizedCaches { arena: arena.clone(), caches, first_id })
    }

    /// Takes an object of at least `size` bytes; `None` for 0, for more than 4088, or if there is none.
    ///
    /// # Context
    /// Any, as [`View::alloc`](crate::View::alloc).
    #[inline]
    pub fn alloc(&self, size: usize) -> Option<NonNull<u8>> {
        self.caches[class_of(size)?].alloc()
    }

    /// The cache that an object came from.
    fn cache_of(&self, object: NonNull<u8>) -> Option<&ObjectCache> {
        let offset = (object.as_ptr() as usize).wrapping_sub(self.arena.base().as_ptr() as usize);
        let chunk = u32::try_from(offset / CHUNK).ok().filter(|n| *n < self.arena.chunks())?;
        let id = self.arena.chunk(chunk).owner.load(Relaxed);
        let cache = self.caches.iter().find(|c| c.view().head().id == id);
        debug_assert!(cache.is_none() || id >= self.first_id);
        cache
    }

    /// Gives an object back; one that is no cache's is ignored.
    ///
    /// # Safety
    /// As [`View::free`](crate::View::free).
    #[inline]
    pub unsafe fn free(&self, object: NonNull<u8>) {
        if let Some(cache) = self.cache_of(object) {
            // SAFETY: the caller's duties are the same.
            unsafe { cache.free(object) };
        }
    }

    /// Gives an object back after a grace period; one that is no cache's is ignored.
    ///
    /// # Safety
    /// As [`View::free_rcu`](crate::View::free_rcu).
    #[inline]
    pub unsafe fn free_rcu(&self, object: NonNull<u8>) {
        if let Some(cache) = self.cache_of(object) {
            // SAFETY: the caller's duties are the same.
            unsafe { cache.free_rcu(object) };
        }
    }

    /// The caches, in the order of [`CLASSES`].
    pub fn caches(&self) -> &[ObjectCache] {
        &self.caches
    }
}
