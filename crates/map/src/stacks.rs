//! Stacks of addresses by number.
//!
//! For:     programs that count by stack.
//! State:   per number the index of an object: version, length, addresses.
//! Context: hit, signal, target; `get` also in another process, and in one that does not trust the others.
//! Keeps:   T1 the same stack has the same number while it is in the map. T2 a stack read is whole.
//! Checked: tests/semantics.rs, tests/other_process.rs, tests/untrusted.rs.
//! Source:  kernel `kernel/bpf/stackmap.c`: the number is the hash's place, a second stack for it is refused.

use crate::Error;
#[cfg(not(loom))]
use crate::place::Checked;
#[cfg(all(feature = "std", not(loom)))]
use crate::place::sized;
use crate::place::{Access, Place, close_write, open_write, versioned};
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use objcache::{Index, View};
use percpu::RseqOffset;

const HEAD: usize = 64;
const SLOTS: usize = 0;
const DEPTH: usize = 4;
const CACHE: usize = 8;
const REFUSED: usize = 16;

/// An object: version, length, hash, then the addresses.
const LEN: usize = 4;
const HASH: usize = 8;
const FRAMES: usize = 16;

/// How often a reader looks before it says Busy.
const TRIES: u32 = 1000;

/// Stacks of at most a fixed depth.
pub struct Stacks {
    look: StackTable,
    view: View<'static>,
    #[cfg(all(feature = "std", not(loom)))]
    home: Option<(objcache::ObjectCache, usize)>,
}

/// Stacks as their readers see them.
pub struct StackTable<M: Access = Place> {
    place: M,
    /// Where the object of index 1 lies.
    objects: M,
    /// See [`View::last_index`].
    last: u32,
    slots: u32,
    depth: u32,
}

impl Deref for Stacks {
    type Target = StackTable;

    #[inline(always)]
    fn deref(&self) -> &StackTable {
        &self.look
    }
}

impl Stacks {
    /// Room for `slots` numbers (rounded up to a power of two) and stacks of `depth` addresses.
    ///
    /// # Errors
    /// [`Error::Setup`].
    #[cfg(all(feature = "std", not(loom)))]
    pub fn create(arena: &objcache::Arena, slots: u32, depth: u32) -> Result<Stacks, Error> {
        let most = 1 << 31;
        let too_many = Error::Setup(objcache::Error::TooBig { size: slots as usize, most });
        let slots = slots.max(1).checked_next_power_of_two().ok_or(too_many)?;
        let object = FRAMES + depth as usize * 8;
        let cache = objcache::ObjectCache::builder(object).arena(arena).reserve(64).build()?;
        let offset = arena.take(sized(HEAD, slots as usize, 4)?)?;
        // SAFETY: taken just now; the cache keeps the arena.
        let place = unsafe { Place::new(arena.base()) }.at(offset);
        place.u32(SLOTS).store(slots, Relaxed);
        place.u32(DEPTH).store(depth, Relaxed);
        place.u32(CACHE).store(cache.offset() as u32, Relaxed);
        // SAFETY: the map keeps the cache, in `home`, for as long as it uses the view.
        let view = unsafe { cache.view_unbound() };
        let mut stacks = Stacks::over(place, view);
        stacks.home = Some((cache, offset));
        Ok(stacks)
    }

    /// The map at an offset in an arena mapped at `base`, made by another process.
    ///
    /// # Safety
    /// A map must lie there, and it and its arena must stay while the value is used: its maker must not have dropped it.
    pub unsafe fn attach(base: NonNull<u8>, offset: usize) -> Stacks {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new(base) }.at(offset);
        // SAFETY: the map's cache lies in the same arena; without rseq any process may use it.
        let view = unsafe { View::at(base, place.u32(CACHE).load(Relaxed) as usize, RseqOffset::NONE) };
        Self::over(place, view)
    }

    /// The map whose head is written.
    fn over(place: Place, view: View<'static>) -> Stacks {
        let (slots, depth) = (place.u32(SLOTS).load(Relaxed), place.u32(DEPTH).load(Relaxed));
        // SAFETY: where the arena's first object would lie, in the arena that is kept or was promised.
        let objects = unsafe { Place::new(view.payload(crate::hash::FIRST)) };
        Stacks {
            look: StackTable { place, objects, last: view.last_index(), slots, depth },
            view,
            #[cfg(all(feature = "std", not(loom)))]
            home: None,
        }
    }

    /// Where it lies in its arena; 0 if this is an attached one.
    #[cfg(all(feature = "std", not(loom)))]
    pub fn offset(&self) -> usize {
        self.home.as_ref().map_or(0, |(_, offset)| *offset)
    }

    /// The number of a stack, which is kept; addresses beyond the depth are left off.
    ///
    /// # Errors
    /// Exists if another stack has the number (counted), NoMemory.
    pub fn id(&self, frames: &[u64]) -> Result<u32, Error> {
        let frames = &frames[..frames.len().min(self.depth as usize)];
        let hash = frames.iter().fold(frames.len() as u64, |h, f| mix(h ^ f));
        let id = hash as u32 & (self.slots - 1);
        let slot = self.place.u32(HEAD + id as usize * 4);
        // [MAP-5] Sees the stack whose index this is. Pairs with [MAP-6].
        if let Some(there) = Index::from_raw(slot.load(Acquire)) {
            return self.same_or_refused(there.get(), hash, frames).map(|()| id);
        }
        let index = self.view.alloc().ok_or(Error::NoMemory)?;
        self.fill(index, hash, frames);
        // [MAP-6] Publishes the stack. Pairs with [MAP-5], [MAP-7].
        match slot.compare_exchange(0, index.get(), AcqRel, Acquire) {
            Ok(_) => Ok(id),
            Err(there) => {
                // SAFETY: nobody else has seen the object.
                unsafe { self.view.free(index) };
                let there = Index::from_raw(there).ok_or(Error::Busy)?;
                self.same_or_refused(there.get(), hash, frames).map(|()| id)
            }
        }
    }

    fn fill(&self, index: Index, hash: u64, frames: &[u64]) {
        let object = self.object(index.get());
        open_write(object.u32(0));
        object.u32(LEN).store(frames.len() as u32, Relaxed);
        object.u64(HASH).store(hash, Relaxed);
        for (n, frame) in frames.iter().enumerate() {
            object.u64(FRAMES + n * 8).store(*frame, Relaxed);
        }
        close_write(object.u32(0));
    }

    fn same_or_refused(&self, there: u32, hash: u64, frames: &[u64]) -> Result<(), Error> {
        let object = self.object(there);
        let is_same = object.u64(HASH).load(Relaxed) == hash
            && object.u32(LEN).load(Relaxed) as usize == frames.len()
            && frames.iter().enumerate().all(|(n, f)| object.u64(FRAMES + n * 8).load(Relaxed) == *f);
        if is_same {
            return Ok(());
        }
        self.place.u64(REFUSED).fetch_add(1, Relaxed);
        Err(Error::Exists)
    }

    /// Forgets a stack; its number may come to mean another.
    ///
    /// # Errors
    /// NotFound.
    pub fn delete(&self, id: u32) -> Result<(), Error> {
        if id >= self.slots {
            return Err(Error::NotFound);
        }
        let raw = self.place.u32(HEAD + id as usize * 4).swap(0, Relaxed);
        let index = Index::from_raw(raw).ok_or(Error::NotFound)?;
        // SAFETY: unlinked just now, by this thread alone; readers tell by the version.
        unsafe { self.view.free_rcu(index) };
        Ok(())
    }
}

