//! A cache of objects of one size.
//!
//! For:     programs, maps, cpumasks.
//! State:   head and cells in the arena; the tender, shared with the worker.
//! Context: `alloc`, `free` and `free_rcu` anywhere; the rest in threads that may wait.
//! Keeps:   B1 what cannot be is refused when it is built.
//! Checked: tests/life.rs, tests/any_context.rs.

use crate::cell::{Cell, HEAD, Head, SLOTS};
use crate::chunk::{CHUNK, Chunks};
use crate::sizes::HEADER;
use crate::tend::{Broken, Census, Setup, Stats, Tender};
use crate::worker::{Shared, Worker, lock};
use crate::{Arena, Error, Grace, Ticket, View, Watermarks, domain};
use core::ptr::NonNull;
use core::sync::atomic::AtomicU32;
use percpu::RseqOffset;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use sys::membarrier_cmd as cmd;

/// The size of the arena of a cache that was given none; only what is used takes memory.
const OWN_ARENA: usize = 1 << 30;

/// Bytes that may wait for a grace period before no new memory is taken: with what depots hold and what is on its way
/// to the system, CONTRACT's 50 MB.
const MOST_WAITING: usize = 32 << 20;

/// How long `alloc_blocking` waits for objects that readers keep.
const PATIENCE: Duration = Duration::from_millis(100);

/// How a cache is to be.
pub struct Builder {
    size: usize,
    arena: Option<Arena>,
    rcu: Option<Arc<dyn Grace>>,
    reserve: u32,
    stock: u32,
    most_waiting: usize,
    rseq: bool,
    hurry: bool,
    on_leave: Option<fn(*mut u8)>,
    broken: Option<Broken>,
}

/// Objects of one size, for any context.
///
/// ```
/// let cache = objcache::ObjectCache::builder(64).build()?;
/// let object = cache.alloc().expect("a new cache has some");
/// // SAFETY: 64 bytes of our own.
/// unsafe { object.cast::<u64>().write(7) };
/// // SAFETY: taken above, and not used again.
/// unsafe { cache.free(object) };
/// cache.destroy().wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ObjectCache {
    view: View<'static>,
    tender: Shared,
    arena: Arena,
    setup_at: usize,
    setup_bytes: usize,
    is_closed: bool,
}

impl Builder {
    /// Takes memory from this arena, in the place of one of its own.
    pub fn arena(mut self, arena: &Arena) -> Builder {
        self.arena = Some(arena.clone());
        self
    }

    /// Waits for readers of this domain, in the place of [`domain`]'s.
    pub fn rcu(mut self, rcu: Arc<dyn Grace>) -> Builder {
        self.rcu = Some(rcu);
        self
    }

    /// Keeps at least so many objects ready, over all CPUs.
    pub fn reserve(mut self, objects: u32) -> Builder {
        self.reserve = objects;
        self
    }

    /// Makes so many objects beforehand, and never has fewer: that many can be had without the worker, from any thread,
    /// but for those on the lists of other CPUs (at most 96 and a few on each).
    ///
    /// What [`reserve`](Self::reserve) keeps is beside what is in use; this counts what is in use.
    pub fn stock(mut self, objects: u32) -> Builder {
        self.stock = objects;
        self
    }

    /// The bytes of objects that may wait for a grace period before no new memory is taken, 32 MiB by default.
    ///
    /// Beyond it `alloc` gives what came back, or `None`: who replaces objects faster than readers leave is slowed down
    /// in the place of growing without a bound.
    pub fn most_waiting(mut self, bytes: usize) -> Builder {
        self.most_waiting = bytes;
        self
    }

    /// Whether threads may use rseq; without it they exchange on shared words.
    pub fn rseq(mut self, on: bool) -> Builder {
        self.rseq = on;
        self
    }

    /// Whether a grace period that more objects wait for is asked to hurry; on.
    pub fn hurry(mut self, on: bool) -> Builder {
        self.hurry = on;
        self
    }

    /// Runs on each object that returns to the system, on the worker.
    pub fn on_leave(mut self, run: fn(*mut u8)) -> Builder {
        self.on_leave = Some(run);
        self
    }

