//! Making a hash.
//!
//! For:     set-up.
//! State:   the description.
//! Context: control.
//! Keeps:   what cannot be is refused.
//! Checked: tests/semantics.rs.

use super::{BUCKETS, CACHE, COPIES, DATA, END, HEAD, Hash, KEY, KIND, LIMIT, LRU, PER_CPU, PLAIN, VALUE};
use crate::Error;
use crate::credit::Credits;
use crate::place::{Place, words};
use core::sync::atomic::Ordering::Relaxed;
use objcache::{Arena, Grace, ObjectCache, Ticket};
use std::sync::Arc;

/// How a hash is to be.
pub struct HashBuilder {
    key: usize,
    value: usize,
    limit: u32,
    kind: u32,
    preallocated: bool,
    rcu: Option<Arc<dyn Grace>>,
    hurry: bool,
}

impl Hash {
    /// Starts to describe a hash of at most `limit` keys.
    pub fn builder(key_bytes: usize, value_bytes: usize, limit: u32) -> HashBuilder {
        HashBuilder {
            key: key_bytes,
            value: value_bytes,
            limit,
            kind: 0,
            preallocated: false,
            rcu: None,
            hurry: true,
        }
    }

    /// Where it lies in its arena; 0 if this is an attached one.
    pub fn offset(&self) -> usize {
        self.home.as_ref().map_or(0, |(_, offset)| *offset)
    }

    /// The cache of the elements, unless this is an attached one.
    pub fn cache(&self) -> Option<&ObjectCache> {
        self.home.as_ref().map(|(cache, _)| cache)
    }

    /// Ends the map; its elements' memory returns when readers have left.
    pub fn destroy(mut self) -> Option<Ticket> {
        self.clear();
        self.home.take().map(|(cache, _)| cache.destroy())
    }
}

impl HashBuilder {
    /// One value per CPU for each key.
    pub fn per_cpu(mut self) -> HashBuilder {
        self.kind |= PER_CPU;
        self
    }

    /// Forgets keys that were not used lately to make room for new ones; implies `preallocated`.
    pub fn lru(mut self) -> HashBuilder {
        self.kind |= LRU;
        self.preallocated()
    }

    /// Elements for all keys are made beforehand, and go back without a grace period, as in the kernel.
    pub fn preallocated(mut self) -> HashBuilder {
        self.preallocated = true;
        self.kind |= PLAIN;
        self
    }

    /// Elements go back without a grace period: who looks at a value in place may see another key's.
    pub fn plain_free(mut self) -> HashBuilder {
        self.kind |= PLAIN;
        self
    }

    /// Waits for readers of this domain.
    pub fn rcu(mut self, rcu: Arc<dyn Grace>) -> HashBuilder {
        self.rcu = Some(rcu);
        self
    }

    /// Whether grace periods are hurried when memory waits for them; on.
    pub fn hurry(mut self, on: bool) -> HashBuilder {
        self.hurry = on;
        self
    }

    /// Makes the map.
    ///
    /// # Errors
    /// [`Error::Setup`].
    pub fn build(self, arena: &Arena) -> Result<Hash, Error> {
        if self.key == 0 || self.value == 0 || self.limit == 0 {
            return Err(Error::Setup(objcache::Error::ZeroSize));
        }
        let cpus = percpu::possible_cpus();
        let stride =
            if self.kind & PER_CPU != 0 { self.value.next_multiple_of(64) } else { words(self.value) };
        let copies = if self.kind & PER_CPU != 0 { cpus as usize } else { 1 };
        let mut builder = ObjectCache::builder(DATA + words(self.key) + copies * stride).arena(arena);
        // Beyond the keys, one batch per CPU may lie on another CPU's list.
        let ready =
            if self.preallocated { self.limit.saturating_add(128 * cpus) } else { 256.min(self.limit) };
        builder = builder.reserve(ready).hurry(self.hurry);
        if let Some(rcu) = &self.rcu {
            builder = builder.rcu(rcu.clone());
        }
        let cache = builder.build()?;
        let buckets = self.limit.next_power_of_two();
        let offset = arena.take(HEAD + Credits::size(cpus) + buckets as usize * 8)?;
        // SAFETY: taken just now; the cache keeps the arena.
        let place = unsafe { Place::new(arena.base()) }.at(offset);
        let words = [
            (BUCKETS, buckets),
            (KEY, self.key as u32),
            (VALUE, self.value as u32),
            (LIMIT, self.limit),
            (COPIES, cpus),
            (KIND, self.kind),
            (CACHE, cache.offset() as u32),
        ];
        words.into_iter().for_each(|(at, word)| place.u32(at).store(word, Relaxed));
        let mut map = Hash::over(place, cache.view());
        map.credits.init(self.limit);
        (0..buckets).for_each(|b| map.bucket(b).head.store(END | b, Relaxed));
        map.home = Some((cache, offset));
        Ok(map)
    }
}
