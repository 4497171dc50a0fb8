//! Values that are made when they are first looked for, and the LRU hash with a value per CPU (H1, H3).

use map::{Error, Flag, Hash, HashBuilder};
use objcache::{Arena, CHUNK};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

fn hash(how: impl FnOnce(HashBuilder) -> HashBuilder, limit: u32) -> Hash {
    how(Hash::builder(8, 16, limit)).build(&Arena::private(1024 * CHUNK).unwrap()).unwrap()
}

/// The first word of a value.
fn word(value: NonNull<u8>) -> &'static AtomicU64 {
    // SAFETY: a value of a map that is not dropped while the word is used, changed through atomics alone.
    unsafe { value.cast::<AtomicU64>().as_ref() }
}

#[test]
fn a_value_is_made_of_what_it_begins_with_once_and_then_found() {
    for per_cpu in [false, true] {
        let map = hash(|b| if per_cpu { b.per_cpu() } else { b.preallocated() }, 10);
        let (key, init) = (7u64.to_ne_bytes(), [5u64.to_ne_bytes(), 6u64.to_ne_bytes()]);
        let first = map.value_or_init(&key, init.as_flattened()).unwrap();
        word(first).fetch_add(100, Relaxed);
        if !per_cpu {
            assert_eq!(map.value_or_init(&key, &[9; 16]), Ok(first));
            let mut out = [0; 16];
            assert_eq!((map.get(&key, &mut out), &out[8..]), (Ok(()), &init[1][..]));
        }
        assert!(map.sum(&key).unwrap() >= 105 && map.len() == 1);
        assert_eq!(map.value_or_init(&key, &[0; 8]).err(), Some(Error::Length { given: 8, wanted: 16 }));
        assert_eq!(map.value_or_init(&[1], &[0; 16]).err(), Some(Error::Length { given: 1, wanted: 8 }));
        (10..19u64).for_each(|n| assert!(map.value_or_init(&n.to_ne_bytes(), &[0; 16]).is_ok()));
        assert_eq!(map.value_or_init(&[0; 8], &[0; 16]).err(), Some(Error::Full));
    }
}

#[test]
fn threads_that_look_for_one_key_at_once_make_it_once() {
    let map = hash(HashBuilder::preallocated, 100);
    let each = if cfg!(miri) { 20 } else { 10_000u64 };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for n in 0..each {
                    let value = loop {
                        match map.value_or_init(&(n % 100).to_ne_bytes(), &[0; 16]) {
                            Ok(value) => break value,
                            Err(error) => assert_eq!(error, Error::Busy),
                        }
                    };
                    word(value).fetch_add(1, Relaxed);
                }
            });
        }
    });
    assert_eq!((0..100u64).map(|n| map.sum(&n.to_ne_bytes()).unwrap_or(0)).sum::<u64>(), 4 * each);
}

#[test]
fn an_lru_hash_with_a_value_per_cpu_makes_room_by_itself() {
    let map = hash(|b| b.per_cpu().lru(), 64);
    for n in 0..1000u64 {
        map.update(&n.to_ne_bytes(), &[1; 16], Flag::Any).unwrap();
        map.add(&n.to_ne_bytes(), 1).unwrap();
        assert_eq!(map.sum(&n.to_ne_bytes()), Ok(u64::from_ne_bytes([1; 8]) + 1));
    }
    assert!(map.len() <= 64 && map.evicted() >= 936, "{} keys, {} forgotten", map.len(), map.evicted());
}