    /// Breaks the cache in the given way, for the torture test.
    #[cfg(feature = "broken")]
    #[doc(hidden)]
    pub fn broken(mut self, broken: Option<Broken>) -> Builder {
        self.broken = broken;
        self
    }

    /// Makes the cache, filled to its low watermark.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn build(self) -> Result<ObjectCache, Error> {
        let most = CHUNK - HEADER as usize;
        match self.size {
            0 => return Err(Error::ZeroSize),
            size if size > most => return Err(Error::TooBig { size, most }),
            _ => {}
        }
        let arena = self.arena.clone().map_or_else(|| Arena::private(OWN_ARENA), Ok)?;
        let copies = percpu::possible_cpus();
        let setup_bytes = HEAD + copies as usize * size_of::<Cell>();
        let setup_at = arena.take(setup_bytes)?;
        let id = arena.new_owner();
        let unit = (self.size as u32 + HEADER).next_multiple_of(HEADER);
        write_head(&arena, setup_at, unit, copies, id);
        let rseq = if self.rseq { RseqOffset::detect() } else { RseqOffset::NONE };
        // SAFETY: the head was written, cells are zeros, which is empty lists; the arena is kept by the
        // tender, which outlives every use of the view. The offset is the C library's.
        let view = unsafe { View::at(arena.base(), setup_at, rseq) };
        let chunks = Chunks::new(arena.clone(), id, unit);
        let tender = self.tender(view, chunks);
        let tender = Arc::new(Mutex::new(tender));
        // The first objects, so that a handler need not wait for the worker.
        let has_stock = lock(&tender).stock_up();
        if let Err(error) = has_stock {
            lock(&tender).setup.chunks.give_up();
            // SAFETY: taken above; nobody knows the cache yet.
            unsafe { arena.give_back(setup_at, setup_bytes) };
            return Err(error);
        }
        lock(&tender).pass();
        Worker::add(&arena.0, tender.clone()).map_err(Error::System)?;
        Ok(ObjectCache { view, tender, arena, setup_at, setup_bytes, is_closed: false })
    }

    fn tender(self, view: View<'static>, chunks: Chunks) -> Tender {
        Tender::new(Setup {
            view,
            chunks,
            rcu: self.rcu.unwrap_or_else(|| domain().clone()),
            reserve: self.reserve,
            stock: self.stock,
            most_waiting: self.most_waiting as u64,
            is_fenceable: sys::membarrier(cmd::REGISTER_PRIVATE_EXPEDITED_RSEQ).is_ok(),
            on_leave: self.on_leave,
            hurry: self.hurry,
            broken: self.broken,
        })
    }
}

fn write_head(arena: &Arena, at: usize, unit: u32, copies: u32, id: u32) {
    let Watermarks { low, high, batch } = Watermarks::of_unit(unit);
    let bound = AtomicU32::new(copies);
    let limit = high.min(SLOTS as u32);
    let head = Head { bound, limit, copies, unit, batch, low, high, id };
    let place = arena.base().as_ptr().wrapping_add(at).cast::<Head>();
    // SAFETY: `take` gave the memory, aligned to a chunk, and nobody else knows it yet.
    unsafe { place.write(head) };
}

impl ObjectCache {
    /// Starts to describe a cache of objects of `size` bytes.
    pub fn builder(size: usize) -> Builder {
        Builder {
            size,
            arena: None,
            rcu: None,
            reserve: 0,
            stock: 0,
            most_waiting: MOST_WAITING,
            rseq: true,
            hurry: true,
            on_leave: None,
            broken: None,
        }
    }

    /// Takes an object; see [`View::alloc`].
    #[inline(always)]
    pub fn alloc(&self) -> Option<NonNull<u8>> {
        self.view.alloc().map(|index| self.view.payload(index))
    }

    /// Gives an object back; see [`View::free`].
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn free(&self, object: NonNull<u8>) {
        // SAFETY: the caller's duties are the same.
        unsafe { self.view.free(self.view.index_of(object)) };
    }

    /// Gives an object back after a grace period; see [`View::free_rcu`].
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn free_rcu(&self, object: NonNull<u8>) {
        // SAFETY: the caller's duties are the same.
        unsafe { self.view.free_rcu(self.view.index_of(object)) };
    }

