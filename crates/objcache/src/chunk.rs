//! Chunks of an arena, cut into objects of one size.
//!
//! For:     the worker of a cache: where objects come from and where they return to.
//! State:   per chunk: owner, how much is cut, a list of returned objects. In the arena's table.
//! Context: control; one worker at a time for each cache.
//! Keeps:   H1 an object is handed out once between two returns. H2 fresh ones are zeros.
//!          H3 a chunk whose objects have all returned goes back to the arena, but one stays.
//! Checked: tests/life.rs; census in `torture mem`.

use crate::Arena;
use crate::items::Items;
use crate::stack::Batch;
use crate::tray::END_OF_TRAYS;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The size of a chunk in bytes.
pub const CHUNK: usize = 64 * 1024;

/// An entry of the chunk table.
#[repr(C)]
pub struct Chunk {
    /// 0: free.
    pub owner: AtomicU32,
    /// Objects cut so far.
    cut: AtomicU32,
    /// Returned objects, linked by `next`.
    head: AtomicU32,
    len: AtomicU32,
}

impl Chunk {
    pub fn clear(&self) {
        self.cut.store(0, Relaxed);
        self.head.store(0, Relaxed);
        self.len.store(0, Relaxed);
        self.owner.store(0, Relaxed);
    }
}

/// The chunks of one cache.
pub struct Chunks {
    arena: Arena,
    items: Items,
    owner: u32,
    unit: u32,
    /// Chunks in use, those with something to give at the end.
    mine: Vec<u32>,
    /// Where chunks with trays lie.
    trays: Vec<usize>,
    /// Objects handed out and not returned.
    pub out: u64,
}

impl Chunks {
    pub fn new(arena: Arena, owner: u32, unit: u32) -> Chunks {
        let items = Items(arena.base().as_ptr());
        Chunks { arena, items, owner, unit, mine: Vec::new(), trays: Vec::new(), out: 0 }
    }

    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Bytes in chunks.
    pub fn bytes(&self) -> usize {
        (self.mine.len() + self.trays.len()) * CHUNK
    }

    /// Up to `want` objects, linked; fewer if the arena is full.
    pub fn cut(&mut self, want: u32) -> Batch {
        let mut list = Batch::default();
        while list.len() < want {
            let Some(n) = self.chunk_with_room() else { break };
            while list.len() < want {
                let Some(i) = self.one_of(n) else { break };
                // SAFETY: `i` is an object of this cache that nobody has.
                list = unsafe { list.with(self.items, i) };
            }
        }
        self.out += u64::from(list.len());
        list
    }

    fn per_chunk(&self) -> u32 {
        CHUNK as u32 / self.unit
    }

    fn has_room(&self, n: u32) -> bool {
        let chunk = self.arena.chunk(n);
        chunk.len.load(Relaxed) > 0 || chunk.cut.load(Relaxed) < self.per_chunk()
    }

    fn chunk_with_room(&mut self) -> Option<u32> {
        if let Some(n) = self.mine.last().copied().filter(|n| self.has_room(*n)) {
            return Some(n);
        }
        if let Some(at) = self.mine.iter().rposition(|n| self.has_room(*n)) {
            let last = self.mine.len() - 1;
            self.mine.swap(at, last);
            return self.mine.last().copied();
        }
        let n = (self.arena.take_for(self.owner, CHUNK).ok()? / CHUNK) as u32;
        self.mine.push(n);
        Some(n)
    }

    fn one_of(&self, n: u32) -> Option<u32> {
        let chunk = self.arena.chunk(n);
        let head = chunk.head.load(Relaxed);
        if head != 0 {
            // SAFETY: a returned object of this chunk.
            chunk.head.store(unsafe { self.items.link(head) }.next(), Relaxed);
            chunk.len.store(chunk.len.load(Relaxed) - 1, Relaxed);
            return Some(head);
        }
        let cut = chunk.cut.load(Relaxed);
        if cut == self.per_chunk() {
            return None;
        }
        chunk.cut.store(cut + 1, Relaxed);
        Some(n * (CHUNK as u32 / 8) + cut * (self.unit / 8))
    }

    /// Takes back every object of a list that nobody uses; `each` sees them first.
    pub fn put_back(&mut self, list: Batch, mut each: impl FnMut(u32)) {
        let items = self.items;
        let mut one = |i: u32| {
            each(i);
            let n = i / (CHUNK as u32 / 8);
            let chunk = self.arena.chunk(n);
            // SAFETY: an object of the list, which is the caller's.
            let link = unsafe { items.link(i) };
            link.set_next(chunk.head.load(Relaxed));
            link.set_aux(0);
            chunk.head.store(i, Relaxed);
            chunk.len.store(chunk.len.load(Relaxed) + 1, Relaxed);
            self.out -= 1;
            if chunk.len.load(Relaxed) == chunk.cut.load(Relaxed) {
                self.release(n);
            }
        };
        // SAFETY: the list is the caller's.
        unsafe { list.for_each(items, &mut one) };
    }

    /// A chunk without objects in use goes back to the arena, unless it is the only one.
    fn release(&mut self, n: u32) {
        if self.mine.len() > 1 {
            self.mine.retain(|m| *m != n);
            // SAFETY: all its objects have returned, and readers of them have left: the worker puts
            // objects back after both grace periods only.
            unsafe { self.arena.give_back(n as usize * CHUNK, CHUNK) };
        }
    }

    /// A chunk for trays.
    pub fn take_tray_chunk(&mut self) -> Option<usize> {
        let at = self.arena.take(CHUNK).ok()?;
        if at / 8 + CHUNK / 8 > END_OF_TRAYS as usize {
            // SAFETY: taken just now.
            unsafe { self.arena.give_back(at, CHUNK) };
            return None;
        }
        self.trays.push(at);
        Some(at)
    }

    /// Chunks that objects lie in.
    pub fn count(&self) -> usize {
        self.mine.len()
    }

    /// Chunks that trays lie in.
    pub fn tray_chunks(&self) -> usize {
        self.trays.len()
    }

    /// Gives back the chunks that trays lie in.
    pub fn release_trays(&mut self) {
        for at in core::mem::take(&mut self.trays) {
            // SAFETY: the cache has come to its end (contract of `destroy`), and every object is back.
            unsafe { self.arena.give_back(at, CHUNK) };
        }
    }

    /// Gives back every chunk of a cache that nobody has used.
    pub fn give_up(&mut self) {
        for n in core::mem::take(&mut self.mine) {
            // SAFETY: no object of it was ever taken.
            unsafe { self.arena.give_back(n as usize * CHUNK, CHUNK) };
        }
    }

    /// Gives back every chunk; with objects still out only those without.
    pub fn release_all(&mut self) {
        for n in core::mem::take(&mut self.mine) {
            let chunk = self.arena.chunk(n);
            if chunk.len.load(Relaxed) == chunk.cut.load(Relaxed) {
                // SAFETY: as in `release`.
                unsafe { self.arena.give_back(n as usize * CHUNK, CHUNK) };
            } else {
                self.mine.push(n);
            }
        }
    }
}
