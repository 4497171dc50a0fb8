//! What each map does, in one process (A1, A2, U1, T1, H3, I1, I2, R1, R2).

use map::{Array, Buckets, Error, Flag, Hash, Histogram, Mixed, PercpuArray, Stacks};
use objcache::{Arena, CHUNK};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

fn arena() -> Arena {
    Arena::private(4096 * CHUNK).unwrap()
}

/// Every kind of hash, by name.
fn hashes(arena: &Arena, key: usize, value: usize, limit: u32) -> Vec<(&'static str, Hash)> {
    let builder = || Hash::builder(key, value, limit);
    vec![
        ("rcu", builder().build(arena).unwrap()),
        ("plain", builder().plain_free().build(arena).unwrap()),
        ("preallocated", builder().preallocated().build(arena).unwrap()),
        ("per-cpu", builder().per_cpu().build(arena).unwrap()),
        ("per-cpu preallocated", builder().per_cpu().preallocated().build(arena).unwrap()),
    ]
}

/// Repeats what found no object until the worker has brought some.
fn sure(mut op: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
    loop {
        match op() {
            Err(Error::NoMemory | Error::Busy) => std::thread::sleep(Duration::from_micros(100)),
            other => return other,
        }
    }
}

#[test]
fn flags_and_error_numbers_are_the_kernels() {
    let arena = arena();
    for (name, map) in hashes(&arena, 4, 8, 2) {
        let (a, b, c) = (1u32.to_ne_bytes(), 2u32.to_ne_bytes(), 3u32.to_ne_bytes());
        let mut out = [0; 8];
        assert_eq!(map.get(&a, &mut out), Err(Error::NotFound), "{name}");
        assert_eq!(map.update(&a, &[1; 8], Flag::Exist), Err(Error::NotFound), "{name}");
        assert_eq!(map.update(&a, &[1; 8], Flag::NoExist), Ok(()), "{name}");
        assert_eq!(map.update(&a, &[2; 8], Flag::NoExist), Err(Error::Exists), "{name}");
        assert_eq!(map.update(&a, &[3; 8], Flag::Exist), Ok(()), "{name}");
        assert_eq!(map.update(&b, &[4; 8], Flag::Any), Ok(()), "{name}");
        assert_eq!(map.update(&c, &[5; 8], Flag::Any), Err(Error::Full), "{name}");
        assert_eq!((map.get(&a, &mut out), out), (Ok(()), [3; 8]), "{name}");
        assert_eq!(map.delete(&b), Ok(()), "{name}");
        assert_eq!(map.delete(&b), Err(Error::NotFound), "{name}");
        assert_eq!(map.len(), 1, "{name}");
        assert_eq!(map.get(&[1], &mut out), Err(Error::Length { given: 1, wanted: 4 }), "{name}");
        assert_eq!(map.update(&a, &[1], Flag::Any), Err(Error::Length { given: 1, wanted: 8 }), "{name}");
    }
    let numbers = [Error::NotFound, Error::Exists, Error::Full, Error::NoMemory, Error::Busy];
    assert_eq!(numbers.map(|e| e.errno().0), [2, 17, 7, 12, 16]);
}

#[test]
fn odd_lengths_of_keys_and_values_are_kept_whole() {
    let arena = arena();
    for (key_bytes, value_bytes) in [(1, 1), (7, 3), (8, 9), (33, 100), (16, 4000)] {
        let map = Hash::builder(key_bytes, value_bytes, 100).build(&arena).unwrap();
        let key = |n: u8| (0..key_bytes).map(|i| n.wrapping_add(i as u8 * 3)).collect::<Vec<_>>();
        let value = |n: u8| (0..value_bytes).map(|i| n.wrapping_mul(i as u8 | 1)).collect::<Vec<_>>();
        for n in 0..100 {
            sure(|| map.update(&key(n), &value(n), Flag::Any)).unwrap();
        }
        let mut out = vec![0; value_bytes];
        for n in 0..100 {
            map.get(&key(n), &mut out).unwrap();
            assert_eq!(out, value(n), "key of {key_bytes} bytes, value of {value_bytes}");
        }
    }
}

