//! Models of the reader and grace-period core and of the callback list, for loom.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p nanoprobe-rcu --release --test model`.
//!
//! What stands for freeing is a mutable access to the item through loom's `UnsafeCell`: loom then
//! reports any reader that may still hold it. Two or three threads and one or two per-CPU copies; a
//! reader enters on one copy and leaves on another. Left out: rseq itself and preemption in a sequence
//! (torture has those), membarrier (both halves of the asymmetric pair are full fences here), the locked
//! cells, locks and sleeping of `Domain`.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use loom::thread;
use rcu::{Block, BlockOptions, CbList, Env, Flavour, FlavourSet, Head, Lite, Rank, Waiting};
use std::alloc::Layout;
use std::ptr::NonNull;

struct Driver;

impl Env for Driver {
    fn heavy_fence(&mut self) {
        loom::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }
    fn pause(&mut self, _: &Waiting) {
        thread::yield_now();
    }
}

/// A block, an item, and a pointer to it: 0 says that the item is published.
struct World {
    block: Block<'static>,
    pointer: AtomicUsize,
    item: UnsafeCell<u32>,
}

// SAFETY: the item is what the protocol under test protects.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    fn new(copies: u32) -> Arc<World> {
        let layout = Layout::from_size_align(Block::size_bytes(copies), Block::ALIGN).unwrap();
        // SAFETY: the layout has a size. Never freed: models are many, but short-lived and small.
        let mem = NonNull::new(unsafe { std::alloc::alloc(layout) }).unwrap();
        let options = BlockOptions {
            copies,
            rseq: percpu::RseqOffset::NONE,
            declared: FlavourSet(Flavour::Lite.bit()),
            checked: false,
            reader_fences: false,
            owner: 1,
        };
        // SAFETY: `mem` is fresh, big enough and aligned.
        let block = unsafe { Block::init(mem, &options) };
        Arc::new(World { block, pointer: AtomicUsize::new(0), item: UnsafeCell::new(7) })
    }

    fn read(&self) {
        let rank = self.block.rank();
        self.read_at(rank);
    }

    fn read_at(&self, rank: Rank) {
        self.block.lock_at::<Lite>(rank).unwrap();
        self.look();
        self.block.unlock::<Lite>(rank);
    }

    fn look(&self) {
        if self.pointer.load(Relaxed) == 0 {
            // SAFETY: under test: the item is not freed while a reader holds it.
            self.item.with(|p| assert_eq!(unsafe { *p }, 7));
        }
    }

    fn unlink(&self) {
        self.pointer.store(1, Relaxed);
    }

    fn free(&self) {
        // SAFETY: under test: no reader holds the item.
        self.item.with_mut(|p| unsafe { *p = 0 });
    }
}

fn model(bound: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(bound);
    builder.check(run);
}

#[test]
fn unlinked_item_outlives_reader() {
    model(4, || {
        let world = World::new(2);
        let reader = thread::spawn({
            let world = world.clone();
            move || world.read()
        });
        world.unlink();
        world.block.run_gp(&mut Driver, false);
        world.free();
        reader.join().unwrap();
    });
}

#[test]
fn unlinked_item_outlives_reader_when_one_fence_serves_both_scans() {
    model(4, || {
        let world = World::new(2);
        let reader = thread::spawn({
            let world = world.clone();
            move || world.read()
        });
        world.unlink();
        world.block.run_gp(&mut Driver, true);
        world.free();
        reader.join().unwrap();
    });
}

#[test]
fn straggler_of_an_earlier_rank_is_waited_for() {
    model(3, || {
        let world = World::new(1);
        // The reader fetches its rank now and counts itself at any time later.
        let rank = world.block.rank();
        let reader = thread::spawn({
            let world = world.clone();
            move || world.read_at(rank)
        });
        world.block.run_gp(&mut Driver, false);
        world.unlink();
        world.block.run_gp(&mut Driver, false);
        world.free();
        reader.join().unwrap();
    });
}

