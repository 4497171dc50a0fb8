//! Stacks of addresses by number.
//!
//! For:     programs and verbs that count by stack.
//! State:   per number a word that says where the stack lies, and the stacks one behind the other: length, addresses.
//! Context: hit, signal, target; `get` also in another process, and in one that does not trust the others.
//! Keeps:   T1 the same stack has the same number, and no other has it, as long as the map is. Two that meet both stay.
//!          T2 a stack read is whole: it is not changed once it can be found.
//!          T3 what finds no place is counted, and takes no room.
//! Checked: tests/semantics.rs, tests/other_process.rs, tests/untrusted.rs.
//! Source:  kernel `kernel/bpf/stackmap.c`, where the number is the hash's place and a second stack for it is refused: there the
//!          one that comes more often may be the one that is lost. Here the next places are tried.

use crate::Error;
#[cfg(not(loom))]
use crate::place::Checked;
#[cfg(all(feature = "std", not(loom)))]
use crate::place::sized;
use crate::place::{Access, Place};
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use wire::maps::chain;

const HEAD: usize = 64;
const SLOTS: usize = 0;
const DEPTH: usize = 4;
const REFUSED: usize = 16;
/// Words that are given out.
const USED: usize = 24;

/// How many places a stack may have.
const PROBES: u32 = 64;
/// Words for each number, on average: deeper stacks take of what others leave.
const WORDS_EACH: usize = 32;

/// Stacks of at most a fixed depth.
pub struct Stacks {
    look: StackTable,
    #[cfg(all(feature = "std", not(loom)))]
    home: Option<(objcache::Arena, usize)>,
}

/// Addresses of a stack, one mixed with the other in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mixed(u64);

impl Mixed {
    /// Of no address.
    pub const NONE: Mixed = Mixed(0);

    /// With the next one.
    #[inline(always)]
    #[must_use]
    pub fn and(self, frame: u64) -> Mixed {
        Mixed((self.0 ^ frame).wrapping_mul(K).rotate_left(29))
    }
}

/// Stacks as their readers see them.
pub struct StackTable<M: Access = Place> {
    place: M,
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

/// Words for stacks of a map with so many numbers.
const fn room(slots: u32, depth: u32) -> usize {
    let each = if (depth as usize) < WORDS_EACH { depth as usize + 1 } else { WORDS_EACH };
    // At least one of the deepest.
    slots as usize * each + depth as usize
}

impl Stacks {
    /// Bytes of a map of so many numbers, a power of two, and stacks of this depth. Pages that no stack needs are not touched.
    pub const fn bytes_for(slots: u32, depth: u32) -> usize {
        HEAD + (slots as usize + room(slots, depth)) * 8
    }

    /// Room for `slots` numbers (rounded up to a power of two) and stacks of `depth` addresses.
    ///
    /// # Errors
    /// [`Error::Setup`].
    #[cfg(all(feature = "std", not(loom)))]
    pub fn create(arena: &objcache::Arena, slots: u32, depth: u32) -> Result<Stacks, Error> {
        let most = 1 << 31;
        let too_many = Error::Setup(objcache::Error::TooBig { size: slots as usize, most });
        let slots = slots.max(1).checked_next_power_of_two().ok_or(too_many)?;
        let bytes =
            sized(HEAD + depth as usize * 8, slots as usize, 8 * (WORDS_EACH.min(depth as usize + 1) + 1))?;
        let offset = arena.take(bytes.max(Self::bytes_for(slots, depth)))?;
        // SAFETY: taken just now; the map keeps the arena.
        let place = unsafe { Place::new(arena.base()) }.at(offset);
        place.u32(SLOTS).store(slots, Relaxed);
        place.u32(DEPTH).store(depth, Relaxed);
        Ok(Stacks { look: StackTable { place, slots, depth }, home: Some((arena.clone(), offset)) })
    }