#[test]
fn walks_meet_every_key_once_and_batches_do_the_same() {
    let arena = arena();
    for (name, map) in hashes(&arena, 8, 8, 1000) {
        for n in 0..1000u64 {
            sure(|| map.update(&n.to_ne_bytes(), &(n * 3).to_ne_bytes(), Flag::Any)).unwrap();
        }
        let mut seen = HashMap::new();
        map.for_each(|k, _| _ = seen.insert(k.to_vec(), ())).unwrap();
        assert_eq!((seen.len(), map.len()), (1000, 1000), "{name}");
        let (mut keys, mut key) = (0, map.next_key(None));
        while let Ok(k) = key {
            assert!(seen.remove(&k).is_some(), "{name}: a key twice");
            keys += 1;
            key = map.next_key(Some(&k));
        }
        assert_eq!((key, keys), (Err(Error::NotFound), 1000), "{name}");
        let (mut cursor, mut taken) = (0, map.take_batch(&mut 0, 100).unwrap().len());
        assert!((100..200).contains(&taken), "{name}");
        loop {
            taken += map.take_batch(&mut cursor, 100).unwrap().len();
            if cursor == 0 {
                break;
            }
        }
        assert_eq!((taken, map.len()), (1000, 0), "{name}");
        let pairs: Vec<_> = (0..50u64).map(|n| (n.to_ne_bytes(), n.to_ne_bytes())).collect();
        let entries = || pairs.iter().map(|(k, v)| (&k[..], &v[..]));
        assert_eq!(map.update_batch(entries(), Flag::NoExist), (50, Ok(())), "{name}");
        assert_eq!(map.update_batch(entries(), Flag::NoExist), (0, Err(Error::Exists)), "{name}");
        assert_eq!(map.delete_batch(pairs.iter().map(|(k, _)| &k[..])), (50, Ok(())), "{name}");
    }
}

#[test]
fn adds_of_four_threads_are_exact_whatever_the_map() {
    let arena = arena();
    for (name, map) in hashes(&arena, 8, 8, 64) {
        std::thread::scope(|s| {
            for t in 0..4u64 {
                let map = &map;
                s.spawn(move || {
                    for n in 0..20_000u64 {
                        sure(|| map.add(&((n * 7 + t) % 50).to_ne_bytes(), 1)).unwrap();
                    }
                });
            }
        });
        let sum: u64 = (0..50u64).map(|k| map.sum(&k.to_ne_bytes()).unwrap()).sum();
        assert_eq!((sum, map.len()), (80_000, 50), "{name}");
    }
}

#[test]
fn credits_are_exact_under_threads() {
    let arena = arena();
    for (name, map) in hashes(&arena, 8, 8, 500) {
        let (made, deleted) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|s| {
            for t in 0..4u64 {
                let (map, made, deleted) = (&map, &made, &deleted);
                s.spawn(move || {
                    for n in 0..20_000u64 {
                        let key = (n * 13 + t * 5) % 1000;
                        if n % 3 == 0 {
                            deleted.fetch_add(
                                u64::from(sure(|| map.delete(&key.to_ne_bytes())).is_ok()),
                                Relaxed,
                            );
                            continue;
                        }
                        match sure(|| map.update(&key.to_ne_bytes(), &[1; 8], Flag::NoExist)) {
                            Ok(()) => _ = made.fetch_add(1, Relaxed),
                            Err(Error::Exists | Error::Full) => {}
                            Err(other) => panic!("{name}: {other}"),
                        }
                        assert!(map.len() <= 500, "{name}");
                    }
                });
            }
        });
        let mut keys = 0;
        map.for_each(|_, _| keys += 1).unwrap();
        let (made, deleted) = (made.load(Relaxed), deleted.load(Relaxed));
        assert_eq!((u64::from(map.len()), keys), (made - deleted, made - deleted), "{name}");
        assert!(made > 1000, "{name}");
        let cache = map.cache().unwrap();
        assert!(cache.drain(Duration::from_secs(10)), "{name}");
        // SAFETY: nobody takes or gives now.
        assert_eq!(unsafe { cache.audit() }.unwrap().live(), keys as i64, "{name}: elements lost");
        assert_eq!(map.destroy().unwrap().wait(), Ok(()), "{name}");
    }
}

