//! From a CPU that retires an object over the worker to the next owner, with a reader inside: W1, L1; mutants
//! early-reuse, late-batch, OBJ-1, OBJ-3.
//!
//! Grace periods are those of `rcu`, whose own models say what they keep; here it counts when they are asked for.

use crate::world::{World, model, spawn};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use objcache::{Batch, Grace, Life};
use rcu::{Block, BlockOptions, Cookie, Env, Flavour, FlavourSet, Lite, Waiting};
use std::alloc::Layout;
use std::ptr::NonNull;

struct Driver;

impl Env for Driver {
    fn heavy_fence(&mut self) {
        loom::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }
    fn pause(&mut self, _: &Waiting) {
        loom::thread::yield_now();
    }
}

/// The world, a block for readers, and which object is published.
struct Published {
    world: Arc<World>,
    block: Block<'static>,
    objects: [AtomicUsize; 2],
}

// SAFETY: all of it is atomics, but the objects, which the protocol under test protects.
unsafe impl Sync for Published {}
// SAFETY: as above.
unsafe impl Send for Published {}

// SAFETY: the block's cookies, which the model checks.
unsafe impl Grace for &Published {
    fn start(&self, _: bool) -> Cookie {
        self.block.snap()
    }
    fn is_over(&self, cookie: Cookie) -> bool {
        self.block.poll(cookie)
    }
}

impl Published {
    fn new() -> Arc<Published> {
        let layout = Layout::from_size_align(Block::size_bytes(1), Block::ALIGN).unwrap();
        // SAFETY: the layout has a size. Never freed: models are many, but short-lived and small.
        let mem = NonNull::new(unsafe { std::alloc::alloc(layout) }).unwrap();
        let options = BlockOptions {
            copies: 1,
            rseq: percpu::RseqOffset::NONE,
            declared: FlavourSet(Flavour::Lite.bit()),
            checked: false,
            reader_fences: false,
            owner: 1,
        };
        // SAFETY: `mem` is fresh, big enough and aligned.
        let block = unsafe { Block::init(mem, &options) };
        Arc::new(Published { world: World::new(), block, objects: [1, 2].map(AtomicUsize::new) })
    }

    /// Looks at a published object for as long as a reader may.
    fn read(&self, n: usize) {
        let rank = self.block.rank();
        self.block.lock_at::<Lite>(rank).unwrap();
        let i = self.objects[n].load(Relaxed);
        if i != 0 {
            self.world.look(i as u32);
        }
        // SAFETY: entered above, and left once.
        unsafe { self.block.unlock::<Lite>(rank) };
    }

    /// What `free_rcu` comes to when the CPU's list is full.
    fn retire(&self, n: usize) {
        let i = self.objects[n].swap(0, Relaxed) as u32;
        self.world.push(&self.world.retired, self.world.linked(&[i]));
    }

    /// One pass of the worker; what is mature is written by its next owner.
    fn pass(&self, life: &mut Life<Batch>) -> usize {
        // SAFETY: the stack holds batches of this world.
        unsafe { self.world.retired.take_all(self.world.items(), |batch| life.queued.push(batch)) };
        let mature = life.step(&self, true, false);
        mature.iter().flat_map(|batch| self.world.objects(*batch)).for_each(|i| {
            self.world.own(i, 1);
        });
        mature.len()
    }
}

#[test]
fn a_retired_object_is_nobodys_while_a_reader_looks_at_it() {
    model(2, || {
        let all = Published::new();
        let reader = spawn(&all, |all| all.read(0));
        let retirer = spawn(&all, |all| all.retire(0));
        let mut life = Life::default();
        let mut mature = all.pass(&mut life);
        // SAFETY: nobody else drives the block meanwhile, and `env` fences its readers.
        unsafe { all.block.run_gp(&mut Driver, false) };
        mature += all.pass(&mut life);
        retirer.join().unwrap();
        for _ in 0..2 {
            mature += all.pass(&mut life);
            // SAFETY: nobody else drives the block meanwhile, and `env` fences its readers.
            unsafe { all.block.run_gp(&mut Driver, false) };
        }
        mature += all.pass(&mut life);
        assert_eq!((mature, life.is_settled()), (1, true));
        reader.join().unwrap();
    });
}

#[test]
fn what_is_retired_while_a_grace_period_runs_waits_for_the_next() {
    model(2, || {
        let all = Published::new();
        all.retire(0);
        let mut life = Life::default();
        assert_eq!(all.pass(&mut life), 0);
        let reader = spawn(&all, |all| all.read(1));
        let driver = spawn(&all, |all| {
            // SAFETY: the other turn of this block comes after this thread has ended.
            unsafe { all.block.run_gp(&mut Driver, false) };
        });
        all.retire(1);
        let mut mature = all.pass(&mut life);
        driver.join().unwrap();
        for _ in 0..2 {
            mature += all.pass(&mut life);
            // SAFETY: nobody else drives the block meanwhile, and `env` fences its readers.
            unsafe { all.block.run_gp(&mut Driver, false) };
        }
        mature += all.pass(&mut life);
        assert_eq!((mature, life.is_settled()), (2, true));
        reader.join().unwrap();
    });
}
