//! Keys that go and come back in elements that stay their own, by plain stores: L4; mutants MAP-57, staying-reaped.

use crate::{base, model};
use loom::sync::Arc;
use loom::thread;
use map::{Error, Hash, Memory, lay_out_staying};
use objcache::View;

const KEY: [u8; 8] = 1u64.to_ne_bytes();

/// A hash of one bucket and two elements, with key 1, which is gone after it was 7.
fn hash() -> Arc<Hash> {
    Memory::begin(1024 + 16 * 8 * 4);
    View::begin(&[128, 144]);
    // Indexes of the model's elements lie in the first half.
    lay_out_staying(base(), 8, 8, 1024);
    // SAFETY: the head was written to the model's memory.
    let map = Arc::new(unsafe { Hash::attach(base(), 0) });
    assign(&map, 7);
    assert_eq!(map.unassign(&KEY), Ok(true));
    map
}

fn assign(map: &Hash, value: u64) {
    while map.assign(&KEY, value) == Err(Error::Busy) {
        thread::yield_now();
    }
}

fn get(map: &Hash, key: u64) -> Option<u64> {
    let mut out = [0; 8];
    match map.get(&key.to_ne_bytes(), &mut out) {
        Ok(()) => Some(u64::from_ne_bytes(out)),
        Err(error) => {
            assert!([Error::Busy, Error::NotFound].contains(&error));
            None
        }
    }
}

/// Two at once; then the key is there once, and can be set and read as ever.
fn at_once(one: fn(&Hash), other: fn(&Hash), may_be: &'static [Option<u64>]) {
    model(3, move || {
        let map = hash();
        let beside = thread::spawn({
            let map = map.clone();
            move || one(&map)
        });
        other(&map);
        beside.join().unwrap();
        let left = get(&map, 1);
        assert!(may_be.contains(&left), "{left:?}");
        assign(&map, 5);
        assert_eq!((get(&map, 1), map.len()), (Some(5), 1));
    });
}

#[test]
fn who_looks_while_a_key_comes_back_sees_the_new_value_or_none() {
    model(3, || {
        let map = hash();
        let reader = thread::spawn({
            let map = map.clone();
            move || get(&map, 1)
        });
        assign(&map, 8);
        let seen = reader.join().unwrap();
        assert!([None, Some(8)].contains(&seen), "{seen:?}");
    });
}

#[test]
fn two_that_set_a_key_are_one_behind_the_other() {
    at_once(|map| assign(map, 8), |map| assign(map, 9), &[Some(8), Some(9)]);
}

#[test]
fn who_removes_a_key_comes_before_or_after_who_sets_it() {
    let removed = |map: &Hash| drop(map.unassign(&KEY));
    at_once(|map| assign(map, 8), removed, &[Some(8), None]);
    at_once(
        |map| {
            assign(map, 8);
            assert!(map.unassign(&KEY).is_ok());
        },
        |map| assign(map, 9),
        &[None, Some(9)],
    );
}

#[test]
fn who_clears_comes_before_or_after_who_sets() {
    at_once(|map| assign(map, 8), |map| map.unassign_all(), &[Some(8), None]);
}

#[test]
fn an_element_that_stays_is_nobody_elses() {
    model(2, || {
        let map = hash();
        let other = thread::spawn({
            let map = map.clone();
            move || assign(&map, 8)
        });
        if map.reap_any() {
            map.assign(&2u64.to_ne_bytes(), 5).unwrap();
        }
        other.join().unwrap();
        assert_eq!((get(&map, 1), get(&map, 2)), (Some(8), None));
    });
}
