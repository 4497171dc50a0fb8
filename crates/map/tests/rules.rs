//! What safe callers may ask for: sizes that overflow, places that are not there, all of a map's keys, maps without end.

use map::*;
use objcache::Arena;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn setup<T>(tried: Result<T, Error>, what: &str) {
    assert!(matches!(tried, Err(Error::Setup(_))), "{what}: refused when it is made");
}

const WILD: [usize; 9] = [
    0,
    1 << 31,
    u32::MAX as usize,
    1 << 32,
    (1 << 32) + 8,
    1 << 61,
    usize::MAX - 63,
    usize::MAX - 7,
    usize::MAX,
];

#[test]
fn sizes_that_no_arena_has_are_refused_and_take_nothing() {
    let arena = Arena::private(16 << 20).unwrap();
    let used = arena.used_bytes();
    for wild in WILD {
        for entries in [1, 1000, u32::MAX] {
            setup(Array::create(&arena, entries, wild), "array");
        }
        for kind in [|b: HashBuilder| b, HashBuilder::per_cpu, HashBuilder::lru, HashBuilder::on_demand] {
            setup(kind(Hash::builder(wild, 8, 16)).build(&arena), "hash, key");
            setup(kind(Hash::builder(8, wild, 16)).build(&arena), "hash, value");
            setup(kind(Hash::builder(wild, wild, 16)).build(&arena), "hash, both");
        }
    }
    for limit in [0, 1 << 31, (1 << 31) + 1, u32::MAX] {
        setup(Hash::builder(8, 8, limit).build(&arena), "hash, keys");
        setup(Hash::builder(8, 8, limit).on_demand().build(&arena), "hash on demand, keys");
        setup(PercpuArray::create(&arena, limit), "sums");
    }
    for (slots, depth) in [(1 << 31, 1), (u32::MAX, 8), ((1 << 31) + 1, 0), (8, u32::MAX), (8, 1 << 29)] {
        setup(Stacks::create(&arena, slots, depth), "stacks");
    }
    setup(Ring::create(&arena, usize::MAX), "ring");
    let wide = Buckets::Linear { min: 0, max: u64::MAX, step: 0 };
    setup(Histogram::create(&arena, wide), "histogram");
    // What a refused map had taken of the arena is back, at the latest when its cache has ended.
    let end = Instant::now() + Duration::from_secs(60);
    while arena.used_bytes() != used && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(arena.used_bytes(), used);
}

#[test]
fn words_and_cursors_beyond_the_end_are_refused_and_nothing_stays_busy() {
    let arena = Arena::private(16 << 20).unwrap();
    for value in [1usize, 7, 8, 16, 23] {
        let array = Array::create(&arena, 4, value).unwrap();
        for word in [value / 8, value / 8 + 1, 1 << 30, usize::MAX / 8, usize::MAX - 1, usize::MAX] {
            assert_eq!(array.add(0, word, 1), Err(Error::NotFound), "{value} {word}");
        }
        let mut out = vec![0; value];
        assert_eq!((array.get(0, &mut out), array.set(0, &out)), (Ok(()), Ok(())), "{value}");
        assert_eq!(
            (array.get(4, &mut out), array.set(u32::MAX, &out)),
            (Err(Error::NotFound), Err(Error::Full))
        );
    }
    let map = Hash::builder(8, 8, 100).build(&arena).unwrap();
    map.update(&[1; 8], &[2; 8], Flag::Any).unwrap();
    for start in [0, 1, 127, 128, 1 << 20, u32::MAX] {
        let (mut cursor, mut seen) = (start, 0);
        for _ in 0..200 {
            seen += map.get_batch(&mut cursor, 10).unwrap().len();
            if cursor == 0 {
                break;
            }
        }
        assert!(seen <= 1 && cursor == 0, "{start}");
    }
    let mut out = [0; 8];
    assert_eq!(map.get_copy(&[1; 8], u32::MAX, &mut out), Ok(()));
    let sums = PercpuArray::create(&arena, 3).unwrap();
    assert_eq!((sums.add(3, 1), sums.of_cpu(0, u32::MAX), sums.sum(u32::MAX)), (false, 0, 0));
    let ring = Ring::create(&arena, 4096).unwrap();
    for len in [4096, 1 << 29, u32::MAX as usize, usize::MAX - 7, usize::MAX] {
        assert!(matches!(ring.reserve(len), Err(Error::TooLong)), "{len}");
    }
}

