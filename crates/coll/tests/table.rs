//! The table from outside: against a plain map, and with threads. Runs under Miri too.

use coll::{Fold, Handle, InsertError, Options, Resized, RhlTable};
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

const STEPS: u64 = if cfg!(miri) { 160 } else { 100_000 };

fn rng(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 27)
}

#[test]
fn it_does_what_a_map_of_lists_does() {
    for shrinks in [false, true] {
        let options = Options { shrinks, initial_buckets: 4, ..Options::default() };
        let table: RhlTable<u64, u64> = RhlTable::with_options(options, Fold::default()).unwrap();
        let mut model: HashMap<u64, Vec<(u64, Handle)>> = HashMap::new();
        let mut seed = 7;
        for step in 0..STEPS {
            // Waves: the number of entries goes up and down.
            let grows = (step / (STEPS / 8)).is_multiple_of(2);
            let key = rng(&mut seed) % 500;
            let list = model.entry(key).or_default();
            if rng(&mut seed) % 10 < if grows { 7 } else { 3 } {
                list.push((step, table.insert(key, step).unwrap()));
            } else if !list.is_empty() {
                let at = rng(&mut seed) as usize % list.len();
                let (value, handle) = list.remove(at);
                if rng(&mut seed).is_multiple_of(2) {
                    assert!(table.remove(handle));
                } else {
                    assert!(table.remove_if(&key, |v| *v == value));
                }
            }
            let reader = table.read();
            let found: Vec<u64> = reader.get(&key).copied().collect();
            let wanted: Vec<u64> = model[&key].iter().rev().map(|(v, _)| *v).collect();
            assert_eq!(found, wanted, "step {step} key {key}");
        }
        let keys = model.values().filter(|list| !list.is_empty()).count();
        assert_eq!(table.keys(), keys);
        assert!((0..500).all(|k| table.read().has(&k) != model.get(&k).is_none_or(Vec::is_empty)));
    }
}

#[test]
fn it_grows_above_three_quarters_and_shrinks_below_three_tenths() {
    let options = Options { shrinks: true, ..Options::default() };
    let table: RhlTable<u32, ()> = RhlTable::with_options(options, Fold::default()).unwrap();
    assert_eq!(table.buckets(), 64);
    let n = if cfg!(miri) { 200 } else { 10_000 };
    let handles: Vec<Handle> = (0..n).map(|k| table.insert(k, ()).unwrap()).collect();
    assert!(table.buckets() >= n as usize, "{} buckets for {n} keys", table.buckets());
    handles.into_iter().for_each(|h| assert!(table.remove(h)));
    assert_eq!(table.keys(), 0);
    table.maintain().unwrap();
    assert_eq!(table.buckets(), 4);
}

#[test]
fn a_deferred_table_is_resized_by_its_owner_alone() {
    let options = Options { is_deferred: true, initial_buckets: 4, ..Options::default() };
    let table: RhlTable<u32, ()> = RhlTable::with_options(options, Fold::default()).unwrap();
    (0..100).for_each(|k| assert!(table.insert(k, ()).is_ok()));
    assert_eq!(table.buckets(), 4);
    assert_eq!(table.maintain(), Ok(Resized::Yes { from: 4, to: 256 }));
    assert_eq!(table.maintain(), Ok(Resized::No));
    assert_eq!(table.resize(8), Ok(Resized::Yes { from: 256, to: 8 }));
    assert_eq!(table.rehash(), Ok(Resized::Yes { from: 8, to: 8 }));
    assert!((0..100).all(|k| table.read().has(&k)));
}

#[test]
fn a_full_table_refuses_new_keys_and_takes_old_ones() {
    let options = Options { max_keys: 2, ..Options::default() };
    let table: RhlTable<&str, u32> = RhlTable::with_options(options, Fold::default()).unwrap();
    table.insert("a", 1).unwrap();
    table.insert("b", 1).unwrap();
    assert_eq!(table.insert("c", 1), Err(InsertError::Full { max_keys: 2 }));
    table.insert("a", 2).unwrap();
    assert_eq!(table.read().get(&"a").count(), 2);
    assert!(!table.read().has(&"c"));
}

