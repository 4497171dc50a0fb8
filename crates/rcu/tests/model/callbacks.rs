//! The callback list: A1; mutant early-advance.

use crate::world::{Driver, World, model, spawn};
use loom::sync::{Arc, Mutex};
use loom::thread;
use rcu::{CbList, Head};
use std::ptr::NonNull;

/// A callback whose node knows what it frees.
#[repr(C)]
struct FreeLater {
    head: Head,
    world: Arc<World>,
}

unsafe fn free_later(node: NonNull<Head>) {
    // SAFETY: `callback_frees_after_its_readers` queued a leaked box with the node first.
    let later = unsafe { Box::from_raw(node.cast::<FreeLater>().as_ptr()) };
    later.world.item.free();
}

#[test]
fn callback_frees_after_its_readers() {
    model(3, || {
        let world = World::new(1);
        let list = Arc::new(Mutex::new(CbList::new()));
        let reader = spawn(&world, World::read);
        let caller = thread::spawn({
            let (world, list) = (world.clone(), list.clone());
            move || {
                world.item.unlink();
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
        // SAFETY: nobody else drives the block meanwhile, and `env` fences its readers.
        unsafe { world.block.run_gp(&mut Driver::default(), false) };
        let mut ran = run();
        caller.join().unwrap();
        if ran == 0 {
            // SAFETY: nobody else drives the block meanwhile, and `env` fences its readers.
            unsafe { world.block.run_gp(&mut Driver::default(), false) };
            ran += run();
        }
        assert_eq!(ran, 1, "one more grace period is always enough");
        reader.join().unwrap();
    });
}
