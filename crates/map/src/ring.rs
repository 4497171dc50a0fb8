//! Records from many producers to one reader.
//!
//! For:     events: from hits and handlers in the target to the controller.
//! State:   what was reserved, what was consumed, what was lost; then the bytes. Consumed bytes are zeros.
//! Context: producers: hit, signal, target. The reader may be another process.
//! Keeps:   N1 a record is read whole, once, in the order of reservation. N2 produced = read + lost, exactly.
//!          N3 a producer never waits: what does not fit is lost, and counted.
//!          N4 a record that is reserved and not submitted holds up those behind it and nothing else.
//!          N5 a reader believes no length that it finds: what cannot be is given up, and each look ends.
//! Checked: model `ring` (mutants MAP-12, MAP-13, no-turn), tests/ring.rs (two processes, signal handlers), tests/untrusted.rs (N5), `bench map-perf`.
//! Source:  kernel `kernel/bpf/ringbuf.c` for order and headers. Departs: reservation by compare-exchange in
//!          the place of a lock, so that a handler may interrupt a producer; the reader zeroes what it has
//!          read, which tells a header that is not written yet from an old one.

use crate::Error;
#[cfg(not(loom))]
use crate::place::Checked;
use crate::place::{Access, Place, words};
use crate::prim::{AcqRel, Acquire, Relaxed, Release};
use core::ptr::NonNull;

/// Three line pairs in front of the bytes.
const HEAD: usize = 384;
const SIZE: usize = 0;
const RESERVED: usize = 128;
const CONSUMED: usize = 256;
const LOST: usize = 264;

/// A record's header: present, not submitted yet, not to be read; and the length below.
const PRESENT: u32 = 1 << 31;
const OPEN: u32 = 1 << 30;
const SKIP: u32 = 1 << 29;
const LEN: u32 = SKIP - 1;

/// Writes the head of a ring of `size` bytes into a model's memory.
#[cfg(loom)]
pub fn lay_out_ring(base: NonNull<u8>, size: usize) {
    // SAFETY: a model's memory.
    unsafe { Place::new(base) }.u64(SIZE).store(size as u64, Relaxed);
}

/// The producers' side of a ring.
#[derive(Clone)]
pub struct Ring<M = Place> {
    place: M,
    size: usize,
    #[cfg(all(feature = "std", not(loom)))]
    home: Option<(objcache::Arena, usize)>,
}

/// Bytes of a record to be: written, then submitted. Dropped, it is left out.
pub struct Reservation<'a> {
    ring: &'a Ring,
    at: u64,
    len: usize,
    is_done: bool,
}

impl Ring {
    /// Bytes that a ring takes which has so many for records.
    pub const fn bytes_for(size: usize) -> usize {
        HEAD + size
    }

    /// A new ring of so many bytes, rounded up to a power of two.
    ///
    /// # Errors
    /// [`Error::Setup`].
    #[cfg(all(feature = "std", not(loom)))]
    pub fn create(arena: &objcache::Arena, bytes: usize) -> Result<Ring, Error> {
        let size = bytes.clamp(64, 1 << 28).next_power_of_two();
        let offset = arena.take(HEAD + size)?;
        // SAFETY: taken just now; the ring keeps the arena.
        let place = unsafe { Place::new(arena.base()) }.at(offset);
        place.u64(SIZE).store(size as u64, Relaxed);
        Ok(Ring { place, size, home: Some((arena.clone(), offset)) })
    }