#[test]
fn a_histogram_on_too_few_sums_is_refused() {
    let arena = Arena::private(4 << 20).unwrap();
    for entries in [1, 2, 65] {
        let counts = PercpuArray::create(&arena, entries).unwrap();
        let refused = Histogram::on(counts, Buckets::Log2).err();
        assert_eq!(refused, Some(Error::Length { given: entries as usize, wanted: 66 }));
    }
    let fits = Histogram::on(PercpuArray::create(&arena, 66).unwrap(), Buckets::Log2).unwrap();
    [0, 1, u64::MAX].into_iter().for_each(|value| fits.record(value));
    assert_eq!((fits.count(0), fits.count(1), fits.count(64), fits.total()), (1, 1, 1, 0));
}

#[test]
fn any_thread_brings_a_new_map_to_its_limit_at_once() {
    let arena = Arena::private(256 << 20).unwrap();
    type Kind = fn(HashBuilder) -> HashBuilder;
    let kinds: [(&str, Kind, usize, u32); 6] = [
        ("hash", |b| b, 8, 1000),
        ("hash", |b| b, 8, 20_000),
        ("hash", |b| b, 1000, 3000),
        ("plain", HashBuilder::plain_free, 8, 1000),
        ("preallocated", HashBuilder::preallocated, 8, 1000),
        ("per-cpu", HashBuilder::per_cpu, 8, 1000),
    ];
    for (name, kind, value, limit) in kinds {
        for cpu in 0..percpu::possible_cpus().min(2) as usize {
            let map = Arc::new(kind(Hash::builder(8, value, limit)).build(&arena).unwrap());
            let fill = map.clone();
            std::thread::spawn(move || {
                let _ = sys::sched::pin_to_cpu(cpu);
                let bytes = vec![1; value];
                for n in 0..u64::from(limit) {
                    assert_eq!(
                        fill.update(&n.to_ne_bytes(), &bytes, Flag::NoExist),
                        Ok(()),
                        "{name} {limit}: key {n}"
                    );
                }
                assert_eq!(
                    fill.update(&u64::MAX.to_ne_bytes(), &bytes, Flag::Any),
                    Err(Error::Full),
                    "{name}"
                );
            })
            .join()
            .unwrap();
            assert_eq!(map.len(), limit, "{name}");
        }
    }
}

#[test]
fn a_full_map_has_no_second_set_of_elements() {
    const LIMIT: u32 = 20_000;
    let arena = Arena::private(64 << 20).unwrap();
    let map = Hash::builder(8, 8, LIMIT).build(&arena).unwrap();
    (0..u64::from(LIMIT)).for_each(|n| map.update(&n.to_ne_bytes(), &[0; 8], Flag::Any).unwrap());
    let cache = map.cache().unwrap();
    (0..20).for_each(|_| cache.help());
    // What waits in depots varies with how often the kernel came between: 3,552 of these were seen.
    let most = u64::from(LIMIT + LIMIT / 4) + 256 * u64::from(percpu::possible_cpus());
    assert!(cache.census().out <= most, "{:?}", cache.census());
}

#[test]
fn maps_that_end_give_all_of_their_memory_back() {
    let arena = Arena::private(16 << 20).unwrap();
    let used = arena.used_bytes();
    for round in 0..200 {
        let map = Hash::builder(8, 8, 1000).build(&arena).unwrap_or_else(|e| panic!("round {round}: {e}"));
        map.update(&[0; 8], &[0; 8], Flag::Any).unwrap();
        let stacks = Stacks::create(&arena, 1 << 12, 8).unwrap_or_else(|e| panic!("round {round}: {e}"));
        stacks.id(&[1, 2, 3]).unwrap();
        // By its end, and by a drop alone.
        if round % 2 == 0 {
            map.destroy().unwrap().wait().unwrap();
        }
        // Dropped caches end on the worker.
        let end = Instant::now() + Duration::from_secs(60);
        drop(stacks);
        while arena.used_bytes() > used + (4 << 20) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let end = Instant::now() + Duration::from_secs(60);
    while arena.used_bytes() != used && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(arena.used_bytes(), used);
}
