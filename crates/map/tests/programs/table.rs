//! Tables of programs: what they keep, in threads, and in handlers that interrupt them.

use crate::ground::{moved, way};
use map::{Agg, Error, Flag, Kind, Locked, Outside, SeriesKind, Slot, Spec, Table, Way};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

fn plain(kind: Kind, key: usize, value: usize, limit: usize) -> Spec {
    Spec { kind, key, value, limit, agg: None }
}

fn of(agg: Agg, limit: usize) -> Spec {
    Spec { kind: Kind::PercpuHash, key: 8, value: 0, limit, agg: Some(agg) }
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Keys of lengths that are handled apart.
fn key(n: u64, len: usize) -> Vec<u8> {
    let mut key = n.to_le_bytes().to_vec();
    key.resize(len.max(8), 7);
    key.truncate(len.max(4));
    key
}

#[test]
fn a_table_does_what_a_map_of_the_standard_library_does() {
    for (key_len, value_len) in [(8, 8), (8, 24), (4, 1), (16, 8), (12, 30), (72, 100)] {
        let (maps, words) = moved(vec![plain(Kind::Hash, key_len, value_len, 100)], 0);
        let (inside, outside) = (words.table(&maps, 0), maps.table(0));
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut state = 0x9e37_79b9 + key_len as u64;
        for step in 0..20_000u64 {
            let key = key(random(&mut state) % 150, key_len);
            let value: Vec<u8> = (0..value_len).map(|n| (step as u8).wrapping_add(n as u8)).collect();
            // Both sides do the same things to one table.
            let is_inside = random(&mut state).is_multiple_of(2);
            match random(&mut state) % 5 {
                0 | 1 => {
                    let flag = [Flag::Any, Flag::NoExist, Flag::Exist][step as usize % 3];
                    let done = match is_inside {
                        true => inside.update(&key, &value, flag, way()),
                        false => outside.update(&key, &value, flag, Outside),
                    };
                    let wanted = match (flag, model.contains_key(&key)) {
                        (Flag::NoExist, true) => Err(Error::Exists),
                        (Flag::Exist, false) => Err(Error::NotFound),
                        (_, false) if model.len() == 100 => Err(Error::Full),
                        _ => Ok(()),
                    };
                    assert_eq!(done, wanted, "step {step}");
                    if done.is_ok() {
                        model.insert(key, value);
                    }
                }
                2 => {
                    let done = match is_inside {
                        true => inside.delete(&key, way()),
                        false => outside.delete(&key, Outside),
                    };
                    assert_eq!(done.is_ok(), model.remove(&key).is_some(), "step {step}");
                }
                3 => {
                    let mut out = vec![0; value_len];
                    match outside.find(&key) {
                        Ok(slot) => assert!(outside.value(slot, &mut out)),
                        Err(error) => assert_eq!(error, Error::NotFound),
                    }
                    assert_eq!(model.get(&key).cloned().unwrap_or(vec![0; value_len]), out, "step {step}");
                }
                _ => {
                    let found = inside.find_or_init(&key, way());
                    assert_eq!(found.is_err(), model.len() == 100 && !model.contains_key(&key));
                    if found.is_ok() {
                        model.entry(key).or_insert(vec![0; value_len]);
                    }
                }
            }
            assert_eq!(outside.len() as usize, model.len(), "step {step}");
        }
        let (mut at, mut seen, mut found) = (Slot(0), BTreeMap::new(), vec![0; key_len]);
        while let Some(slot) = outside.next(at) {
            let mut value = vec![0; value_len];
            assert!(outside.key(slot, &mut found) && outside.value(slot, &mut value));
            assert!(seen.insert(found.clone(), value).is_none(), "met twice");
            at = slot;
        }
        assert_eq!(seen, model);
        outside.clear();
        assert!(outside.is_empty() && inside.next(Slot(0)).is_none());
        (0..100)
            .for_each(|n| inside.update(&key(n, key_len), &vec![1; value_len], Flag::Any, way()).unwrap());
    }
}

#[test]
fn one_that_forgets_takes_every_key_and_keeps_those_in_use() {
    for limit in [2, 100] {
        let (maps, words) = moved(vec![plain(Kind::LruHash, 8, 8, limit)], 0);
        let table = words.table(&maps, 0);
        let hot = 1u64 << 40;
        table.update(&hot.to_ne_bytes(), &[1; 8], Flag::Any, way()).unwrap();
        for n in 0..10_000u64 {
            table.update(&n.to_ne_bytes(), &[2; 8], Flag::Any, way()).unwrap();
            assert!(table.find(&n.to_ne_bytes()).is_ok(), "the newest is there");
            let is_there = table.find(&hot.to_ne_bytes()).is_ok();
            assert!(is_there || limit == 2, "one that is used all the time was forgotten at {n}");
        }
        assert_eq!((table.len() as usize, table.evicted() > 9_000), (limit, true));
    }
}

fn aggs() -> Vec<Agg> {
    vec![
        Agg::Count,
        Agg::Sum { signed: true },
        Agg::Min { signed: true },
        Agg::Max { signed: true },
        Agg::Avg { signed: true },
        Agg::Hist { bits: 1 },
        Agg::Lhist { min: 0, max: 100, step: 7 },
        Agg::Tseries { interval: 100, num: 3, how: SeriesKind::Sum, signed: true },
    ]
}

fn exact(way: impl Way + Send + Sync) {
    const KEYS: u64 = 37;
    const EACH: u64 = 40_000;
    let aggs = aggs();
    let (maps, words) = moved(aggs.iter().map(|agg| of(*agg, KEYS as usize)).collect(), 0);
    let value = |n: u64| (n % 97).wrapping_sub(5);
    thread::scope(|scope| {
        for t in 0..4u64 {
            let (maps, aggs) = (&maps, &aggs);
            scope.spawn(move || {
                for n in 0..EACH {
                    for table in 0..aggs.len() {
                        let key = ((n + t) % KEYS).to_ne_bytes();
                        // One of them is the controller.
                        let mut done = Err(Error::Busy);
                        while done == Err(Error::Busy) {
                            done = match t {
                                0 => maps.table(table).aggregate(&key, value(n), 50, Outside),
                                _ => words.table(maps, table).aggregate(&key, value(n), 50, way),
                            };
                        }
                        done.unwrap();
                    }
                    if n % 1024 == 0 {
                        thread::yield_now();
                    }
                }
            });
        }
    });
    for (number, agg) in aggs.iter().enumerate() {
        for k in 0..KEYS {
            let mut wanted = vec![0; agg.words()];
            for t in 0..4 {
                (0..EACH).filter(|n| (n + t) % KEYS == k).for_each(|n| agg.update(&mut wanted, value(n), 50));
            }
            let wanted = agg.merge([wanted.as_slice()]);
            let table = maps.table(number);
            let slot = table.find(&k.to_ne_bytes()).unwrap();
            assert_eq!(table.words(slot), wanted, "{agg:?} of {k}");
            assert_eq!(table.aggregated(slot), words.table(&maps, number).aggregated(slot));
            assert_eq!(table.aggregated(slot), agg.number(&wanted), "{agg:?} of {k}");
        }
    }
}

#[test]
fn aggregates_are_exact_over_threads_that_restart() {
    exact(way());
}

#[test]
fn aggregates_are_exact_over_threads_that_lock() {
    exact(Locked::ALONE);
}

#[test]
fn what_was_made_zero_does_not_come_back() {
    let aggs = [Agg::Count, Agg::Hist { bits: 0 }];
    let (maps, words) = moved(aggs.map(|agg| of(agg, 5)).to_vec(), 0);
    let (taken, is_over) = ([const { AtomicU64::new(0) }; 2], AtomicBool::new(false));
    let added = AtomicU64::new(0);
    thread::scope(|scope| {
        let adders: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    for n in 0..200_000u64 {
                        (0..2).for_each(|t| {
                            words.table(&maps, t).aggregate(&(n % 5).to_ne_bytes(), n, 0, way()).unwrap();
                        });
                        added.fetch_add(1, Relaxed);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                for (number, taken) in taken.iter().enumerate() {
                    // What a table has, taken off as it is read: nothing is lost between the two.
                    let table = maps.table(number);
                    let mut at = Slot(0);
                    while let Some(slot) = table.next(at) {
                        taken.fetch_add(table.take(slot).iter().sum::<u64>(), Relaxed);
                        at = slot;
                    }
                }
            }
        });
        adders.into_iter().for_each(|adder| adder.join().unwrap());
        is_over.store(true, Relaxed);
    });
    for (number, taken) in taken.iter().enumerate() {
        let table = maps.table(number);
        let left: u64 = (0..5u64).map(|k| table.aggregated(table.find(&k.to_ne_bytes()).unwrap())).sum();
        assert_eq!(taken.load(Relaxed).wrapping_add(left), added.load(Relaxed), "{:?}", aggs[number]);
        table.zero();
        assert!((0..5u64).all(|k| table.aggregated(table.find(&k.to_ne_bytes()).unwrap()) == 0));
    }
}