    /// The ring at an offset in an arena mapped at `base`, made by another process.
    ///
    /// # Safety
    /// A ring must lie there and stay mapped while the value is used.
    pub unsafe fn attach(base: NonNull<u8>, offset: usize) -> Ring {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new(base) }.at(offset);
        Ring {
            place,
            size: place.u64(SIZE).load(Relaxed) as usize,
            #[cfg(all(feature = "std", not(loom)))]
            home: None,
        }
    }

    /// The ring of so many bytes at this address: nothing is read or compared, the length is the caller's.
    ///
    /// # Safety
    /// As for [`attach`](Self::attach); `size` must be a power of two, and the ring's.
    #[inline(always)]
    pub unsafe fn at(base: NonNull<u8>, size: usize) -> Ring {
        Ring {
            // SAFETY: the caller's promise.
            place: unsafe { Place::new(base) },
            size,
            #[cfg(all(feature = "std", not(loom)))]
            home: None,
        }
    }

    /// Where it lies in its arena; 0 if this is an attached one.
    #[cfg(all(feature = "std", not(loom)))]
    pub fn offset(&self) -> usize {
        self.home.as_ref().map_or(0, |(_, offset)| *offset)
    }

    /// Reserves room for a record of `len` bytes.
    ///
    /// # Errors
    /// Full if the reader has not made room: counted as lost. TooLong if it can never fit: not counted.
    #[inline]
    pub fn reserve(&self, len: usize) -> Result<Reservation<'_>, Error> {
        let room = self.try_reserve(len);
        if matches!(room, Err(Error::Full)) {
            self.place.u64(LOST).fetch_add(1, Relaxed);
        }
        room
    }

    /// [`reserve`](Self::reserve) for who counts by himself what is lost.
    ///
    /// # Errors
    /// As there; nothing is counted.
    #[inline(always)]
    pub fn try_reserve(&self, len: usize) -> Result<Reservation<'_>, Error> {
        if len > LEN as usize {
            return Err(Error::TooLong);
        }
        let need = 8 + words(len) as u64;
        if need as usize > self.size / 2 {
            return Err(Error::TooLong);
        }
        let reserved = self.place.u64(RESERVED);
        let mut old = reserved.load(Relaxed);
        let (at, pad) = loop {
            // A record lies in one piece: what is left before the end is skipped.
            let before_end = self.size as u64 - (old & (self.size as u64 - 1));
            let pad = if before_end < need { before_end } else { 0 };
            // [MAP-8] The bytes that the reader gave free are zeros. Pairs with [MAP-11], [MAP-14].
            let consumed = self.place.u64(CONSUMED).load(Acquire);
            if old + pad + need - consumed.min(old) > self.size as u64 {
                return Err(Error::Full);
            }
            // [MAP-9] Room is reserved once. Pairs with [MAP-12], [MAP-15].
            #[cfg(mutant = "no-turn")]
            {
                reserved.store(old + pad + need, Release);
                break (old + pad, pad);
            }
            #[cfg(not(mutant = "no-turn"))]
            match reserved.compare_exchange_weak(old, old + pad + need, AcqRel, Relaxed) {
                Ok(_) => break (old + pad, pad),
                Err(now) => old = now,
            }
        };
        self.bytes(at).u32(0).store(PRESENT | OPEN | len as u32, Relaxed);
        if pad > 0 {
            // [MAP-10] As in `end`. Pairs with [MAP-12].
            self.bytes(at - pad).u32(0).store(PRESENT | SKIP | (pad as u32 - 8), Release);
        }
        Ok(Reservation { ring: self, at, len, is_done: false })
    }

    /// Reserves, copies and submits.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    #[inline]
    pub fn output(&self, record: &[u8]) -> Result<(), Error> {
        let mut room = self.reserve(record.len())?;
        room.write(record);
        room.submit();
        Ok(())
    }

    /// [`output`](Self::output) of so many words, where the caller counts what is lost: where their number is known, no loop and
    /// no copy is left of it.
    ///
    /// # Errors
    /// As [`try_reserve`](Self::try_reserve).
    #[inline(always)]
    pub fn output_words<const N: usize>(&self, record: [u64; N]) -> Result<(), Error> {
        let room = self.try_reserve(8 * N)?;
        let bytes = self.bytes(room.at);
        for (n, word) in record.into_iter().enumerate() {
            bytes.u64(8 + 8 * n).store(word, Relaxed);
        }
        room.submit();
        Ok(())
    }
}

impl<M: Access> Ring<M> {
    /// Records that were lost so far because the ring was full.
    pub fn lost(&self) -> u64 {
        self.place.u64(LOST).load(Relaxed)
    }

    #[inline(always)]
    fn bytes(&self, at: u64) -> M {
        self.place.at(HEAD + (at as usize & (self.size - 1)))
    }
}

#[cfg(not(loom))]
impl<'a> Ring<Checked<'a>> {
    /// The ring of so many bytes, a power of two, at an offset in memory that somebody else writes.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it does not fit there, or its head says something else.
    pub fn in_untrusted(arena: wire::Untrusted<'a>, offset: usize, size: usize) -> Result<Self, Error> {
        let ring = Self::made(arena, offset, size)?;
        if ring.place.u64(SIZE).load(Relaxed) != size as u64 {
            return Err(Error::Damaged);
        }
        Ok(ring)
    }