    /// The map at an offset in an arena mapped at `base`, made by another process.
    ///
    /// # Safety
    /// A map must lie there, and it and its arena must stay while the value is used: its maker must not have dropped it.
    #[inline(always)]
    pub unsafe fn attach(base: NonNull<u8>, offset: usize) -> Stacks {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new(base) }.at(offset);
        let (slots, depth) = (place.u32(SLOTS).load(Relaxed), place.u32(DEPTH).load(Relaxed));
        Stacks {
            look: StackTable { place, slots, depth },
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
    /// NoMemory if it has no place, or no room is left for it (counted).
    #[inline(always)]
    pub fn id(&self, frames: &[u64]) -> Result<u32, Error> {
        let frames = frames.get(..self.depth as usize).unwrap_or(frames);
        self.find(frames, frames.iter().fold(Mixed::NONE, |mixed, frame| mixed.and(*frame)))
    }

    /// The same where the addresses were mixed as they were found: a chain of multiplications beside the finder's chain of reads takes no
    /// time of its own. `mixed` must be of just these addresses, or the stack may have two numbers.
    ///
    /// # Errors
    /// As of [`id`](Self::id).
    #[inline(always)]
    pub fn id_of_mixed(&self, frames: &[u64], mixed: Mixed) -> Result<u32, Error> {
        match frames.len() <= self.depth as usize {
            true => self.find(frames, mixed),
            false => self.id(frames),
        }
    }

    #[inline(always)]
    fn find(&self, frames: &[u64], mixed: Mixed) -> Result<u32, Error> {
        let hash = mix(mixed.0 ^ frames.len() as u64);
        let tag = hash & TAG;
        let mut own = 0;
        for probe in 0..PROBES.min(self.slots) {
            let id = (hash as u32).wrapping_add(probe) & (self.slots - 1);
            let slot = self.slot(id);
            // [MAP-5] Sees the stack that this word leads to. Pairs with [MAP-6].
            let mut found = slot.load(Acquire);
            if found == 0 {
                if own == 0 {
                    own = self.write(frames).map(|at| tag | at).ok_or_else(|| self.refuse())?;
                }
                // [MAP-6] Publishes the stack. Pairs with [MAP-5], [MAP-7].
                match slot.compare_exchange(0, own, AcqRel, Acquire) {
                    Ok(_) => return Ok(id),
                    Err(other) => found = other,
                }
            }
            // Who has lost a race to the same stack leaves its words unused.
            if found & TAG == tag && self.is_same(found & !TAG, frames) {
                return Ok(id);
            }
        }
        Err(self.refuse())
    }

    #[cold]
    #[inline]
    fn refuse(&self) -> Error {
        self.place.u64(REFUSED).fetch_add(1, Relaxed);
        Error::NoMemory
    }

    /// Writes a stack where nobody looks yet; which word it begins at, counted from 1.
    #[cold]
    #[inline]
    fn write(&self, frames: &[u64]) -> Option<u64> {
        let (room, need) = (room(self.slots, self.depth) as u64, frames.len() as u64 + 1);
        let used = self.place.u64(USED);
        let mut at = used.load(Relaxed);
        loop {
            let end = at.checked_add(need).filter(|end| *end <= room)?;
            match used.compare_exchange_weak(at, end, Relaxed, Relaxed) {
                Ok(_) => break,
                Err(now) => at = now,
            }
        }
        self.word(at).store(frames.len() as u64, Relaxed);
        for (n, frame) in (at + 1..).zip(frames) {
            self.word(n).store(*frame, Relaxed);
        }
        Some(at + 1)
    }

    #[inline(always)]
    fn is_same(&self, at: u64, frames: &[u64]) -> bool {
        let at = at.wrapping_sub(1);
        self.word(at).load(Relaxed) == frames.len() as u64
            && (at + 1..).zip(frames).all(|(n, frame)| self.word(n).load(Relaxed) == *frame)
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
        let table = Self::made(arena, offset, slots, depth)?;
        let found = (table.place.u32(SLOTS).load(Relaxed), table.place.u32(DEPTH).load(Relaxed));
        if found == (slots, depth) { Ok(table) } else { Err(Error::Damaged) }
    }

    /// Makes a map where there is nothing yet but zeros.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it does not fit there.
    pub fn lay_out(arena: wire::Untrusted<'a>, offset: usize, slots: u32, depth: u32) -> Result<Self, Error> {
        let table = Self::made(arena, offset, slots, depth)?;
        table.place.u32(SLOTS).store(slots, Relaxed);
        table.place.u32(DEPTH).store(depth, Relaxed);
        Ok(table)
    }

    /// The map that the caller made there by [`lay_out`](Self::lay_out): its head is not believed.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it does not fit there.
    pub fn made(arena: wire::Untrusted<'a>, offset: usize, slots: u32, depth: u32) -> Result<Self, Error> {
        if !slots.is_power_of_two()
            || slots as usize > arena.len_bytes()
            || depth as usize > arena.len_bytes()
        {
            return Err(Error::Damaged);
        }
        let place = Checked::new(arena, offset, Stacks::bytes_for(slots, depth)).ok_or(Error::Damaged)?;
        Ok(StackTable { place, slots, depth })
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

    #[inline(always)]
    fn slot(&self, id: u32) -> &crate::prim::AtomicU64 {
        self.place.u64(HEAD + id as usize * 8)
    }

    /// A word of the stacks'.
    #[inline(always)]
    fn word(&self, at: u64) -> &crate::prim::AtomicU64 {
        self.place.u64(HEAD + (self.slots as usize + at as usize) * 8)
    }

    /// Copies a stack; its length.
    ///
    /// # Errors
    /// NotFound; Length if `out` is shorter than the stack; Damaged if it cannot be.
    pub fn get(&self, id: u32, out: &mut [u64]) -> Result<usize, Error> {
        if id >= self.slots {
            return Err(Error::NotFound);
        }
        // [MAP-7] As [MAP-5], for readers by number. Pairs with [MAP-6].
        let at = (self.slot(id).load(Acquire) & !TAG).checked_sub(1).ok_or(Error::NotFound)?;
        let room = room(self.slots, self.depth) as u64;
        if at >= room {
            return Err(Error::Damaged);
        }
        let wanted = self.word(at).load(Relaxed);
        if wanted > u64::from(self.depth) || at + wanted >= room {
            return Err(Error::Damaged);
        }
        let (len, given) = (wanted as usize, out.len());
        let out = out.get_mut(..len).ok_or(Error::Length { given, wanted: len })?;
        for (n, frame) in (at + 1..).zip(out) {
            *frame = self.word(n).load(Relaxed);
        }
        Ok(len)
    }

    /// Stacks that were refused because the map was full.
    pub fn refused(&self) -> u64 {
        self.place.u64(REFUSED).load(Relaxed)
    }
}

#[cfg(all(feature = "std", not(loom)))]
impl Drop for Stacks {
    fn drop(&mut self) {
        if let Some((arena, offset)) = self.home.take() {
            // SAFETY: taken by `create` with this size; the one handle of this process ends, and who attached
            // elsewhere has promised not to use the map any more.
            unsafe { arena.give_back(offset, Stacks::bytes_for(self.slots, self.depth)) };
        }
    }
}

/// An odd number whose bits are about half set.
const K: u64 = chain::SPREAD;
/// The part of a slot's word that tells stacks apart; the rest says where the stack lies.
const TAG: u64 = !0 << 40;

/// Spreads a word's bits over the whole word.
#[inline(always)]
pub(crate) fn mix(word: u64) -> u64 {
    let wide = u128::from(word ^ chain::SALT) * u128::from(chain::SPREAD);
    (wide as u64) ^ (wide >> 64) as u64
}
