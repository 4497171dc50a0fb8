//! Taking and giving objects, in any context.
//!
//! For:     hit handlers, signal handlers, maps; ordinary threads through `ObjectCache`.
//! State:   none of its own: the cells in the arena.
//! Context: hit, signal, target. No lock, no system call, no allocation; what is not there is `None`, counted.
//! Keeps:   V1 an object has one owner at a time. V2 free and free_rcu never fail and lose nothing.
//!          V3 an object given to free_rcu is taken by nobody before the worker has seen a grace period.
//!          V4 threads without rseq use the stacks alone, and get the same; so does one that is single-stepped.
//! Checked: tests/any_context.rs, `torture mem` (V1 to V4), tests/stepped.rs (V4), `bench alloc` (cost).
//! Source:  kernel `kernel/bpf/memalloc.c`. Departs: a CPU that has none takes a batch from its depot, then
//!          from another CPU's, before it fails; the depots, not single lists, are what the worker fills.

use crate::cell::{BOUND, Cell, FREE, HEAD, Head, RCU, SHIFT, SLOTS};
use crate::items::Items;
use crate::link::Index;
use crate::stack::{Batch, Stack};
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering::Relaxed};
use percpu::{RseqOffset, current_cpu};

/// Where an arena's head has the number of its chunks.
pub(crate) const CHUNKS_AT: usize = 8;

/// How often a thread that finds nothing elsewhere tries its CPU's list again, where the kernel may have come between.
const AGAIN: u32 = 3;

/// The indexes of a chunk.
pub(crate) const CHUNK_INDEXES: u32 = 64 * 1024 / 8;

/// A cache's memory as one process sees it: objects out and in.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// Where index 0 would have its payload: 8 bytes into the arena. With it an address is one addition.
    payloads: *mut u8,
    cells: *mut u8,
    rseq: RseqOffset,
    batch: u32,
    life: PhantomData<&'a Head>,
}

// SAFETY: everything behind the pointers is atomic, or written by sequences of its CPU (cell C1).
unsafe impl Send for View<'_> {}
// SAFETY: as for Send.
unsafe impl Sync for View<'_> {}

