//! The life of an object and of a cache: grace periods, the way home, the end (W1 to W3, D1, D2, B1, Z1).

use objcache::{Arena, CHUNK, Error, Leak, ObjectCache, SizedCaches, domain};
use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(60);

fn take(cache: &ObjectCache, n: usize) -> Vec<NonNull<u8>> {
    (0..n).map(|_| cache.alloc_blocking().expect("room in the arena")).collect()
}

struct Objects(Vec<NonNull<u8>>);
// SAFETY: objects may be given back by any thread.
unsafe impl Send for Objects {}

#[test]
fn a_retired_object_is_not_taken_again_while_a_reader_is_inside() {
    let cache = ObjectCache::builder(48).build().unwrap();
    let guard = domain().fast();
    let retired: HashSet<_> = take(&cache, 500).into_iter().collect();
    for object in &retired {
        // SAFETY: 48 bytes of our own.
        unsafe { object.cast::<u64>().write(0x5eed) };
        // SAFETY: taken above; the only reader is this thread.
        unsafe { cache.free_rcu(*object) };
    }
    assert!(!cache.drain(Duration::from_millis(200)), "a reader is inside");
    let others = take(&cache, 2000);
    assert!(others.iter().all(|object| !retired.contains(object)), "reused under a reader");
    for object in &retired {
        // SAFETY: a reader may look at retired objects.
        assert_eq!(unsafe { object.cast::<u64>().read() }, 0x5eed, "changed under a reader");
    }
    drop(guard);
    assert!(cache.drain(SOON));
    let again = take(&cache, 500);
    assert!(again.iter().any(|object| retired.contains(object)), "retired objects come back");
    for object in others.into_iter().chain(again) {
        // SAFETY: taken above.
        unsafe { cache.free(object) };
    }
    // SAFETY: nobody takes or gives now.
    assert_eq!(unsafe { cache.audit() }.unwrap().live(), 0);
}

#[test]
fn objects_of_a_cpu_that_went_idle_come_back() {
    let cache = ObjectCache::builder(48).build().unwrap();
    for object in take(&cache, 5) {
        // SAFETY: taken above, no reader knows it.
        unsafe { cache.free_rcu(object) };
    }
    let end = Instant::now() + SOON;
    // Nobody calls drain: the worker looks by itself.
    while cache.census().retired + cache.census().waiting > 0 {
        assert!(Instant::now() < end, "{:?}", cache.census());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(cache.stats().folds > 0);
}

#[test]
fn objects_freed_on_another_cpu_find_their_way_back() {
    let cache = ObjectCache::builder(100).build().unwrap();
    let (send, receive) = mpsc::sync_channel::<Objects>(4);
    std::thread::scope(|s| {
        let cache = &cache;
        s.spawn(move || {
            let _ = sys::sched::pin_to_cpu(1);
            while let Ok(Objects(batch)) = receive.recv() {
                for object in batch {
                    // SAFETY: taken by the other thread, which gave it up.
                    unsafe { cache.free(object) };
                }
            }
        });
        let _ = sys::sched::pin_to_cpu(0);
        for _ in 0..3000 {
            send.send(Objects(take(cache, 100))).unwrap();
        }
        drop(send);
    });
    // SAFETY: nobody takes or gives now.
    let census = unsafe { cache.audit() }.unwrap();
    assert_eq!(census.live(), 0);
    // 300,000 objects went over; without a way home that is 30 MB.
    assert!(census.bytes < 2 << 20, "{} bytes", census.bytes);
}

#[test]
fn memory_that_is_not_needed_returns_to_the_system_and_is_zero_again() {
    static LEFT: AtomicU64 = AtomicU64::new(0);
    // Each CPU keeps some objects: moved from one to the other, a thread leaves them in twice as many chunks.
    let _ = sys::sched::pin_to_cpu(0);
    let arena = Arena::private(64 * CHUNK).unwrap();
    let builder = ObjectCache::builder(1000).arena(&arena);
    let cache = builder.on_leave(|_| _ = LEFT.fetch_add(1, Relaxed)).build().unwrap();
    let objects = take(&cache, 1000);
    let peak = cache.census().bytes;
    for object in objects {
        // SAFETY: 1000 bytes of our own.
        unsafe { object.as_ptr().write_bytes(0xff, 1000) };
        // SAFETY: taken above.
        unsafe { cache.free(object) };
    }
    let end = Instant::now() + SOON;
    while cache.census().bytes > peak / 4 {
        assert!(Instant::now() < end, "{:?} {:?}", cache.census(), cache.stats());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(LEFT.load(Relaxed), cache.stats().returned);
    assert_eq!(cache.destroy().wait(), Ok(()));
}

#[test]
fn a_destroyed_cache_gives_everything_back_after_the_readers() {
    let arena = Arena::private(64 * CHUNK).unwrap();
    let before = arena.used_bytes();
    let cache = ObjectCache::builder(200).arena(&arena).build().unwrap();
    let guard = domain().fast();
    for object in take(&cache, 300) {
        // SAFETY: 200 bytes of our own.
        unsafe { object.cast::<u64>().write(0x5eed) };
        // SAFETY: taken above; the only reader is this thread.
        unsafe { cache.free_rcu(object) };
    }
    let ticket = cache.destroy();
    assert_eq!(ticket.wait_for(Duration::from_millis(100)), None, "a reader is inside");
    drop(guard);
    assert_eq!(ticket.wait(), Ok(()));
    assert_eq!(arena.used_bytes(), before);
}

#[test]
fn a_leak_is_counted_and_its_memory_stays() {
    let arena = Arena::private(64 * CHUNK).unwrap();
    let cache = ObjectCache::builder(200).arena(&arena).build().unwrap();
    let kept = take(&cache, 3);
    // SAFETY: 200 bytes of our own.
    unsafe { kept[0].cast::<u64>().write(0x5eed) };
    let ticket = cache.destroy();
    assert_eq!(ticket.wait(), Err(Leak { objects: 3 }));
    // SAFETY: never given back, so still ours.
    assert_eq!(unsafe { kept[0].cast::<u64>().read() }, 0x5eed);
}

#[test]
fn destroy_at_any_moment_with_objects_under_way_leaks_nothing() {
    for n in 0..30 {
        let cache = ObjectCache::builder(64).build().unwrap();
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    for _ in 0..200 * n {
                        if let Some(object) = cache.alloc() {
                            // SAFETY: taken above, no reader knows it.
                            unsafe { cache.free_rcu(object) };
                        }
                    }
                });
            }
        });
        assert_eq!(cache.destroy().wait(), Ok(()));
    }
}

