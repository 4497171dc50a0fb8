//! What every model is made of: a block, an item, its readers and its driver.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use loom::thread::{self, JoinHandle};
use rcu::{Block, BlockOptions, Env, Flavour, FlavourSet, Lite, Rank, Waiting};
use std::alloc::Layout;
use std::ptr::NonNull;

/// Drives a grace period, and counts its process-wide fences.
#[derive(Default)]
pub struct Driver {
    pub heavy: u32,
}

impl Env for Driver {
    fn heavy_fence(&mut self) {
        self.heavy += 1;
        loom::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }
    fn pause(&mut self, _: &Waiting) {
        thread::yield_now();
    }
}

/// An item that readers look at as long as the pointer to it is 0, and that is freed once.
pub struct Item {
    pointer: AtomicUsize,
    item: UnsafeCell<u32>,
}

impl Item {
    pub fn new() -> Item {
        Item { pointer: AtomicUsize::new(0), item: UnsafeCell::new(7) }
    }

    pub fn look(&self) {
        if self.pointer.load(Relaxed) == 0 {
            // SAFETY: under test: the item is not freed while a reader holds it.
            self.item.with(|p| assert_eq!(unsafe { *p }, 7));
        }
    }

    pub fn unlink(&self) {
        self.pointer.store(1, Relaxed);
    }

    pub fn free(&self) {
        // SAFETY: under test: no reader holds the item.
        self.item.with_mut(|p| unsafe { *p = 0 });
    }
}

/// A block and an item.
pub struct World {
    pub block: Block<'static>,
    pub item: Item,
}

// SAFETY: the item is what the protocol under test protects.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    /// A world whose block is declared lite.
    pub fn new(copies: u32) -> Arc<World> {
        Self::declared(copies, FlavourSet(Flavour::Lite.bit()))
    }

    pub fn declared(copies: u32, declared: FlavourSet) -> Arc<World> {
        let layout = Layout::from_size_align(Block::size_bytes(copies), Block::ALIGN).unwrap();
        // SAFETY: the layout has a size. Never freed: models are many, but short-lived and small.
        let mem = NonNull::new(unsafe { std::alloc::alloc(layout) }).unwrap();
        let options = BlockOptions {
            copies,
            rseq: percpu::RseqOffset::NONE,
            declared,
            checked: false,
            reader_fences: false,
            owner: 1,
        };
        // SAFETY: `mem` is fresh, big enough and aligned.
        let block = unsafe { Block::init(mem, &options) };
        Arc::new(World { block, item: Item::new() })
    }

    /// One section that looks at the item.
    pub fn read(&self) {
        self.read_at(self.block.rank());
    }

    /// The same on a rank that was fetched at any time before.
    pub fn read_at(&self, rank: Rank) {
        self.block.lock_at::<Lite>(rank).unwrap();
        self.item.look();
        // SAFETY: entered above, and left once.
        unsafe { self.block.unlock::<Lite>(rank) };
    }

    /// Unlinks the item, waits for a grace period, frees it.
    pub fn replace(&self, expedited: bool) {
        self.item.unlink();
        // SAFETY: nobody else drives the block meanwhile, and `env` fences its readers.
        unsafe { self.block.run_gp(&mut Driver::default(), expedited) };
        self.item.free();
    }
}

/// A thread that does `work` with what it shares.
pub fn spawn<T: Send + Sync + 'static>(
    shared: &Arc<T>,
    work: impl FnOnce(&T) + Send + 'static,
) -> JoinHandle<()> {
    let shared = shared.clone();
    thread::spawn(move || work(&shared))
}

/// Every execution with at most `bound` preemptions.
pub fn model(bound: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(bound);
    builder.check(run);
}