impl<'a> View<'a> {
    /// The cache whose head lies `head` bytes from `arena`.
    ///
    /// # Safety
    /// A cache's head and cells must lie there and stay mapped for `'a`, with the rest of the arena. `rseq`
    /// must fit the threads that will use the view, and be `NONE` in any process but the one whose worker
    /// tends the cache: that one alone can be fenced.
    pub unsafe fn at(arena: NonNull<u8>, head: usize, rseq: RseqOffset) -> View<'a> {
        let cells = arena.as_ptr().wrapping_add(head + HEAD);
        let payloads = arena.as_ptr().wrapping_add(size_of::<u64>());
        let mut view = View { payloads, cells, rseq, batch: 0, life: PhantomData };
        view.batch = view.head().batch;
        view
    }

    #[inline(always)]
    pub(crate) fn head(&self) -> &'a Head {
        let head = self.cells.wrapping_sub(HEAD).cast::<Head>();
        // SAFETY: `at` was told that a head lies there for `'a`; only its atomic is written.
        unsafe { &*head }
    }

    #[inline(always)]
    pub(crate) fn items(&self) -> Items {
        Items(self.payloads.wrapping_sub(size_of::<u64>()))
    }

    pub(crate) fn cell(&self, cpu: u32) -> &'a Cell {
        debug_assert!(cpu < self.head().copies);
        let cell = self.cells.wrapping_add((cpu as usize) << SHIFT).cast::<Cell>();
        // SAFETY: a cell lies there for every CPU below `copies`; all of it is atomic.
        unsafe { &*cell }
    }

    /// The last index that an object of the cache can have; what lies from there on is inside the arena.
    ///
    /// For who reads indexes from memory that may have changed hands meanwhile.
    pub fn last_index(&self) -> u32 {
        let arena = self.payloads.wrapping_sub(size_of::<u64>());
        let chunks = arena.wrapping_add(CHUNKS_AT).cast::<AtomicU32>();
        // SAFETY: an arena begins there, for `'a` (contract of `at`), with the number of its chunks.
        let chunks = unsafe { &*chunks }.load(Relaxed);
        chunks.saturating_mul(CHUNK_INDEXES).saturating_sub(self.head().unit / 8)
    }

    /// Bytes that each object has.
    pub fn size(&self) -> usize {
        self.head().unit as usize - size_of::<u64>()
    }

    /// The address of an object.
    #[inline(always)]
    pub fn payload(&self, index: Index) -> NonNull<u8> {
        let at = self.payloads.wrapping_add(index.0 as usize * 8);
        // SAFETY: it is past the start of a mapping, so it is not null.
        unsafe { NonNull::new_unchecked(at) }
    }

    /// The index of an object by its address.
    #[inline(always)]
    pub fn index_of(&self, object: NonNull<u8>) -> Index {
        Index(((object.as_ptr() as usize).wrapping_sub(self.payloads as usize) / 8) as u32)
    }

    /// Takes an object; `None` if there is none just now, which is counted.
    ///
    /// Its bytes are zeros, or what its last owner left.
    ///
    /// # Context
    /// Any: inside malloc, inside a signal handler that interrupted this very function. Never blocks.
    /// # Cost
    /// `bench alloc`.
    #[inline(always)]
    pub fn alloc(&self) -> Option<Index> {
        match self.pop::<FREE>() {
            Some((i, cpu)) => {
                // SAFETY: the object was on the list and is ours now.
                unsafe { self.items().link(i) }.make_live(cpu);
                Some(Index(i))
            }
            None => self.alloc_slow(),
        }
    }

    /// Gives an object back; anybody may take it at once.
    ///
    /// An object that is not live is refused, and counted.
    ///
    /// # Context
    /// Any, as [`alloc`](Self::alloc).
    ///
    /// # Safety
    /// The index must have come from this cache, and no one may use the object afterwards, except readers
    /// that can tell that it has changed.
    #[inline(always)]
    pub unsafe fn free(&self, index: Index) {
        // SAFETY: an object of this cache (the caller's duty).
        let link = unsafe { self.items().link(index.0) };
        let Some(home) = link.home() else { return self.refuse() };
        link.make_free();
        if !self.push::<FREE>(index.0) {
            self.overflow(index.0, home);
        }
    }

    /// Gives an object back after a grace period; until then its bytes stay as they are.
    ///
    /// # Context
    /// Any, as [`alloc`](Self::alloc); also inside a reader.
    ///
    /// # Safety
    /// The index must have come from this cache. New readers must not be able to find the object; those
    /// that found it before must be readers of the cache's domain.
    #[inline(always)]
    pub unsafe fn free_rcu(&self, index: Index) {
        // SAFETY: an object of this cache (the caller's duty).
        let link = unsafe { self.items().link(index.0) };
        let Some(home) = link.home() else { return self.refuse() };
        link.make_free();
        if !self.push::<RCU>(index.0) {
            self.retire(index.0, home);
        }
    }

    #[inline(always)]
    fn pop<const LIST: usize>(&self) -> Option<(u32, u32)> {
        // SAFETY: `at` was told that cells are there for every CPU below the bound and that rseq fits.
        unsafe { percpu::list_pop::<SHIFT, LIST, BOUND>(self.rseq, self.cells, self.items().0) }
    }

    #[inline(always)]
    fn push<const LIST: usize>(&self, index: u32) -> bool {
        // SAFETY: as in `pop`; the limit is at most the lists' size (`ObjectCache` writes it).
        unsafe { percpu::list_push::<SHIFT, LIST, BOUND>(self.rseq, self.cells, index) }
    }

    #[cold]
    fn refuse(&self) {
        self.here().misuse.fetch_add(1, Relaxed);
    }

    /// The cell of the CPU that the thread was on a moment ago.
    fn here(&self) -> &'a Cell {
        self.cell(current_cpu() % self.head().copies)
    }

    /// # Safety
    /// As `Stack::push`.
    unsafe fn put(&self, stack: &Stack, len: &AtomicI32, batch: Batch) {
        // SAFETY: the caller's duties are the same.
        unsafe { stack.push(self.items(), batch) };
        len.fetch_add(batch.len() as i32, Relaxed);
    }

    fn take(&self, stack: &Stack, len: &AtomicI32) -> Option<Batch> {
        // SAFETY: stacks of a cell hold batches of this cache's objects.
        let batch = unsafe { stack.pop(self.items()) }?;
        len.fetch_sub(batch.len() as i32, Relaxed);
        Some(batch)
    }

    /// A tray without objects, from this CPU or another; `None`, counted, if there is none.
    fn blank(&self, cpu: u32) -> Option<u32> {
        let copies = self.head().copies;
        let found = (0..copies).find_map(|n| {
            let stack = &self.cell((cpu + n) % copies).blank;
            // SAFETY: the stack holds trays of this arena.
            if stack.is_empty() { None } else { unsafe { stack.pop(self.items()) } }
        });
        if found.is_none() {
            self.cell(cpu).short.fetch_add(1, Relaxed);
        }
        found.map(Batch::head)
    }

    /// An object of ours and others from a list of whatever CPU the thread is on, together at most `most`: on a tray
    /// if there is one, or linked.
    fn gather<const LIST: usize>(&self, index: u32, most: u32) -> Batch {
        let others = (most as usize - 1).min(SLOTS);
        let Some(head) = self.blank(current_cpu() % self.head().copies) else {
            let mut room = [0; SLOTS];
            let n = self.pop_all::<LIST>(&mut room[..others]);
            return self.linked(index, &room[..n]);
        };
        // SAFETY: a tray of this arena.
        let tray = unsafe { self.items().tray(head) };
        // SAFETY: it was on the stack and is ours now.
        let slots = unsafe { tray.slots() };
        let n = self.pop_all::<LIST>(&mut slots[..others]);
        slots[n] = index;
        tray.set_len(n + 1);
        Batch::new(head, n as u32 + 1)
    }

    fn pop_all<const LIST: usize>(&self, room: &mut [u32]) -> usize {
        // SAFETY: as in `pop`.
        unsafe { percpu::list_pop_all::<SHIFT, LIST, BOUND>(self.rseq, self.cells, room) }
    }

    fn push_all(&self, items: &[u32]) -> usize {
        // SAFETY: as in `push`; the objects are the caller's.
        unsafe { percpu::list_push_all::<SHIFT, FREE, BOUND>(self.rseq, self.cells, items) }
    }

    fn linked(&self, index: u32, others: &[u32]) -> Batch {
        others.iter().chain([&index]).fold(Batch::default(), |batch, i| {
            // SAFETY: the objects were on the list and are ours now.
            unsafe { batch.with(self.items(), *i) }
        })
    }

    /// The CPU's list is empty, or closed, or the kernel came between, or the thread has no rseq: a batch from elsewhere.
    #[cold]
    #[inline(never)]
    fn alloc_slow(&self) -> Option<Index> {
        let copies = self.head().copies;
        let cpu = current_cpu() % copies;
        let near = |c: &Cell| match self.rseq.is_some() {
            true => self.take(&c.depot, &c.depot_len).or_else(|| self.take(&c.loose, &c.loose_len)),
            false => self.take(&c.loose, &c.loose_len).or_else(|| self.take(&c.depot, &c.depot_len)),
        };
        if let Some(batch) = (0..copies).find_map(|n| near(self.cell((cpu + n) % copies))) {
            return Some(self.split(cpu, batch));
        }
        // There may be some on the list after all.
        let late = (0..AGAIN).find_map(|_| self.pop::<FREE>());
        let Some((i, cpu)) = late else {
            self.cell(cpu).failed.fetch_add(1, Relaxed);
            return None;
        };
        // SAFETY: the object was on the list and is ours now.
        unsafe { self.items().link(i) }.make_live(cpu);
        Some(Index(i))
    }

    /// Takes one object of a batch that is ours; the rest goes to the CPU's list, as far as it has room.
    fn split(&self, cpu: u32, batch: Batch) -> Index {
        let (one, rest) = if batch.is_tray() { self.unload(cpu, batch) } else { self.unlink(batch) };
        // SAFETY: the object is ours.
        unsafe { self.items().link(one) }.make_live(cpu);
        if !rest.is_empty() {
            let cell = self.cell(cpu);
            let (stack, len) = match self.rseq.is_some() {
                true => (&cell.depot, &cell.depot_len),
                false => (&cell.loose, &cell.loose_len),
            };
            // SAFETY: the rest is ours.
            unsafe { self.put(stack, len, rest) };
        }
        Index(one)
    }

    /// One object of a tray, and the tray if objects are left on it.
    fn unload(&self, cpu: u32, batch: Batch) -> (u32, Batch) {
        // SAFETY: a tray of this arena.
        let tray = unsafe { self.items().tray(batch.head()) };
        // SAFETY: it was on the stack and is ours now.
        let slots = unsafe { tray.slots() };
        let last = batch.len() as usize - 1;
        let done = self.push_all(&slots[..last]);
        // Those that are taken next; each of them lets the one eight later be fetched.
        slots[done.saturating_sub(8)..done].iter().for_each(|i| self.items().fetch(*i));
        let one = slots[last];
        slots.copy_within(done..last, 0);
        tray.set_len(last - done);
        let rest = Batch::new(batch.head(), (last - done) as u32);
        if rest.is_empty() {
            // SAFETY: the tray is ours.
            unsafe { self.cell(cpu).blank.push(self.items(), rest) };
        }
        (one, rest)
    }

    /// The first of linked objects, and those that did not go to the list.
    fn unlink(&self, batch: Batch) -> (u32, Batch) {
        let items = self.items();
        // SAFETY: the batch is ours.
        let first = unsafe { items.link(batch.head()) };
        let mut room = [0; SLOTS];
        let mut next = first.next();
        // Threads without rseq put nothing on lists, and need not look where each begins.
        let count = if self.rseq.is_some() { (batch.len() as usize - 1).min(SLOTS) } else { 0 };
        for slot in &mut room[..count] {
            *slot = next;
            // SAFETY: linked from our own.
            next = unsafe { items.link(next) }.next();
        }
        let done = self.push_all(&room[..count]);
        let head = if done < count { room[done] } else { next };
        (batch.head(), Batch::new(head, batch.len() - 1 - done as u32))
    }

    /// The CPU's list is full, or closed, or the kernel came between, or the thread has no rseq: half of it goes home.
    #[cold]
    #[inline(never)]
    fn overflow(&self, index: u32, home: u32) {
        if !self.rseq.is_some() {
            let cell = self.here();
            // SAFETY: the caller of `free` gave the object up.
            return unsafe { self.put(&cell.loose, &cell.loose_len, self.linked(index, &[])) };
        }
        let batch = self.gather::<FREE>(index, self.batch.max(2));
        let home = self.cell(home % self.head().copies);
        // SAFETY: the batch is ours.
        unsafe { self.put(&home.depot, &home.depot_len, batch) };
    }

    /// The CPU's list of objects to retire is full, or the kernel came between: it goes where the worker finds it.
    #[cold]
    #[inline(never)]
    fn retire(&self, index: u32, home: u32) {
        let batch = match self.rseq.is_some() {
            true => self.gather::<RCU>(index, u32::MAX),
            // Readers do not look at headers.
            false => self.linked(index, &[]),
        };
        let home = self.cell(home % self.head().copies);
        // SAFETY: the batch is ours.
        unsafe { self.put(&home.retired, &home.retired_len, batch) };
    }
}