#[test]
fn a_handle_is_good_for_its_own_table_alone() {
    let (a, b) = (RhlTable::new(), RhlTable::new());
    let handle = a.insert(1, 1).unwrap();
    b.insert(1, 1).unwrap();
    assert!(!b.remove(handle));
    assert!(a.read().has(&1) && b.read().has(&1));
}

/// A hash with as few values as it is told: chains get long whatever the seed.
#[derive(Clone)]
struct Bad(u64);

struct BadHasher(u64, u64);

impl BuildHasher for Bad {
    type Hasher = BadHasher;
    fn build_hasher(&self) -> BadHasher {
        BadHasher(0, self.0)
    }
}

impl Hasher for BadHasher {
    fn finish(&self) -> u64 {
        self.0 % self.1
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.0 = self.0.wrapping_mul(31).wrapping_add(u64::from(*b)));
    }
}

#[test]
fn a_hash_that_collides_costs_time_and_nothing_else() {
    let table = RhlTable::with_options(Options::default(), Bad(2)).unwrap();
    let handles: Vec<Handle> = (0..60u8).map(|k| table.insert(k, k).unwrap()).collect();
    assert!((0..60u8).all(|k| table.read().get(&k).eq([&k])));
    handles.into_iter().for_each(|h| assert!(table.remove(h)));
    assert_eq!(table.keys(), 0);
}

struct Counted(Arc<AtomicU64>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[test]
fn every_value_is_dropped_once_and_none_under_a_reader() {
    let dropped = Arc::new(AtomicU64::new(0));
    let table: RhlTable<u32, Counted> = RhlTable::new();
    let mut handles: Vec<Handle> =
        (0..100).map(|k| table.insert(k % 10, Counted(dropped.clone())).unwrap()).collect();
    let reader = table.read();
    let kept = reader.get(&3).next().unwrap();
    handles.drain(..50).for_each(|h| assert!(table.remove(h)));
    (0..10).for_each(|k| while table.remove_if(&k, |v| std::ptr::eq(v, kept)) {});
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(kept.0.load(Relaxed), 0);
    drop(reader);
    table.domain().barrier();
    let removed = dropped.load(Relaxed);
    assert!(removed == 51 || removed == 50, "{removed}");
    drop(table);
    assert_eq!(dropped.load(Relaxed), 100);
}

#[test]
fn lookups_stay_right_while_the_table_is_resized_and_others_write() {
    const FIXED: u64 = if cfg!(miri) { 20 } else { 1_000 };
    let rounds = if cfg!(miri) { 6 } else { 400 };
    let options = Options { shrinks: true, initial_buckets: 4, ..Options::default() };
    let table: RhlTable<u64, u64> = RhlTable::with_options(options, Fold::default()).unwrap();
    for key in 0..FIXED {
        (0..1 + key % 3).for_each(|v| assert!(table.insert(key, v).is_ok()));
    }
    let stop = AtomicBool::new(false);
    let looked = AtomicU64::new(0);
    std::thread::scope(|s| {
        for n in 0..2 {
            let (table, stop, looked) = (&table, &stop, &looked);
            s.spawn(move || {
                let mut seed = n;
                while !stop.load(Relaxed) {
                    let key = rng(&mut seed) % FIXED;
                    let found: Vec<u64> = table.read().get(&key).copied().collect();
                    let wanted: Vec<u64> = (0..1 + key % 3).rev().collect();
                    assert_eq!(found, wanted, "key {key}");
                    assert!(!table.read().has(&(FIXED + n)));
                    looked.fetch_add(1, Relaxed);
                }
            });
        }
        s.spawn(|| {
            let mut seed = 99;
            while !stop.load(Relaxed) {
                let keys: Vec<Handle> = (0..FIXED / 2)
                    .map(|_| table.insert(2 * FIXED + rng(&mut seed) % FIXED, 0).unwrap())
                    .collect();
                keys.into_iter().for_each(|h| assert!(table.remove(h)));
            }
        });
        for round in 0..rounds {
            match round % 3 {
                0 => table.rehash(),
                1 => table.resize(8),
                _ => table.resize(if cfg!(miri) { 64 } else { 4096 }),
            }
            .unwrap();
        }
        stop.store(true, Relaxed);
    });
    assert!(looked.load(Relaxed) > 0);
    assert_eq!(table.keys() as u64, FIXED);
}
