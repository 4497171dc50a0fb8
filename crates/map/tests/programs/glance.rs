//! A glance at a table finds what the table finds, or says nothing.

use crate::ground::{Words, moved, way};
use map::{Agg, Error, Flag, Glance, Kind, Locked, Maps, Near, Outside, Spec, Way};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

fn glance(words: &Words, maps: &Maps, handle: usize) -> Glance<'static> {
    // SAFETY: the form of a table that `Maps` laid out there, in words that are never freed.
    unsafe { Glance::at(words.form(maps, handle), Near::new(None)) }
}

/// The same, of a thread that remembers.
fn near(words: &Words, maps: &Maps, handle: usize, place: &'static AtomicU64) -> Glance<'static> {
    // SAFETY: as above.
    unsafe { Glance::at(words.form(maps, handle), Near::new(Some(place))) }
}

fn place() -> &'static AtomicU64 {
    Box::leak(Box::new(AtomicU64::new(0)))
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn what_is_found_at_a_glance_is_what_the_table_finds() {
    let kinds = [Kind::Hash, Kind::OwnHash, Kind::LruHash, Kind::PercpuHash, Kind::PercpuLruHash];
    for (kind, len) in kinds.into_iter().flat_map(|kind| [4, 8].map(|len| (kind, len))) {
        let (maps, words) = moved(vec![Spec { kind, key: len, value: 16, limit: 100, agg: None }], 0);
        let (table, glance) = (words.table(&maps, 0), glance(&words, &maps, 0));
        let (mut state, mut found, mut there, mut missed) = (0x9e37_79b9u64, 0u32, 0u32, 0u32);
        for step in 0..50_000u64 {
            let key = random(&mut state) % 150;
            match random(&mut state) % 8 {
                0 => drop(table.delete(&key.to_ne_bytes()[..len], way())),
                1 if step % 1000 == 1 => table.clear(),
                _ => drop(table.update(&key.to_ne_bytes()[..len], &[step as u8; 16], Flag::Any, way())),
            }
            let key = random(&mut state) % 150;
            let (at_a_glance, whole) = (glance.find(key), table.find(&key.to_ne_bytes()[..len]).ok());
            assert!(
                at_a_glance.is_none() || at_a_glance == whole,
                "{kind:?} {step}: {at_a_glance:?} {whole:?}"
            );
            let said = glance.find_or_gone(key);
            assert!(said.is_none_or(|said| said == whole), "{kind:?} {step}: {said:?} {whole:?}");
            missed += u32::from(said == Some(None));
            if let Some(slot) = at_a_glance {
                assert_eq!(glance.address(slot, Outside), table.address(slot, Outside));
            }
            (found, there) = (found + u32::from(at_a_glance.is_some()), there + u32::from(whole.is_some()));
        }
        // It would be no use if it said nothing most of the time.
        let is_of_use = there > 10_000 && found > there / 2 && missed > (50_000 - there) / 2;
        assert!(is_of_use, "{kind:?}: {found} of {there}, {missed} missed");
    }
}

#[test]
fn wherever_a_key_is_said_to_be_what_is_found_is_what_the_table_finds() {
    for (kind, limit) in [(Kind::Hash, 100), (Kind::PercpuHash, 100), (Kind::Hash, 7)] {
        let (maps, words) = moved(vec![Spec { kind, key: 8, value: 8, limit, agg: None }], 0);
        let place = place();
        let (table, glance) = (words.table(&maps, 0), near(&words, &maps, 0, place));
        let (mut state, mut remembered) = (0x1234_5678u64, 0u32);
        for step in 0..50_000u64 {
            let (key, other) = (random(&mut state) % 10, random(&mut state) % 10);
            match random(&mut state) % 4 {
                0 => drop(table.delete(&other.to_ne_bytes(), way())),
                1 if step % 500 == 1 => table.clear(),
                _ => drop(table.update(&other.to_ne_bytes(), &[1; 8], Flag::Any, way())),
            }
            let guess = random(&mut state) % (limit as u64 + 20);
            place.store(guess, Relaxed);
            let (at_a_glance, whole) = (glance.find(key), table.find(&key.to_ne_bytes()).ok());
            let is_same = at_a_glance.is_none() || at_a_glance == whole;
            assert!(is_same, "{kind:?} {step} {guess}: {at_a_glance:?} {whole:?}");
            remembered += u32::from(at_a_glance.is_some_and(|slot| u64::from(slot.0) == guess));
        }
        assert!(remembered > 100, "{remembered}");
    }
}

#[test]
fn an_element_that_was_made_and_refused_is_no_keys() {
    let (maps, words) = moved(vec![Spec { kind: Kind::Hash, key: 8, value: 8, limit: 1, agg: None }], 0);
    let chain = words.0.iter().find(|word| word.load(Relaxed) == 1 << 63).unwrap();
    let place = place();
    let (table, glance) = (words.table(&maps, 0), near(&words, &maps, 0, place));
    let key = 5u64.to_ne_bytes();
    table.update(&key, &key, Flag::Any, way()).unwrap();
    assert_eq!((glance.find(5), place.load(Relaxed) as u32), (table.find(&key).ok(), 1));
    table.delete(&key, way()).unwrap();
    assert_eq!(glance.find(5), None);
    // Somebody holds the chain: the element is made, and goes back.
    chain.fetch_or(1, Relaxed);
    assert_eq!(table.update(&key, &key, Flag::Any, way()), Err(Error::Busy));
    chain.fetch_and(!1, Relaxed);
    assert_eq!((glance.find(5), glance.set(5, 6, way()), place.load(Relaxed) as u32), (None, false, 1));
    table.update(&key, &key, Flag::Any, way()).unwrap();
    assert_eq!(glance.find(5), table.find(&key).ok());
}

#[test]
fn who_never_comes_back_to_a_key_is_not_asked_for_ever() {
    let (maps, words) = moved(vec![Spec { kind: Kind::Hash, key: 8, value: 8, limit: 100, agg: None }], 0);
    let place = place();
    let (table, glance) = (words.table(&maps, 0), near(&words, &maps, 0, place));
    for key in 0..100u64 {
        table.update(&key.to_ne_bytes(), &[1; 8], Flag::Any, way()).unwrap();
    }
    let found = (0..1000).filter(|n| glance.find(n % 100).is_some()).count();
    assert!(found > 500 && place.load(Relaxed) as u32 == 0, "{found} {:x}", place.load(Relaxed));
}

#[test]
fn keys_of_another_length_and_other_aggregates_are_the_tables() {
    let spec = |key, agg| Spec { kind: Kind::Hash, key, value: 8, limit: 10, agg };
    let tables = vec![spec(16, None), spec(2, None), spec(8, Some(Agg::Max { signed: true })), spec(8, None)];
    let (maps, words) = moved(tables, 0);
    for handle in 0..4 {
        let table = words.table(&maps, handle);
        let key = vec![0; table.key_bytes()];
        assert!(table.find_or_init(&key, way()).is_ok());
        let glance = glance(&words, &maps, handle);
        assert_eq!(glance.find(0).is_some(), handle >= 2);
        assert!(!glance.add(0, 1, way()));
    }
}

/// Counts and sums of keys that stay, while keys beside them come and go in the same chains.
fn exact(way: impl Way + Send + Sync) {
    const KEYS: u64 = 40;
    let spec = |agg| Spec { kind: Kind::Hash, key: 8, value: 0, limit: 64, agg: Some(agg) };
    let (maps, words) = moved(vec![spec(Agg::Count), spec(Agg::Sum { signed: true })], 0);
    for (handle, key) in (0..2).flat_map(|handle| (0..KEYS).map(move |key| (handle, key))) {
        words.table(&maps, handle).find_or_init(&key.to_ne_bytes(), way).unwrap();
    }
    let (is_over, maps) = (AtomicBool::new(false), &maps);
    let glances = thread::scope(|scope| {
        let others = scope.spawn(|| {
            let mut state = 77;
            while !is_over.load(Relaxed) {
                let key = (KEYS + random(&mut state) % 20).to_ne_bytes();
                for handle in 0..2 {
                    let table = words.table(maps, handle);
                    let _ = table.aggregate(&key, 1, 0, way);
                    let _ = table.delete(&key, way);
                }
                thread::yield_now();
            }
        });
        let adders: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut glances = 0u64;
                    for n in 0..20_000u64 {
                        for handle in 0..2 {
                            let is_done = glance(&words, maps, handle).add(n % KEYS, n, way);
                            if !is_done {
                                let key = (n % KEYS).to_ne_bytes();
                                words.table(maps, handle).aggregate(&key, n, 0, way).unwrap();
                            }
                            glances += u64::from(is_done);
                        }
                    }
                    glances
                })
            })
            .collect();
        let glances: u64 = adders.into_iter().map(|adder| adder.join().unwrap()).sum();
        is_over.store(true, Relaxed);
        others.join().unwrap();
        glances
    });
    assert!(glances > 0);
    for key in 0..KEYS {
        let of = |handle: usize| {
            let table = maps.table(handle);
            table.aggregated(table.find(&key.to_ne_bytes()).unwrap())
        };
        let values = (0..20_000).filter(|n| n % KEYS == key);
        assert_eq!((of(0), of(1)), (4 * values.clone().count() as u64, 4 * values.sum::<u64>()), "key {key}");
    }
}

#[test]
fn what_is_added_at_a_glance_is_in_the_sum_once_by_threads_that_restart() {
    exact(way());
}

#[test]
fn what_is_added_at_a_glance_is_in_the_sum_once_by_threads_that_lock() {
    exact(Locked::ALONE);
}

#[test]
fn whatever_lies_in_a_table_a_glance_ends_and_stays_inside() {
    let mut state = 0x5eed;
    for _ in 0..50 {
        let agg = Some(Agg::Count);
        let (maps, words) = moved(vec![Spec { kind: Kind::Hash, key: 8, value: 0, limit: 50, agg }], 0);
        let glance = glance(&words, &maps, 0);
        let first = words.form(&maps, 0) as *const map::Form as usize - words.0.as_ptr() as usize;
        // Chains and elements: all behind the form's own lines.
        for word in words.0.iter().skip((first + size_of::<map::Form>()) / 8) {
            let small = random(&mut state) % 60;
            word.store([small << 32 | small, random(&mut state)][random(&mut state) as usize % 2], Relaxed);
        }
        (0..2000).for_each(|key| _ = glance.add(key, 1, way()));
    }
}
