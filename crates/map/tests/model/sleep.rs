//! Keys that go and come back while their elements stay: L1, L2, L3; mutants MAP-52, unclaimed-reaper.

use crate::{base, model};
use loom::sync::Arc;
use loom::thread;
use map::{Error, Hash, Memory, lay_out_sleepy};
use objcache::View;

/// A hash of one bucket and so many elements, with key 1, which is asleep.
fn hash(elements: u32) -> Arc<Hash> {
    Memory::begin(1024 + 16 * 8 * 4);
    let indexes: Vec<_> = (0..elements).map(|n| 128 + n * 16).collect();
    View::begin(&indexes);
    lay_out_sleepy(base(), 8, 16, 4);
    // SAFETY: the head was written to the model's memory.
    let map = Arc::new(unsafe { Hash::attach(base(), 0) });
    set(&map, 1, 7);
    assert_eq!(map.sleep(&1u64.to_ne_bytes()), Ok(true));
    map
}

fn set(map: &Hash, key: u64, value: u64) {
    let value = [value.to_ne_bytes(), value.to_ne_bytes()];
    while map.set(&key.to_ne_bytes(), value.as_flattened()) == Err(Error::Busy) {
        thread::yield_now();
    }
}

/// A value of a key, which must be whole, and a new one; `None` for Busy, and if it is not there.
fn get(map: &Hash, key: u64) -> Option<u64> {
    let mut out = [0; 16];
    match map.get(&key.to_ne_bytes(), &mut out) {
        Ok(()) => {
            let [a, b] = [0, 8].map(|n| u64::from_ne_bytes(out[n..n + 8].try_into().unwrap()));
            assert!(a == b && a != 7, "a torn value, or one of a key that was gone: {a} {b}");
            Some(a)
        }
        Err(error) => {
            assert!([Error::Busy, Error::NotFound].contains(&error));
            None
        }
    }
}

#[test]
fn two_that_wake_a_key_are_one_behind_the_other() {
    model(3, || {
        let map = hash(2);
        let other = thread::spawn({
            let map = map.clone();
            move || set(&map, 1, 8)
        });
        set(&map, 1, 9);
        other.join().unwrap();
        assert!([Some(8), Some(9)].contains(&get(&map, 1)));
        assert_eq!(map.len(), 1);
    });
}

#[test]
fn who_looks_while_a_key_wakes_sees_the_new_value_or_none() {
    model(3, || {
        let map = hash(2);
        let reader = thread::spawn({
            let map = map.clone();
            move || get(&map, 1)
        });
        set(&map, 1, 8);
        let seen = reader.join().unwrap();
        assert!([None, Some(8)].contains(&seen), "{seen:?}");
    });
}

#[test]
fn an_element_that_is_taken_away_and_woken_is_one_of_both() {
    model(2, || {
        let map = hash(2);
        let other = thread::spawn({
            let map = map.clone();
            move || set(&map, 1, 8)
        });
        if map.reap_any() {
            set(&map, 2, 5);
        }
        other.join().unwrap();
        assert_eq!(get(&map, 1), Some(8));
    });
}
