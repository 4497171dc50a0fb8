//! Keys that go and come back: their elements sleep in between, and nobody notices but who measures.

use crate::ground::{moved, way};
use map::{Agg, Error, Flag, Glance, Kind, Locked, Near, Slot, Spec, Table, Way};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

fn spec(value: usize, limit: usize) -> Spec {
    Spec { kind: Kind::Hash, key: 8, value, limit, agg: None }
}

fn keys(table: &Table) -> Vec<u64> {
    let (mut at, mut keys) = (Slot(0), Vec::new());
    while let Some(slot) = table.next(at) {
        let mut key = [0; 8];
        if table.key(slot, &mut key) {
            keys.push(u64::from_ne_bytes(key));
        }
        at = slot;
    }
    keys.sort_unstable();
    keys
}

#[test]
fn a_key_that_comes_back_finds_its_element_and_is_nowhere_in_between() {
    for value in [8usize, 24] {
        let (maps, words) = moved(vec![spec(value, 100)], 0);
        let table = words.table(&maps, 0);
        let key = 7u64.to_ne_bytes();
        let mut slots = Vec::new();
        for round in 1..50u8 {
            table.update(&key, &vec![round; value], Flag::NoExist, way()).unwrap();
            let slot = table.find(&key).unwrap();
            let mut out = vec![0; value];
            assert!(table.value(slot, &mut out) && out == vec![round; value]);
            assert_eq!((keys(&table), table.len()), (vec![7], 1));
            slots.push(slot);
            table.delete(&key, way()).unwrap();
            assert_eq!(
                (table.find(&key), table.delete(&key, way())),
                (Err(Error::NotFound), Err(Error::NotFound))
            );
            assert_eq!(table.update(&key, &vec![0; value], Flag::Exist, way()), Err(Error::NotFound));
            assert_eq!((keys(&table), table.len(), table.is_empty()), (vec![], 0, true));
        }
        slots.dedup();
        assert_eq!(slots.len(), 1, "one element for all of it");
        let slot = table.find_or_init(&key, way()).unwrap();
        let mut out = vec![1; value];
        assert!(table.value(slot, &mut out) && out == vec![0; value], "what is made begins with zeros");
    }
}

#[test]
fn a_sum_that_comes_back_begins_anew() {
    let agg = Some(Agg::Sum { signed: true });
    let (maps, words) = moved(vec![Spec { agg, ..spec(0, 100) }], 0);
    let (table, key) = (words.table(&maps, 0), 3u64.to_ne_bytes());
    for round in 1..20 {
        (0..round).for_each(|n| table.aggregate(&key, n, 0, way()).unwrap());
        assert_eq!(table.aggregated(table.find(&key).unwrap()), (0..round).sum::<u64>());
        table.delete(&key, way()).unwrap();
    }
}

#[test]
fn nothing_is_added_to_one_that_sleeps() {
    for agg in [Agg::Count, Agg::Sum { signed: true }, Agg::Hist { bits: 0 }] {
        let (maps, words) = moved(vec![Spec { agg: Some(agg), ..spec(0, 100) }], 0);
        let table = words.table(&maps, 0);
        // SAFETY: the form of a table that `Maps` laid out there, in words that are never freed.
        let glance = unsafe { Glance::at(words.form(&maps, 0), Near::new(None)) };
        let key = 3u64.to_ne_bytes();
        for _ in 0..20 {
            table.aggregate(&key, 1, 0, way()).unwrap();
            assert!(glance.find(3).is_some());
            table.delete(&key, way()).unwrap();
            assert_eq!((glance.find(3), glance.find_or_gone(3)), (None, Some(None)));
            assert!(!glance.add(3, 1, way()), "it is gone");
        }
    }
}

#[test]
fn those_that_sleep_make_room_before_a_table_is_full() {
    for limit in [1usize, 2, 7, 64, 100] {
        let (maps, words) = moved(vec![spec(8, limit)], 0);
        let table = words.table(&maps, 0);
        for round in 0..5u64 {
            for key in (0..limit as u64).map(|n| (1000 * round + n).to_ne_bytes()) {
                table.update(&key, &key, Flag::Any, way()).unwrap();
                table.delete(&key, way()).unwrap();
            }
            let more = |n: u64| (500 + 1000 * round + n).to_ne_bytes();
            for n in 0..limit as u64 {
                assert_eq!(table.update(&more(n), &more(n), Flag::Any, way()), Ok(()), "{limit} {round} {n}");
            }
            assert_eq!(table.update(&more(999), &more(1), Flag::Any, way()), Err(Error::Full));
            assert_eq!((table.len() as usize, keys(&table).len()), (limit, limit));
            match round % 2 {
                0 => table.clear(),
                _ => (0..limit as u64).for_each(|n| table.delete(&more(n), way()).unwrap()),
            }
            assert_eq!(table.len(), 0);
        }
    }
}