    /// Takes an object, cutting new ones if there is none; `None` if the arena is full, or if for 100 ms readers kept
    /// more than [`most_waiting`](Builder::most_waiting).
    ///
    /// # Context
    /// Target thread: takes a lock that the worker also takes, and may call the system.
    pub fn alloc_blocking(&self) -> Option<NonNull<u8>> {
        let (mut tries, end) = (0, Instant::now() + PATIENCE);
        loop {
            if let Some(object) = self.alloc() {
                return Some(object);
            }
            tries += 1;
            let cpu = percpu::current_cpu() % self.view.head().copies;
            let mut tender = lock(&self.tender);
            tender.collect();
            tender.period_step();
            if tender.refill(cpu, self.view.head().batch) == 0 {
                let is_held = tender.has_too_much_waiting();
                drop(tender);
                self.arena.0.worker.kick();
                if tries > 4 && (!is_held || Instant::now() > end) {
                    return None;
                }
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    /// Does what the worker would do next, at once.
    ///
    /// # Context
    /// As [`alloc_blocking`](Self::alloc_blocking).
    pub fn help(&self) {
        lock(&self.tender).pass();
    }

    /// The cache as handlers use it: a copy of a few words, as long as the cache is borrowed.
    ///
    /// ```compile_fail,E0505
    /// let cache = objcache::ObjectCache::builder(64).build()?;
    /// let view = cache.view();
    /// cache.destroy(); // not while there is a view
    /// view.alloc();
    /// # Ok::<(), objcache::Error>(())
    /// ```
    ///
    /// ```compile_fail,E0597
    /// let view = {
    ///     let cache = objcache::ObjectCache::builder(64).build().unwrap();
    ///     cache.view()
    /// };
    /// view.alloc();
    /// ```
    ///
    /// A handler, which borrows nothing, takes the view of a cache in a `static`.
    #[inline(always)]
    pub fn view(&self) -> View<'_> {
        self.view
    }

    /// The same without the borrow, for what keeps the cache beside it.
    ///
    /// # Safety
    /// The view must not be used once the cache has been dropped or destroyed.
    #[inline(always)]
    pub unsafe fn view_unbound(&self) -> View<'static> {
        self.view
    }

    /// The arena that the objects lie in.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Where the cache lies in its arena, for [`View::at`] in another process.
    pub fn offset(&self) -> usize {
        self.setup_at
    }

    /// Where the objects are.
    pub fn census(&self) -> Census {
        lock(&self.tender).census()
    }

    /// Counts every object by walking every list; what was wrong otherwise.
    ///
    /// # Safety
    /// Nobody may take or give meanwhile, in any process: what is on the lists is followed without a lock.
    ///
    /// # Errors
    /// The first thing that was wrong, in words.
    pub unsafe fn audit(&self) -> Result<Census, String> {
        lock(&self.tender).audit()
    }

    /// What the worker has done.
    pub fn stats(&self) -> Stats {
        lock(&self.tender).stats
    }

    /// Returns once every object retired before can be taken again; false if a reader kept one for `limit`.
    pub fn drain(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        loop {
            {
                let mut tender = lock(&self.tender);
                tender.fold(false);
                tender.collect();
                tender.period_step();
                let on_cpus = (0..self.view.head().copies).any(|c| !self.view.cell(c).rcu.is_empty());
                // Without rseq in the kernel's barrier, what lies on CPUs stays there and is no one's wait.
                if tender.is_settled() && (!on_cpus || !tender.setup.is_fenceable) {
                    return true;
                }
            }
            if Instant::now() > end {
                return false;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Ends the cache: its memory returns after both grace periods, on the worker. Does not wait.
    pub fn destroy(mut self) -> Ticket {
        self.close()
    }

    fn close(&mut self) -> Ticket {
        self.is_closed = true;
        let ticket = lock(&self.tender).close(self.setup_at, self.setup_bytes);
        self.arena.0.worker.kick();
        ticket
    }
}

impl Drop for ObjectCache {
    /// As [`destroy`](ObjectCache::destroy), without a word about leaks.
    fn drop(&mut self) {
        if !self.is_closed {
            self.close();
        }
    }
}