#[test]
fn a_value_that_is_replaced_all_the_time_is_found_all_the_time_and_whole() {
    let arena = arena();
    for plain in [false, true] {
        let builder = Hash::builder(8, 256, 4);
        let builder = if plain { builder.plain_free() } else { builder };
        let map = builder.build(&arena).unwrap();
        // Three keys in at most four buckets: chains are longer than one.
        for key in 0..3u64 {
            map.update(&key.to_ne_bytes(), &[0; 256], Flag::Any).unwrap();
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            let (map, stop) = (&map, &stop);
            s.spawn(move || {
                for n in 0..400_000u64 {
                    let _ = map.update(&(n % 3).to_ne_bytes(), &[n as u8; 256], Flag::Any);
                }
                stop.store(true, Relaxed);
            });
            let (mut out, mut reads) = ([0; 256], 0u64);
            while !stop.load(Relaxed) {
                match map.get(&(reads % 3).to_ne_bytes(), &mut out) {
                    Ok(()) => assert!(out.iter().all(|b| *b == out[0]), "torn: {out:?}"),
                    Err(Error::Busy) => {}
                    Err(other) => panic!("a key that was always there: {other}"),
                }
                reads += 1;
            }
            assert!(reads > 1000);
        });
    }
}

#[test]
fn an_lru_map_keeps_what_is_used_and_never_refuses() {
    let arena = arena();
    let map = Hash::builder(8, 8, 100).lru().build(&arena).unwrap();
    for n in 0..5000u64 {
        sure(|| map.update(&n.to_ne_bytes(), &n.to_ne_bytes(), Flag::Any)).unwrap();
        if n >= 10 {
            // The first ten are used all the time.
            (0..10u64).for_each(|k| _ = map.get(&k.to_ne_bytes(), &mut [0; 8]));
        }
        assert!(map.len() <= 100);
    }
    let kept = (0..10u64).filter(|k| map.get(&k.to_ne_bytes(), &mut [0; 8]).is_ok()).count();
    assert!(kept >= 9, "{kept} of the 10 that are used");
    assert_eq!(map.evicted() + u64::from(map.len()), 5000);
}

#[test]
fn array_entries_are_whole_and_bounded() {
    let arena = arena();
    let array = Array::create(&arena, 10, 200).unwrap();
    let mut out = [9; 200];
    assert_eq!((array.get(3, &mut out), out), (Ok(()), [0; 200]));
    assert_eq!(array.get(10, &mut out), Err(Error::NotFound));
    assert_eq!(array.set(10, &out), Err(Error::Full));
    assert_eq!(array.add(1, 24, 5), Ok(0));
    assert_eq!(array.add(1, 24, 5), Ok(5));
    assert_eq!(array.add(1, 25, 5), Err(Error::NotFound));
    std::thread::scope(|s| {
        let array = &array;
        let writers: Vec<_> = (1..3u8)
            .map(|t| {
                s.spawn(move || {
                    (0..50_000u32).for_each(|n| _ = array.set(2, &[t.wrapping_mul(n as u8); 200]))
                })
            })
            .collect();
        let mut out = [0; 200];
        while !writers.iter().all(|w| w.is_finished()) {
            if array.get(2, &mut out).is_ok() {
                assert!(out.iter().all(|b| *b == out[0]), "torn");
            }
        }
    });
}

#[test]
fn per_cpu_sums_and_histograms_are_exact() {
    let arena = arena();
    let sums = PercpuArray::create(&arena, 300).unwrap();
    let histogram = Histogram::create(&arena, Buckets::Log2).unwrap();
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for n in 0..30_000u64 {
                    assert!(sums.add((n % 300) as u32, 2));
                    histogram.record(n);
                }
            });
        }
    });
    assert!(!sums.add(300, 1));
    assert!((0..300).all(|i| sums.sum(i) == 800));
    assert_eq!((histogram.count(0), histogram.count(1), histogram.count(10)), (4, 4, 4 * 512));
    assert_eq!(histogram.total(), 4 * (0..30_000u64).sum::<u64>());
}