#[test]
fn keys_come_and_go_in_threads_and_none_is_lost() {
    const LIMIT: usize = 64;
    let (maps, words) = moved(vec![plain(Kind::Hash, 8, 16, LIMIT)], 0);
    thread::scope(|scope| {
        for t in 0..4u64 {
            let maps = &maps;
            scope.spawn(move || {
                let table = words.table(maps, 0);
                for n in 0..100_000u64 {
                    // Its own keys, of which there is room for all.
                    let key = ((t << 32) | (n % 15)).to_ne_bytes();
                    let value = [key, key];
                    let put = || match t {
                        0 => maps.table(0).update(&key, value.as_flattened(), Flag::Any, Outside),
                        _ => table.update(&key, value.as_flattened(), Flag::Any, way()),
                    };
                    while put() == Err(Error::Busy) {}
                    let slot = table.find(&key).unwrap();
                    let mut out = [0; 16];
                    assert!(maps.table(0).value(slot, &mut out));
                    assert_eq!(out, *value.as_flattened(), "another key's value");
                    while table.delete(&key, way()) == Err(Error::Busy) {}
                    assert_eq!(table.find(&key), Err(Error::NotFound));
                }
            });
        }
    });
    let table = maps.table(0);
    assert_eq!(table.len(), 0);
    let fill = |n: u64| table.update(&n.to_ne_bytes(), &[0; 16], Flag::Any, Outside);
    (0..LIMIT as u64).for_each(|n| fill(n).unwrap());
    assert_eq!(fill(LIMIT as u64), Err(Error::Full));
}