    /// Makes a ring of so many bytes, a power of two, of zeros in memory that others will write later.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it does not fit there.
    pub fn lay_out(arena: wire::Untrusted<'a>, offset: usize, size: usize) -> Result<Self, Error> {
        let ring = Self::made(arena, offset, size)?;
        ring.place.u64(SIZE).store(size as u64, Relaxed);
        Ok(ring)
    }

    /// The ring that the caller made there by [`lay_out`](Self::lay_out): its head is not believed either, and not read.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it does not fit there.
    pub fn made(arena: wire::Untrusted<'a>, offset: usize, size: usize) -> Result<Self, Error> {
        let bytes = Some(size).filter(|size| size.is_power_of_two() && *size >= 64);
        let bytes = bytes.and_then(|size| size.checked_add(HEAD)).ok_or(Error::Damaged)?;
        let place = Checked::new(arena, offset, bytes).ok_or(Error::Damaged)?;
        Ok(Ring {
            place,
            size,
            #[cfg(all(feature = "std", not(loom)))]
            home: None,
        })
    }
}

impl Reservation<'_> {
    /// Writes the record's bytes from its beginning; what is longer than reserved is cut off.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(self.len)];
        self.ring.bytes(self.at).at(8).write(bytes);
    }

    /// Writes a word and bytes behind it; what is longer than reserved is cut off.
    #[inline]
    pub fn write_stamped(&mut self, stamp: u64, bytes: &[u8]) {
        if self.len < 8 {
            return;
        }
        let place = self.ring.bytes(self.at).at(8);
        place.u64(0).store(stamp, Relaxed);
        place.at(8).write(bytes.split_at_checked(self.len - 8).map_or(bytes, |(fits, _)| fits));
    }

    /// Lets the reader have it.
    #[inline]
    pub fn submit(mut self) {
        self.end(0);
    }

    #[inline]
    fn end(&mut self, flag: u32) {
        self.is_done = true;
        // [MAP-13] The bytes are written before the record is no longer open.
        // Pairs with [MAP-12], [MAP-15].
        #[cfg(not(mutant = "MAP-13"))]
        let order = Release;
        #[cfg(mutant = "MAP-13")]
        let order = Relaxed;
        self.ring.bytes(self.at).u32(0).store(PRESENT | flag | self.len as u32, order);
    }
}

impl Drop for Reservation<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_done {
            self.end(SKIP);
        }
    }
}

/// What the reader found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// A record; it was handed over.
    Record,
    /// Nothing.
    Empty,
    /// A record that its producer has not submitted yet.
    Open,
    /// What no producer writes: it is given up, or all that was reserved by then, counted as one.
    Damaged,
}

/// How far a ring was read: the reader's own, while what stands in the ring's head is for its producers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    at: u64,
    /// Records that were given up.
    abandoned: u64,
}

impl Cursor {
    /// Bytes that were read, headers and what was left out included.
    pub fn bytes(self) -> u64 {
        self.at
    }
}

/// The one reader of a ring.
pub struct Reader<M: Access = Place> {
    ring: Ring<M>,
    cursor: Cursor,
}

impl<M: Access> Reader<M> {
    /// Reads from where the last reader ended.
    ///
    /// # Safety
    /// There must be no other reader of the ring, in any process.
    pub unsafe fn new(ring: Ring<M>) -> Reader<M> {
        let at = ring.place.u64(CONSUMED).load(Relaxed) & !7;
        Reader { ring, cursor: Cursor { at, abandoned: 0 } }
    }

    /// Reads on from where a reader of this ring was; the default is the beginning of a new one.
    ///
    /// # Safety
    /// As for [`new`](Self::new).
    pub unsafe fn resume(ring: Ring<M>, cursor: Cursor) -> Reader<M> {
        Reader { ring, cursor }
    }

    /// How far it has read, for [`resume`](Self::resume).
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// The ring.
    pub fn ring(&self) -> &Ring<M> {
        &self.ring
    }

    /// Records given up: with [`skip_open`](Self::skip_open), or because they could not be.
    pub fn abandoned(&self) -> u64 {
        self.cursor.abandoned
    }

    /// The next record as so many words, if it is a record of so many; one of another length is [`Next::Damaged`].
    pub fn next_words<const N: usize>(&mut self, words: &mut [u64; N]) -> Next {
        let mut is_whole = false;
        let found = self.next_with(|record, len| {
            let mut bytes = [[0; 8]; N];
            is_whole = len == 8 * N;
            if is_whole {
                record(bytes.as_flattened_mut());
                *words = bytes.map(u64::from_ne_bytes);
            }
        });
        if found == Next::Record && !is_whole { Next::Damaged } else { found }
    }