#[test]
fn a_stack_has_one_number_and_none_is_lost_to_another_before_the_map_is_full() {
    let arena = arena();
    let stacks = Stacks::create(&arena, 1024, 32).unwrap();
    let stack = |n: u64| (0..n % 30 + 1).map(|i| n << 32 | i).collect::<Vec<_>>();
    let mut ids = HashMap::new();
    for n in 0..700 {
        let id = stacks.id(&stack(n)).unwrap_or_else(|why| panic!("stack {n} of 700 in 1024 places: {why}"));
        assert!(ids.insert(id, n).is_none(), "two stacks with number {id}");
    }
    let mut refused = 0;
    for n in 700..4000 {
        match stacks.id(&stack(n)) {
            Ok(id) => assert!(ids.insert(id, n).is_none(), "two stacks with number {id}"),
            Err(Error::NoMemory) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!((900..=1024).contains(&ids.len()) && stacks.refused() == refused);
    let mut out = [0; 32];
    for (id, n) in &ids {
        assert_eq!(stacks.id(&stack(*n)), Ok(*id), "it keeps its number");
        let mixed = stack(*n).iter().fold(Mixed::NONE, |mixed, frame| mixed.and(*frame));
        assert_eq!(stacks.id_of_mixed(&stack(*n), mixed), Ok(*id), "also if it was mixed before");
        let len = stacks.get(*id, &mut out).unwrap();
        assert_eq!(out[..len], stack(*n));
    }
    assert_eq!(stacks.get(1024, &mut out), Err(Error::NotFound));
    let long: Vec<u64> = (0..100).collect();
    let deep = Stacks::create(&arena, 16, 32).unwrap();
    let id = deep.id(&long).unwrap();
    assert_eq!((deep.get(id, &mut out), out.as_slice()), (Ok(32), &long[..32]));
    let mixed = long.iter().fold(Mixed::NONE, |mixed, frame| mixed.and(*frame));
    assert_eq!(deep.id_of_mixed(&long, mixed), Ok(id), "too deep a stack is the one that is left of it");
    assert_eq!(deep.get(id, &mut out[..5]), Err(Error::Length { given: 5, wanted: 32 }));
}

#[test]
fn threads_that_bring_the_same_stacks_agree_on_their_numbers() {
    let arena = arena();
    let stacks = Stacks::create(&arena, 4096, 16).unwrap();
    let numbers =
        || (0..2000u64).map(|n| stacks.id(&[n, n * n, 7][..(n % 3 + 1) as usize])).collect::<Vec<_>>();
    let all: Vec<Vec<_>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(numbers)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(all.iter().all(|numbers| *numbers == all[0] && numbers.iter().all(Result::is_ok)));
}

#[test]
fn an_arena_that_is_too_small_is_a_setup_error() {
    let arena = Arena::private(4 * CHUNK).unwrap();
    assert!(matches!(Hash::builder(8, 8, 1 << 20).build(&arena), Err(Error::Setup(_))));
    assert!(matches!(Array::create(&arena, 1 << 20, 8), Err(Error::Setup(_))));
}

#[test]
fn a_map_whose_arena_is_full_says_no_memory_and_goes_on() {
    let arena = Arena::private(4 * CHUNK).unwrap();
    let map = Hash::builder(8, 1000, 10_000).on_demand().build(&arena);
    // One chunk for the arena, one for the cache's cells, two for the map: none for elements.
    assert!(
        matches!(map, Err(Error::Setup(_))) || {
            let map = map.unwrap();
            (0..10_000u64)
                .any(|n| map.update(&n.to_ne_bytes(), &[0; 1000], Flag::Any) == Err(Error::NoMemory))
        }
    );
}