#[test]
fn what_is_set_and_removed_at_a_glance_is_as_the_table_would_have_it() {
    let (maps, words) = moved(vec![spec(8, 100)], 0);
    let table = words.table(&maps, 0);
    // SAFETY: the form of a table that `Maps` laid out there, in words that are never freed.
    let glance = unsafe { Glance::at(words.form(&maps, 0), Near::new(None)) };
    let (mut state, mut model, mut done) = (0x5eedu64, std::collections::BTreeMap::new(), 0);
    for step in 0..50_000u64 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let key = (state >> 33) % 40;
        let bytes = key.to_ne_bytes();
        match (state >> 50) % 3 {
            0 => {
                let is_set = glance.set(key, step, way());
                if !is_set {
                    table.update(&bytes, &step.to_ne_bytes(), Flag::Any, way()).unwrap();
                }
                model.insert(key, step);
                done += u32::from(is_set);
            }
            1 => {
                let removed = glance.remove(key, way());
                let was_there = removed.unwrap_or_else(|| table.delete(&bytes, way()).is_ok());
                assert_eq!(was_there, model.remove(&key).is_some(), "step {step}");
                done += u32::from(removed.is_some());
            }
            _ => {
                let found = glance.find_or_gone(key);
                assert!(found.is_none_or(|found| found.is_some() == model.contains_key(&key)));
                let mut out = [0; 8];
                if let Ok(slot) = table.find(&bytes) {
                    assert!(table.value(slot, &mut out));
                }
                assert_eq!(u64::from_ne_bytes(out), model.get(&key).copied().unwrap_or(0), "step {step}");
            }
        }
        assert_eq!(table.len() as usize, model.len());
    }
    assert!(done > 20_000, "{done}");
}

/// What is done by who is not kept from it by one that was interrupted inside.
fn until<T>(mut done: impl FnMut() -> Result<T, Error>) -> T {
    loop {
        match done() {
            Err(Error::Busy) => thread::yield_now(),
            done => return done.expect("nobody else changes this key, and there is room"),
        }
    }
}

/// Threads that each have keys of their own, and keys that they share, in a table that has room for few that sleep. Each value
/// says whose it is: none is ever seen under another key.
fn comes_and_goes(way: impl Way + Send + Sync, value: usize) {
    const THREADS: u64 = 4;
    const EACH: u64 = 12;
    let (maps, words) = moved(vec![spec(value, 128)], 0);
    let (maps, is_over) = (&maps, AtomicBool::new(false));
    let of = |key: u64| key.to_ne_bytes().repeat(value / 8);
    thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let table = words.table(maps, 0);
            while !is_over.load(Relaxed) {
                let mut at = Slot(0);
                while let Some(slot) = table.next(at) {
                    at = slot;
                    let mut key = [0; 8];
                    let _ = table.key(slot, &mut key);
                }
                assert!(table.len() <= 128);
                thread::yield_now();
            }
        });
        let threads: Vec<_> = (0..THREADS)
            .map(|me| {
                scope.spawn(move || {
                    let table = words.table(maps, 0);
                    let (mut state, mut own) = (me + 1, [false; EACH as usize]);
                    for _ in 0..30_000 {
                        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        let n = (state >> 33) % EACH;
                        // Its own ones are new from time to time, so that others have to be taken.
                        let key = 1000 * (1 + me) + n;
                        match own[n as usize] {
                            false => until(|| table.update(&key.to_ne_bytes(), &of(key), Flag::NoExist, way)),
                            true => {
                                let slot = until(|| table.find(&key.to_ne_bytes()));
                                let mut out = vec![0; value];
                                assert!(table.value(slot, &mut out));
                                // Of a word alone: it is changed where it lies, as by who has its address (see `table`).
                                assert!(value == 8 || out == of(key), "another key's value");
                                until(|| table.delete(&key.to_ne_bytes(), way));
                            }
                        }
                        own[n as usize] ^= true;
                        let shared = (state >> 40) % 8;
                        let (key, done) = (shared.to_ne_bytes(), (state >> 60) % 3);
                        let result = match done {
                            0 => table.update(&key, &of(shared), Flag::Any, way),
                            1 => table.delete(&key, way),
                            _ => table.update(
                                &(5000 + (state >> 44) % 500).to_ne_bytes(),
                                &of(0),
                                Flag::Any,
                                way,
                            ),
                        };
                        assert!(matches!(result, Ok(()) | Err(Error::NotFound | Error::Full | Error::Busy)));
                        if done == 2 {
                            let _ = table.delete(&(5000 + (state >> 44) % 500).to_ne_bytes(), way);
                        }
                    }
                    own.iter().filter(|is| **is).count()
                })
            })
            .collect();
        let own: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        is_over.store(true, Relaxed);
        let own: usize = own.into_iter().map(Result::unwrap).sum();
        looks.join().unwrap();
        let table = words.table(maps, 0);
        let keys = keys(&table);
        assert_eq!(keys.iter().filter(|key| (1000..5000).contains(*key)).count(), own);
        assert_eq!(keys.len(), table.len() as usize, "{keys:?}");
        assert!(keys.is_sorted_by(|a, b| a < b), "a key twice: {keys:?}");
    });
}

#[test]
fn threads_whose_keys_come_and_go_see_their_own_values_and_lose_no_key() {
    comes_and_goes(way(), 8);
    comes_and_goes(way(), 24);
    comes_and_goes(Locked::ALONE, 8);
}