    /// Hands over the next record, in `buffer`, which grows as needed.
    #[cfg(feature = "std")]
    pub fn next(&mut self, buffer: &mut Vec<u8>) -> Next {
        self.next_with(|record, len| {
            buffer.resize(len, 0);
            record(buffer.as_mut_slice());
        })
    }

    /// Hands the next record to `each`, as its length and a function that copies it.
    pub fn next_with(&mut self, each: impl FnOnce(&dyn Fn(&mut [u8]), usize)) -> Next {
        // More left-out records in a row there cannot be, but for somebody who writes them while we look.
        for _ in 0..=self.ring.size / 8 {
            // [MAP-12] A header that is not open any more comes with its bytes.
            // Pairs with [MAP-9], [MAP-10], [MAP-13].
            #[cfg(not(mutant = "MAP-12"))]
            let order = Acquire;
            #[cfg(mutant = "MAP-12")]
            let order = Relaxed;
            let header = self.ring.bytes(self.cursor.at).u32(0).load(order);
            if header & PRESENT == 0 {
                let reserved = self.ring.place.u64(RESERVED).load(Acquire);
                // A producer reserves no more than there is room for.
                let is_open = (1..=self.ring.size as u64).contains(&reserved.wrapping_sub(self.cursor.at));
                return if is_open { Next::Open } else { Next::Empty };
            }
            if header & OPEN != 0 {
                return Next::Open;
            }
            let len = (header & LEN) as usize;
            if 8 + words(len) > self.before_end() {
                self.give_up();
                return Next::Damaged;
            }
            if header & SKIP == 0 {
                let record = self.ring.bytes(self.cursor.at).at(8);
                each(&|out| record.read(out), len);
                self.consume(len);
                return Next::Record;
            }
            self.consume(len);
        }
        Next::Open
    }

    /// How many bytes there are up to the ring's end: a record lies in one piece.
    fn before_end(&self) -> usize {
        self.ring.size - (self.cursor.at as usize & (self.ring.size - 1))
    }

    /// Gives up all that is reserved by now, or as much as a producer can have reserved.
    fn give_up(&mut self) {
        self.cursor.abandoned += 1;
        let size = self.ring.size as u64;
        let ahead = self.ring.place.u64(RESERVED).load(Relaxed).wrapping_sub(self.cursor.at);
        for _ in 0..ahead.clamp(8, size).div_ceil(8) {
            self.ring.bytes(self.cursor.at).u64(0).store(0, Relaxed);
            self.cursor.at = self.cursor.at.wrapping_add(8);
        }
        // [MAP-14] As in `consume`. Pairs with [MAP-8].
        self.ring.place.u64(CONSUMED).store(self.cursor.at, Release);
    }

    /// Zeroes the record and gives its room free.
    fn consume(&mut self, len: usize) {
        let bytes = 8 + words(len);
        let place = self.ring.bytes(self.cursor.at);
        // A header has 32 bits; what stands beside it is zero all the time.
        place.u32(0).store(0, Relaxed);
        (1..bytes / 8).for_each(|n| place.u64(n * 8).store(0, Relaxed));
        self.cursor.at = self.cursor.at.wrapping_add(bytes as u64);
        // [MAP-11] The zeros come before the room. Pairs with [MAP-8].
        self.ring.place.u64(CONSUMED).store(self.cursor.at, Release);
    }

    /// Gives up a record whose producer has ended before it submitted; true if there was one.
    ///
    /// If it ended before the length was written, all that is reserved by now is given up, counted as one.
    ///
    /// # Safety
    /// The producers must have ended: no one may still write to what is reserved.
    pub unsafe fn skip_open(&mut self) -> bool {
        // [MAP-15] As in `next_with`. Pairs with [MAP-9], [MAP-13].
        let header = self.ring.bytes(self.cursor.at).u32(0).load(Acquire);
        let reserved = self.ring.place.u64(RESERVED).load(Acquire);
        if reserved == self.cursor.at || header & PRESENT != 0 && header & OPEN == 0 {
            return false;
        }
        if header & PRESENT != 0 && 8 + words((header & LEN) as usize) <= self.before_end() {
            self.cursor.abandoned += 1;
            self.consume((header & LEN) as usize);
            return true;
        }
        self.give_up();
        true
    }
}
