//! Caches that end while readers look.
//!
//! For:     `torture mem`: destroy, its grace periods and its leak check.
//! State:   one cache at a time.
//! Context: control.
//! Keeps:   L1 a cache that is destroyed with everything given back reports no leak.
//! Checked: `tests/broken_mem.rs`.

use super::world::{World, fill};
use crate::rng::Rng;
use objcache::{Arena, ObjectCache};
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::time::Duration;

/// Makes, publishes, destroys.
pub fn run(world: &'static World) {
    let mut rng = Rng::new(world.options.seed, 1 << 22);
    let arena = Arena::private(64 << 20).expect("memory for the test");
    let (broken, size) = (world.options.broken.map(|(_, broken)| broken), world.options.size);
    while !world.is_stopped() {
        if !world.enter() {
            std::thread::sleep(Duration::from_micros(200));
            continue;
        }
        let builder = ObjectCache::builder(size).arena(&arena).broken(broken);
        match builder.build() {
            Err(error) => world.error(&format!("a cache could not be made: {error}")),
            Ok(cache) => life(world, cache, &mut rng),
        }
        world.leave();
    }
}

fn life(world: &World, cache: ObjectCache, rng: &mut Rng) {
    for slot in &world.mortal {
        if let Some(object) = cache.alloc_blocking() {
            fill(object, world.options.size / 8, rng.next());
            slot.store(object.as_ptr() as usize, Release);
        }
    }
    std::thread::sleep(Duration::from_micros(rng.below(500)));
    for slot in &world.mortal {
        if let Some(object) = std::ptr::NonNull::new(slot.swap(0, AcqRel) as *mut u8) {
            // SAFETY: taken above and unpublished just now; readers are in the cache's domain.
            unsafe { cache.free_rcu(object) };
        }
    }
    match cache.destroy().wait_for(Duration::from_secs(20)) {
        Some(Ok(())) => _ = world.counts.destroyed.fetch_add(1, Relaxed),
        Some(Err(leak)) => world.error(&format!("a destroyed cache: {leak}")),
        None => world.error("a cache was not destroyed in 20 s"),
    }
}