#[test]
fn what_cannot_be_is_refused_when_it_is_built() {
    assert_eq!(ObjectCache::builder(0).build().err(), Some(Error::ZeroSize));
    let most = CHUNK - 8;
    assert_eq!(ObjectCache::builder(most + 1).build().err(), Some(Error::TooBig { size: most + 1, most }));
    let arena = Arena::private(2 * CHUNK).unwrap();
    let _first = ObjectCache::builder(8).arena(&arena).build().unwrap();
    let full = ObjectCache::builder(8).arena(&arena).build().err().unwrap();
    assert_eq!(
        (full, full.errno()),
        (Error::ArenaFull { wanted: CHUNK.min(full_size()), free: 0 }, sys::Errno::ENOMEM)
    );
}

/// Head and cells of a cache on this machine.
fn full_size() -> usize {
    1024 + percpu::possible_cpus() as usize * 1024
}

#[test]
fn objects_of_every_size_go_back_to_their_class() {
    let arena = Arena::private(512 * CHUNK).unwrap();
    let caches = SizedCaches::new(&arena, None).unwrap();
    assert!(caches.alloc(0).is_none() && caches.alloc(4089).is_none());
    for round in 0..3 {
        let mut held = Vec::new();
        for size in (1..=4088).step_by(61) {
            let Some(object) = caches.alloc(size) else { continue };
            // SAFETY: at least `size` bytes of our own.
            unsafe { object.as_ptr().write_bytes(round, size) };
            held.push(object);
        }
        assert!(held.len() > 11);
        for (n, object) in held.into_iter().enumerate() {
            match n % 2 {
                // SAFETY: taken above.
                0 => unsafe { caches.free(object) },
                // SAFETY: taken above, no reader knows it.
                _ => unsafe { caches.free_rcu(object) },
            }
        }
    }
    for cache in caches.caches() {
        // SAFETY: nobody takes or gives now.
        assert_eq!(unsafe { cache.audit() }.unwrap().live(), 0);
    }
}

/// Retired objects that a reader keeps, while more are taken and retired all the time.
#[test]
fn what_waits_for_a_reader_is_bounded_and_comes_back() {
    const MOST: usize = 1 << 20;
    let arena = Arena::private(64 << 20).unwrap();
    // A domain of its own: the other tests' memory waits for readers of the default one.
    let domain = rcu::Domain::builder("bounded").flavour(rcu::Flavour::Fast).checked(false).build().unwrap();
    let domain = std::sync::Arc::new(domain);
    let builder = ObjectCache::builder(248).arena(&arena).rcu(domain.clone());
    let cache = builder.most_waiting(MOST).build().unwrap();
    let section = domain.fast();
    let (mut taken, mut refused) = (0u64, 0u64);
    // 25 MiB and more, if nothing held it.
    while taken < 100_000 && refused < 1000 {
        match cache.alloc() {
            // SAFETY: taken here, and nobody else knows it.
            Some(object) => unsafe { cache.free_rcu(object) },
            None => {
                refused += 1;
                cache.help();
                continue;
            }
        }
        taken += 1;
    }
    let census = cache.census();
    let slack = 3 << 20; // lists and depots of the CPUs, trays
    assert!(
        refused > 0 && census.bytes < (MOST + slack) as u64,
        "{taken} taken, {refused} refused, {census:?}"
    );
    assert!(cache.stats().held > 0);
    // It waits for a bounded time, and says what it got.
    if let Some(object) = cache.alloc_blocking() {
        // SAFETY: taken here.
        unsafe { cache.free(object) };
    }
    drop(section);
    assert!(cache.drain(std::time::Duration::from_secs(60)));
    let object = cache.alloc_blocking().expect("they came back");
    // SAFETY: taken above.
    unsafe { cache.free(object) };
}
