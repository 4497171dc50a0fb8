//! Making a hash.
//!
//! For:     set-up.
//! State:   the description.
//! Context: control.
//! Keeps:   what cannot be is refused.
//! Checked: tests/semantics.rs.

use super::{CACHE, DATA, END, HEAD, Hash, LRU, PER_CPU, PLAIN, Shape};
use crate::Error;
use crate::credit::Credits;
use crate::place::{Place, length, sized, words};
use core::sync::atomic::Ordering::Relaxed;
use objcache::{Arena, Grace, ObjectCache, Ticket};
use std::sync::Arc;

/// How a hash is to be.
pub struct HashBuilder {
    key: usize,
    value: usize,
    limit: u32,
    kind: u32,
    on_demand: bool,
    rcu: Option<Arc<dyn Grace>>,
    hurry: bool,
}

impl Hash {
    /// Starts to describe a hash of at most `limit` keys, whose elements are made beforehand: any thread can bring it to
    /// its limit.
    ///
    /// ```
    /// # use map::{Flag, Hash};
    /// let arena = objcache::Arena::private(4 << 20)?;
    /// let map = Hash::builder(8, 8, 1000).build(&arena)?;
    /// for n in 0..1000u64 {
    ///     map.update(&n.to_ne_bytes(), &n.to_ne_bytes(), Flag::Any)?;
    /// }
    /// # Ok::<(), map::Error>(())
    /// ```
    pub fn builder(key_bytes: usize, value_bytes: usize, limit: u32) -> HashBuilder {
        HashBuilder {
            key: key_bytes,
            value: value_bytes,
            limit,
            kind: 0,
            on_demand: false,
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

    /// Ends the map: its buckets' memory returns at once, that of its elements when readers have left.
    pub fn destroy(mut self) -> Option<Ticket> {
        self.end()
    }

    fn end(&mut self) -> Option<Ticket> {
        let (cache, offset) = self.home.take()?;
        self.clear();
        let bytes = HEAD + Credits::size(self.shape.cpus) + (self.mask as usize + 1) * 8;
        // SAFETY: taken by `build` with this size; the one handle of this process ends, and who attached elsewhere
        // has promised not to use the map any more.
        unsafe { cache.arena().give_back(offset, bytes) };
        Some(cache.destroy())
    }
}

impl Drop for Hash {
    /// As [`destroy`](Hash::destroy), without a word about the end.
    fn drop(&mut self) {
        self.end();
    }
}

impl HashBuilder {
    /// One value per CPU for each key.
    pub fn per_cpu(mut self) -> HashBuilder {
        self.kind |= PER_CPU;
        self
    }

    /// Forgets keys that were not used lately to make room for new ones; its elements go back without a grace period.
    pub fn lru(mut self) -> HashBuilder {
        self.kind |= LRU;
        self.preallocated()
    }

    /// Elements for all keys are made beforehand, and go back without a grace period, as in the kernel.
    pub fn preallocated(mut self) -> HashBuilder {
        self.on_demand = false;
        self.kind |= PLAIN;
        self
    }

    /// Elements are made as they are wanted (BPF_F_NO_PREALLOC): for maps that are limited to far more keys than they
    /// will have.
    ///
    /// The worker makes them. Whoever adds keys faster gets NoMemory until it has.
    pub fn on_demand(mut self) -> HashBuilder {
        self.on_demand = true;
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
        if self.limit == 0 {
            return Err(Error::Setup(objcache::Error::ZeroSize));
        }
        let cpus = percpu::possible_cpus();
        let (key, value) = (length(self.key)?, length(self.value)?);
        let shape = Shape { key, value, limit: self.limit, cpus, kind: self.kind };
        let too_many = Error::Setup(objcache::Error::TooBig { size: self.limit as usize, most: 1 << 31 });
        let buckets = self.limit.checked_next_power_of_two().ok_or(too_many)?;
        let bytes = sized(HEAD + Credits::size(cpus), buckets as usize, 8)?;
        let mut builder = ObjectCache::builder(sized(
            DATA + words(self.key),
            shape.copies() as usize,
            shape.value_stride(),
        )?)
        .arena(arena)
        .hurry(self.hurry);
        builder = builder.reserve(256.min(self.limit));
        if !self.on_demand {
            // Beyond the keys, one batch per CPU may lie on another CPU's list.
            builder = builder.stock(self.limit.saturating_add(128 * cpus));
        }
        if let Some(rcu) = &self.rcu {
            builder = builder.rcu(rcu.clone());
        }
        let cache = builder.build()?;
        let offset = arena.take(bytes)?;
        // SAFETY: taken just now; the cache keeps the arena.
        let place = unsafe { Place::new(arena.base()) }.at(offset);
        shape.words().into_iter().for_each(|(at, word)| place.u32(at).store(word, Relaxed));
        place.u32(CACHE).store(cache.offset() as u32, Relaxed);
        // SAFETY: the map keeps the cache, in `home`, for as long as it uses the view.
        let mut map = Hash::over(place, unsafe { cache.view_unbound() });
        map.credits.init(self.limit);
        (0..buckets).for_each(|b| map.bucket(b).head().store(END | b, Relaxed));
        map.home = Some((cache, offset));
        Ok(map)
    }
}
