//! Lookups while keys are replaced, removed and added: H1, H2, K1, K2; mutants MAP-1, MAP-2, MAP-3, MAP-20, MAP-21,
//! MAP-22, MAP-23, no-second-look.

use crate::{base, model};
use loom::sync::Arc;
use loom::thread;
use map::{Error, Flag, Hash, Memory, lay_out};
use objcache::View;

/// A hash of one bucket whose elements are those of these indexes, the last one to be taken first.
fn hash(elements: &[u32]) -> Arc<Hash> {
    // Head, credits, a bucket; then elements of 16 words each.
    Memory::begin(1024 + 16 * 8 * 4);
    let indexes: Vec<_> = elements.iter().map(|n| 128 + n * 16).collect();
    View::begin(&indexes);
    lay_out(base(), 8, 16, 4);
    // SAFETY: the head was written to the model's memory.
    Arc::new(unsafe { Hash::attach(base(), 0) })
}

fn put(map: &Hash, key: u64, value: u64) {
    let value = [value.to_ne_bytes(), value.to_ne_bytes()];
    while map.update(&key.to_ne_bytes(), value.as_flattened(), Flag::Any) == Err(Error::Busy) {
        thread::yield_now();
    }
}

/// A value of a key, which must be whole; `None` for Busy.
fn get(map: &Hash, key: u64) -> Result<Option<u64>, Error> {
    let mut out = [0; 16];
    match map.get(&key.to_ne_bytes(), &mut out) {
        Ok(()) => {
            let [a, b] = [0, 8].map(|n| u64::from_ne_bytes(out[n..n + 8].try_into().unwrap()));
            assert_eq!(a, b, "a torn value");
            Ok(Some(a))
        }
        Err(Error::Busy) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A thread that looks a key up once.
fn reader(map: &Arc<Hash>, key: u64) -> thread::JoinHandle<Result<Option<u64>, Error>> {
    let map = map.clone();
    thread::spawn(move || get(&map, key))
}

#[test]
fn a_key_whose_value_is_replaced_is_found_at_the_first_look() {
    model(3, || {
        let map = hash(&[0, 1]);
        put(&map, 1, 7);
        let reader = reader(&map, 1);
        put(&map, 1, 8);
        let seen = reader.join().unwrap();
        assert!([Ok(Some(7)), Ok(Some(8))].contains(&seen), "{seen:?}");
    });
}

#[test]
fn a_value_whose_element_is_taken_again_is_seen_whole() {
    model(2, || {
        let map = hash(&[0, 1]);
        put(&map, 1, 7);
        let reader = reader(&map, 1);
        // The second one takes the element that the first one freed.
        [8, 9].iter().for_each(|value| put(&map, 1, *value));
        let seen = reader.join().unwrap().expect("the key is in the map all the time");
        assert!(seen.is_none_or(|value| (7..=9).contains(&value)), "{seen:?}");
        assert_eq!((get(&map, 1), map.len()), (Ok(Some(9)), 1));
    });
}

#[test]
fn a_reader_that_is_led_past_its_key_looks_again() {
    model(2, || {
        let map = hash(&[0, 1, 2]);
        // The chain is 3, 2, 1.
        (1..=3).for_each(|key| put(&map, key, key));
        let reader = reader(&map, 2);
        // The element of 3 becomes that of 1, at the end of the chain.
        assert_eq!(map.delete(&3u64.to_ne_bytes()), Ok(()));
        put(&map, 1, 10);
        let seen = reader.join().unwrap().expect("the key is in the map all the time");
        assert!(seen.is_none_or(|value| value == 2), "{seen:?}");
        assert_eq!((get(&map, 2), get(&map, 1), map.len()), (Ok(Some(2)), Ok(Some(10)), 2));
    });
}

#[test]
fn two_writers_of_one_bucket_lose_no_key() {
    model(2, || {
        let map = hash(&[0, 1]);
        let writer = thread::spawn({
            let map = map.clone();
            move || put(&map, 1, 1)
        });
        put(&map, 2, 2);
        writer.join().unwrap();
        assert_eq!((get(&map, 1), get(&map, 2), map.len()), (Ok(Some(1)), Ok(Some(2)), 2));
    });
}
