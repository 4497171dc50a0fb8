//! Taking and giving objects, in any context.
//!
//! For:     hit handlers, signal handlers, maps; ordinary threads through `ObjectCache`.
//! State:   none of its own: the cells in the arena.
//! Context: hit, signal, target. No lock, no system call, no allocation; what is not there is `None`, counted.
//! Keeps:   V1 an object has one owner at a time. V2 free and free_rcu never fail and lose nothing.
//!          V3 an object given to free_rcu is taken by nobody before the worker has seen a grace period.
//!          V4 threads without rseq use the stacks alone, and get the same.
//! Checked: tests/any_context.rs, `torture mem` (V1 to V4), `bench alloc` (cost).
//! Source:  kernel `kernel/bpf/memalloc.c`. Departs: a CPU that has none takes a batch from its depot, then
//!          from another CPU's, before it fails; the depots, not single lists, are what the worker fills.

use crate::cell::{ACTIVE, BOUND, Cell, HEAD, Head, RCU, SHIFT};
use crate::link::{Index, Link};
use crate::stack::{Items, Stack};
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};
use percpu::{ListWord, RseqOffset, current_cpu};

/// A cache's memory as one process sees it: objects out and in.
#[derive(Clone, Copy)]
pub struct View<'a> {
    items: Items,
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
        let mut view = View { items: Items(arena.as_ptr()), cells, rseq, batch: 0, life: PhantomData };
        view.batch = view.head().batch;
        view
    }

    #[inline(always)]
    pub(crate) fn head(self) -> &'a Head {
        let head = self.cells.wrapping_sub(HEAD).cast::<Head>();
        // SAFETY: `at` was told that a head lies there for `'a`; only its atomic is written.
        unsafe { &*head }
    }

    #[inline(always)]
    pub(crate) fn items(self) -> Items {
        self.items
    }

    pub(crate) fn cell(self, cpu: u32) -> &'a Cell {
        debug_assert!(cpu < self.head().copies);
        let cell = self.cells.wrapping_add((cpu as usize) << SHIFT).cast::<Cell>();
        // SAFETY: a cell lies there for every CPU below `copies`; all of it is atomic.
        unsafe { &*cell }
    }

    /// Bytes that each object has.
    pub fn size(self) -> usize {
        self.head().unit as usize - size_of::<u64>()
    }

    /// The address of an object.
    #[inline(always)]
    pub fn payload(self, index: Index) -> NonNull<u8> {
        let at = self.items.0.wrapping_add(index.0 as usize * 8 + 8);
        // SAFETY: it is past the start of a mapping, so it is not null.
        unsafe { NonNull::new_unchecked(at) }
    }

    /// The index of an object by its address.
    #[inline(always)]
    pub fn index_of(self, object: NonNull<u8>) -> Index {
        Index(((object.as_ptr() as usize).wrapping_sub(self.items.0 as usize + 8) / 8) as u32)
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
    pub fn alloc(self) -> Option<Index> {
        // SAFETY: `at` was told that the cells are there for every CPU below the bound and that rseq fits.
        let got = unsafe { percpu::list_pop::<SHIFT, ACTIVE, BOUND>(self.rseq, self.cells, self.items.0) };
        match got {
            Some((i, cpu)) => {
                // SAFETY: the object was on the list and is ours now.
                unsafe { self.items.link(i) }.make_live(cpu);
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
    pub unsafe fn free(self, index: Index) {
        // SAFETY: an object of this cache (the caller's duty).
        let link = unsafe { self.items.link(index.0) };
        let Some(home) = link.home() else { return self.refuse() };
        let item = core::ptr::from_ref(link).cast_mut().cast::<u8>();
        // SAFETY: as in `alloc`; the object is the caller's, and so now the list's.
        let word =
            unsafe { percpu::list_push::<SHIFT, ACTIVE, BOUND>(self.rseq, self.cells, item, index.0) };
        match word {
            Some(word) if word.len() <= self.batch => {}
            Some(_) => self.overflow(home),
            None => self.free_loose(index.0),
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
    pub unsafe fn free_rcu(self, index: Index) {
        // SAFETY: an object of this cache (the caller's duty).
        let link = unsafe { self.items.link(index.0) };
        let Some(home) = link.home() else { return self.refuse() };
        let item = core::ptr::from_ref(link).cast_mut().cast::<u8>();
        // SAFETY: as in `free`. Readers do not look at the header.
        let word = unsafe { percpu::list_push::<SHIFT, RCU, BOUND>(self.rseq, self.cells, item, index.0) };
        match word {
            Some(word) if word.len() < self.batch => {}
            Some(_) => self.retire(home),
            None => {
                let cell = self.cell(home % self.head().copies);
                // SAFETY: one object, which the caller gave up.
                unsafe { self.put(&cell.retired, &cell.retired_len, ListWord::new(index.0, 1)) };
            }
        }
    }

    #[cold]
    fn refuse(self) {
        self.here().misuse.fetch_add(1, Relaxed);
    }

    /// The cell of the CPU that the thread was on a moment ago.
    fn here(self) -> &'a Cell {
        self.cell(current_cpu() % self.head().copies)
    }

    /// Changes a list of `cpu` by one store; false if anything came between.
    ///
    /// # Safety
    /// `word` must be a list of the cell of `cpu`; the items of `new` must be the caller's.
    unsafe fn swap(self, cpu: u32, word: &AtomicU64, old: ListWord, new: ListWord) -> bool {
        let bound = self.head().bound.as_ptr();
        // SAFETY: the bound and the word are there (contract of `at`, and the caller's).
        unsafe { percpu::store_if_below(self.rseq, cpu, bound, word.as_ptr(), old, new) }
    }

    /// # Safety
    /// As `Stack::push`.
    unsafe fn put(self, stack: &Stack, len: &AtomicI32, batch: ListWord) {
        // SAFETY: the caller's duties are the same.
        unsafe { stack.push(self.items, batch) };
        len.fetch_add(batch.len() as i32, Relaxed);
    }

    fn take(self, stack: &Stack, len: &AtomicI32) -> Option<ListWord> {
        // SAFETY: stacks of a cell hold batches of this cache's objects.
        let batch = unsafe { stack.pop(self.items) }?;
        len.fetch_sub(batch.len() as i32, Relaxed);
        Some(batch)
    }

    /// No object on the CPU's own list, or the thread has no rseq: a batch from elsewhere.
    #[cold]
    fn alloc_slow(self) -> Option<Index> {
        let copies = self.head().copies;
        let cpu = current_cpu() % copies;
        let cell = self.cell(cpu);
        let spare = ListWord(cell.spare.load(Relaxed));
        // SAFETY: `spare` is a list of this CPU; nothing is put in its place.
        if !spare.is_empty() && unsafe { self.swap(cpu, &cell.spare, spare, ListWord::default()) } {
            return Some(self.split(cpu, spare));
        }
        let near = |c: &Cell| match self.rseq.is_some() {
            true => self.take(&c.depot, &c.depot_len).or_else(|| self.take(&c.loose, &c.loose_len)),
            false => self.take(&c.loose, &c.loose_len).or_else(|| self.take(&c.depot, &c.depot_len)),
        };
        let found = (0..copies).find_map(|n| near(self.cell((cpu + n) % copies)));
        if found.is_none() {
            cell.failed.fetch_add(1, Relaxed);
        }
        found.map(|batch| self.split(cpu, batch))
    }

    /// Takes the first object of a batch that is ours; the rest becomes the CPU's list, if it has none.
    fn split(self, cpu: u32, batch: ListWord) -> Index {
        // SAFETY: the batch is ours.
        let first = unsafe { self.items.link(batch.head()) };
        let rest = ListWord::new(first.next(), batch.len() - 1);
        first.make_live(cpu);
        if rest.len() > 0 {
            let cell = self.cell(cpu);
            // SAFETY: the rest of the batch is ours, and `active` is a list of this CPU.
            if !unsafe { self.swap(cpu, &cell.active, ListWord::default(), rest) } {
                let (stack, len) = match self.rseq.is_some() {
                    true => (&cell.depot, &cell.depot_len),
                    false => (&cell.loose, &cell.loose_len),
                };
                // SAFETY: the rest is ours.
                unsafe { self.put(stack, len, rest) };
            }
        }
        Index(batch.head())
    }

    /// The CPU's list has a batch and one: the batch becomes the spare, and the old spare goes home.
    ///
    /// The one stays, so that a CPU that frees and takes by turns at this edge comes here once.
    #[cold]
    fn overflow(self, home: u32) {
        let copies = self.head().copies;
        let cpu = current_cpu() % copies;
        let cell = self.cell(cpu);
        let full = ListWord(cell.active.load(Relaxed));
        // A refusal only means that the next free does it.
        // SAFETY: `active` is a list of this CPU; nothing is put in its place.
        if full.len() <= self.batch || !unsafe { self.swap(cpu, &cell.active, full, ListWord::default()) } {
            return;
        }
        // SAFETY: the list is ours since the swap.
        let first = unsafe { self.items.link(full.head()) };
        let full = self.keep_first(cpu, first, full);
        let old = ListWord(cell.spare.load(Relaxed));
        // SAFETY: `full` is ours, and `spare` is a list of this CPU.
        let away = if unsafe { self.swap(cpu, &cell.spare, old, full) } { old } else { full };
        if !away.is_empty() {
            let home = self.cell(home % copies);
            // SAFETY: what is not on a list any more is ours.
            unsafe { self.put(&home.depot, &home.depot_len, away) };
        }
    }

    /// Leaves the first object of a list that is ours on the CPU; what remains ours.
    fn keep_first(self, cpu: u32, first: &Link, full: ListWord) -> ListWord {
        let second = first.next();
        first.set_next(0);
        let one = ListWord::new(full.head(), 1);
        // SAFETY: the object is ours, and `active` is a list of this CPU.
        if unsafe { self.swap(cpu, &self.cell(cpu).active, ListWord::default(), one) } {
            return ListWord::new(second, full.len() - 1);
        }
        first.set_next(second);
        full
    }

    /// The CPU's list of objects to retire has a batch: it goes where the worker finds it.
    #[cold]
    fn retire(self, home: u32) {
        let copies = self.head().copies;
        let cpu = current_cpu() % copies;
        let cell = self.cell(cpu);
        let full = ListWord(cell.rcu.load(Relaxed));
        // SAFETY: `rcu` is a list of this CPU; nothing is put in its place.
        if full.len() < self.batch || !unsafe { self.swap(cpu, &cell.rcu, full, ListWord::default()) } {
            return;
        }
        let home = self.cell(home % copies);
        // SAFETY: the batch is ours since the swap.
        unsafe { self.put(&home.retired, &home.retired_len, full) };
    }

    #[cold]
    fn free_loose(self, index: u32) {
        let cell = self.here();
        // SAFETY: one object, which the caller of `free` gave up.
        unsafe { self.put(&cell.loose, &cell.loose_len, ListWord::new(index, 1)) };
    }
}
