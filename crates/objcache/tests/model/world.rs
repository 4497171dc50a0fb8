//! What every model is made of: objects, trays, stacks.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread::{self, JoinHandle};
use objcache::{Batch, Items, Link, Room, Stack, Tray};

/// Two stacks, and objects 1 to 3 with what their owners write.
pub struct World {
    room: Room,
    objects: Vec<UnsafeCell<u32>>,
    pub depot: Stack,
    pub retired: Stack,
}

// SAFETY: the objects are what the protocol under test protects.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    pub fn new() -> Arc<World> {
        let room = Room {
            links: (0..4).map(|_| Link::default()).collect(),
            trays: (0..2).map(|_| Tray::default()).collect(),
        };
        let objects = (0..4).map(|_| UnsafeCell::new(0)).collect();
        Arc::new(World { room, objects, depot: Stack::new(), retired: Stack::new() })
    }

    pub fn items(&self) -> Items {
        Items((&raw const self.room).cast_mut().cast())
    }

    pub fn tray(&self, n: usize) -> &Tray {
        &self.room.trays[n]
    }

    /// Changes an object, as its owner may; what was there.
    pub fn own(&self, i: u32, new: u32) -> u32 {
        // SAFETY: under test: the caller is the one owner.
        self.objects[i as usize].with_mut(|p| unsafe { std::mem::replace(&mut *p, new) })
    }

    /// Looks at an object, as a reader may.
    pub fn look(&self, i: u32) {
        // SAFETY: under test: nobody owns the object while a reader holds it.
        self.objects[i as usize].with(|p| assert_eq!(unsafe { *p }, 0));
    }

    pub fn push(&self, stack: &Stack, batch: Batch) {
        // SAFETY: the models push what is theirs.
        unsafe { stack.push(self.items(), batch) };
    }

    pub fn pop(&self, stack: &Stack) -> Option<Batch> {
        // SAFETY: the stacks hold objects and trays of this world.
        unsafe { stack.pop(self.items()) }
    }

    /// A batch of these objects, linked.
    pub fn linked(&self, objects: &[u32]) -> Batch {
        objects.iter().fold(Batch::default(), |batch, i| {
            // SAFETY: the caller's objects.
            unsafe { batch.with(self.items(), *i) }
        })
    }

    /// The objects of a batch that the caller owns.
    pub fn objects(&self, batch: Batch) -> Vec<u32> {
        let mut all = Vec::new();
        // SAFETY: the caller's batch.
        assert!(unsafe { batch.for_each(self.items(), |i| all.push(i)) }, "{batch:?} is not whole");
        all
    }
}

/// A thread that does `work` with what it shares.
pub fn spawn<T: Send + Sync + 'static, R: 'static>(
    shared: &Arc<T>,
    work: impl FnOnce(&T) -> R + Send + 'static,
) -> JoinHandle<R> {
    let shared = shared.clone();
    thread::spawn(move || work(&shared))
}

/// Every execution with at most `bound` preemptions.
pub fn model(bound: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(bound);
    builder.check(run);
}