/// What a handler that interrupts a thread in a table does to it.
static INTERRUPTED: AtomicU64 = AtomicU64::new(0);
static TABLE: std::sync::OnceLock<(Table, Table)> = std::sync::OnceLock::new();

extern "C" fn on_signal(_: i32) {
    let Some((counts, keys)) = TABLE.get() else { return };
    if counts.aggregate(&1u64.to_ne_bytes(), 0, 0, way()).is_ok() {
        INTERRUPTED.fetch_add(1, Relaxed);
    }
    let key = u64::MAX.to_ne_bytes();
    // Busy where it has interrupted a change of the same bucket; a wait would be for ever.
    let _ = keys.update(&key, &[1; 16], Flag::Any, way());
    let _ = keys.delete(&key, way());
}

#[test]
fn handlers_that_interrupt_a_table_use_it_too() {
    let (maps, words) = moved(vec![of(Agg::Count, 4), plain(Kind::Hash, 8, 16, 8)], 0);
    let maps: &'static _ = Box::leak(Box::new(maps));
    assert!(TABLE.set((words.table(maps, 0), words.table(maps, 1))).is_ok());
    // SAFETY: the handler does nothing but what any context may do.
    unsafe { libc_signal(10, on_signal) };
    let is_over = AtomicBool::new(false);
    let (pid, tid) = (sys::getpid().cast_signed(), sys::gettid().cast_signed());
    let mut own = 0u64;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                sys::sched::tgkill(pid, tid, 10).unwrap();
                thread::yield_now();
            }
        });
        let (counts, keys) = (words.table(maps, 0), words.table(maps, 1));
        for n in 0..300_000u64 {
            own += u64::from(counts.aggregate(&1u64.to_ne_bytes(), 0, 0, way()).is_ok());
            let key = (n % 4).to_ne_bytes();
            let _ = keys.update(&key, &[2; 16], Flag::Any, way());
            let _ = keys.delete(&key, way());
        }
        is_over.store(true, Relaxed);
    });
    let table = maps.table(0);
    let sum = table.aggregated(table.find(&1u64.to_ne_bytes()).unwrap());
    assert_eq!(sum, own + INTERRUPTED.load(Relaxed));
    assert!(INTERRUPTED.load(Relaxed) > 0);
    let keys = maps.table(1);
    keys.clear();
    assert_eq!(keys.len(), 0, "no element was lost");
}

// SAFETY: the C library's, with its declaration.
unsafe extern "C" {
    #[link_name = "signal"]
    fn libc_signal(signal: i32, handler: extern "C" fn(i32)) -> usize;
}

#[test]
fn a_walk_meets_once_what_is_there_all_the_time() {
    let (maps, words) = moved(vec![plain(Kind::Hash, 8, 8, 300)], 0);
    let table = words.table(&maps, 0);
    (0..100u64).for_each(|n| table.update(&n.to_ne_bytes(), &[1; 8], Flag::Any, way()).unwrap());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 1000u64;
            while !is_over.load(Relaxed) {
                let _ = table.update(&n.to_ne_bytes(), &[2; 8], Flag::Any, way());
                let _ = table.delete(&(n - 50).to_ne_bytes(), way());
                n += 1;
            }
        });
        for _ in 0..200 {
            let (mut at, mut met) = (Slot(0), BTreeSet::new());
            while let Some(slot) = maps.table(0).next(at) {
                let mut key = [0; 8];
                if maps.table(0).key(slot, &mut key) && u64::from_ne_bytes(key) < 100 {
                    assert!(met.insert(key), "met twice");
                }
                at = slot;
            }
            assert_eq!(met.len(), 100);
        }
        is_over.store(true, Relaxed);
    });
}