#[test]
fn straggler_is_waited_for_when_one_fence_serves_both_scans() {
    model(3, || {
        let world = World::new(1);
        // The reader fetches its rank now and counts itself at any time later.
        let rank = world.block.rank();
        let reader = thread::spawn({
            let world = world.clone();
            move || world.read_at(rank)
        });
        world.block.run_gp(&mut Driver, true);
        world.unlink();
        world.block.run_gp(&mut Driver, true);
        world.free();
        reader.join().unwrap();
    });
}

#[test]
fn reader_that_comes_and_goes_does_not_cancel_one_that_stays() {
    model(3, || {
        let world = World::new(1);
        let rank = world.block.rank();
        world.block.lock_at::<Lite>(rank).unwrap();
        let visitor = thread::spawn({
            let world = world.clone();
            move || world.read_at(rank)
        });
        let writer = thread::spawn({
            let world = world.clone();
            move || {
                world.unlink();
                world.block.run_gp(&mut Driver, false);
                world.free();
            }
        });
        world.look();
        world.block.unlock::<Lite>(rank);
        visitor.join().unwrap();
        writer.join().unwrap();
    });
}

#[test]
fn reader_that_comes_and_goes_does_not_cancel_one_under_one_fence() {
    model(3, || {
        let world = World::new(1);
        let rank = world.block.rank();
        world.block.lock_at::<Lite>(rank).unwrap();
        let visitor = thread::spawn({
            let world = world.clone();
            move || world.read_at(rank)
        });
        let writer = thread::spawn({
            let world = world.clone();
            move || {
                world.unlink();
                world.block.run_gp(&mut Driver, true);
                world.free();
            }
        });
        world.look();
        world.block.unlock::<Lite>(rank);
        visitor.join().unwrap();
        writer.join().unwrap();
    });
}

#[test]
fn cookie_taken_beside_a_running_grace_period_waits_for_the_next() {
    model(3, || {
        let world = World::new(1);
        let driver = thread::spawn({
            let world = world.clone();
            move || world.block.run_gp(&mut Driver, false)
        });
        let reader = thread::spawn({
            let world = world.clone();
            move || world.read()
        });
        world.unlink();
        let cookie = world.block.snap();
        if world.block.poll(cookie) {
            world.free();
        }
        driver.join().unwrap();
        if !world.block.poll(cookie) {
            world.block.run_gp(&mut Driver, false);
        }
        if world.block.poll(cookie) {
            world.free();
        }
        reader.join().unwrap();
    });
}

/// A callback whose node knows what it frees.
#[repr(C)]
struct FreeLater {
    head: Head,
    world: Arc<World>,
}

unsafe fn free_later(node: NonNull<Head>) {
    // SAFETY: `callback_frees_after_its_readers` queued a leaked box with the node first.
    let later = unsafe { Box::from_raw(node.cast::<FreeLater>().as_ptr()) };
    later.world.free();
}

#[test]
fn callback_frees_after_its_readers() {
    model(3, || {
        let world = World::new(1);
        let list = Arc::new(Mutex::new(CbList::new()));
        let reader = thread::spawn({
            let world = world.clone();
            move || world.read()
        });
        let caller = thread::spawn({
            let (world, list) = (world.clone(), list.clone());
            move || {
                world.unlink();
                let later = Box::new(FreeLater { head: Head::new(), world: world.clone() });
                let node = NonNull::from(Box::leak(later)).cast::<Head>();
                let mut list = list.lock().unwrap();
                let cookie = world.block.snap();
                // SAFETY: the node is a leaked box's first field, given to the list alone.
                unsafe { list.push(node, free_later, cookie, world.block.gp_seq()) };
            }
        });
        let run = || {
            let mut list = list.lock().unwrap();
            list.advance(world.block.gp_seq());
            let mut queue = list.take_done();
            list.ran(queue.len());
            drop(list);
            let mut ran = 0;
            while let Some((node, func)) = queue.pop() {
                // SAFETY: the list said that the callback's time has come.
                unsafe { func(node) };
                ran += 1;
            }
            ran
        };
        world.block.run_gp(&mut Driver, false);
        let mut ran = run();
        caller.join().unwrap();
        if ran == 0 {
            world.block.run_gp(&mut Driver, false);
            ran += run();
        }
        assert_eq!(ran, 1, "one more grace period is always enough");
        reader.join().unwrap();
    });
}