#[cfg(not(loom))]
impl<'a> StackTable<Checked<'a>> {
    /// The map of so many numbers, a power of two, and stacks of this depth at an offset in an arena, all of which is `arena`,
    /// and which somebody else writes.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it does not fit there, or its head says something else.
    pub fn in_untrusted(
        arena: wire::Untrusted<'a>,
        offset: usize,
        slots: u32,
        depth: u32,
    ) -> Result<Self, Error> {
        let all = Checked::new(arena, 0, arena.len_bytes()).ok_or(Error::Damaged)?;
        let place = Checked::new(arena, offset, HEAD + slots as usize * 4).ok_or(Error::Damaged)?;
        let found = (place.u32(SLOTS).load(Relaxed), place.u32(DEPTH).load(Relaxed));
        if found != (slots, depth) || !slots.is_power_of_two() {
            return Err(Error::Damaged);
        }
        let last = u32::try_from(arena.len_bytes() / 8).unwrap_or(u32::MAX);
        // As `View::payload`: 8 bytes for each index, and the object behind its link.
        Ok(StackTable { place, objects: all.at(2 * size_of::<u64>()), last, slots, depth })
    }
}

impl<M: Access> StackTable<M> {
    /// The most numbers.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// The longest stack.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// As in `Hash`: an index that cannot be leads to the map's own head.
    fn object(&self, index: u32) -> M {
        let number = index.wrapping_sub(1);
        if number < self.last { self.objects.at(number as usize * 8) } else { self.place }
    }

    /// Copies a stack; its length.
    ///
    /// # Errors
    /// NotFound; Length if `out` is shorter than the stack; Busy if it changes all the time; Damaged if it cannot be.
    pub fn get(&self, id: u32, out: &mut [u64]) -> Result<usize, Error> {
        if id >= self.slots {
            return Err(Error::NotFound);
        }
        for _ in 0..TRIES {
            // [MAP-7] As [MAP-5], for readers by number. Pairs with [MAP-6].
            let raw = self.place.u32(HEAD + id as usize * 4).load(Acquire);
            if raw == 0 {
                return Err(Error::NotFound);
            }
            let object = self.object(raw);
            let got = versioned(object.u32(0), || {
                let len = object.u32(LEN).load(Relaxed) as usize;
                for (n, frame) in out.iter_mut().take(len.min(self.depth as usize)).enumerate() {
                    *frame = object.u64(FRAMES + n * 8).load(Relaxed);
                }
                len
            });
            match got {
                // No stack is that long.
                Some(wanted) if wanted > self.depth as usize => return Err(Error::Damaged),
                Some(wanted) if wanted > out.len() => return Err(Error::Length { given: out.len(), wanted }),
                Some(len) => return Ok(len),
                None => core::hint::spin_loop(),
            }
        }
        Err(Error::Busy)
    }

    /// Stacks that were refused because another had their number.
    pub fn refused(&self) -> u64 {
        self.place.u64(REFUSED).load(Relaxed)
    }
}

#[cfg(all(feature = "std", not(loom)))]
impl Drop for Stacks {
    /// Returns the numbers' memory; that of the stacks follows when readers have left.
    fn drop(&mut self) {
        if let Some((cache, offset)) = self.home.take() {
            // SAFETY: taken by `create` with this size; the one handle of this process ends, and who attached
            // elsewhere has promised not to use the map any more.
            unsafe { cache.arena().give_back(offset, HEAD + self.slots as usize * 4) };
        }
    }
}

/// Spreads a word's bits over the whole word.
#[inline(always)]
pub(crate) fn mix(word: u64) -> u64 {
    let wide = u128::from(word ^ 0x8bb8_4b93_962e_acc9) * 0x9e37_79b9_7f4a_7c15;
    (wide as u64) ^ (wide >> 64) as u64
}
