//! Keys that are their threads' own: they come and go without a lock, in elements that stay theirs.

use crate::ground::{moved, way};
use map::{Error, Flag, Glance, Kind, Near, Slot, Spec, Table};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

fn spec(limit: usize) -> Spec {
    Spec { kind: Kind::OwnHash, key: 8, value: 8, limit, agg: None }
}

fn value_of(table: &Table, key: u64) -> Option<u64> {
    let mut out = [0; 8];
    let slot = table.find(&key.to_ne_bytes()).ok()?;
    table.value(slot, &mut out).then(|| u64::from_ne_bytes(out))
}

#[test]
fn a_key_comes_and_goes_by_the_glance_and_by_the_table_alike() {
    let (maps, words) = moved(vec![spec(4)], 0);
    let table = words.table(&maps, 0);
    let near = AtomicU64::new(0);
    // SAFETY: the maps live as long as the test.
    let glance = unsafe { Glance::at(words.form(&maps, 0), Near::new(Some(&near))) };
    let key = 7u64.to_ne_bytes();
    assert!(!glance.set(7, 1, way()), "what was never there is the table's to make");
    table.update(&key, &1u64.to_ne_bytes(), Flag::Any, way()).unwrap();
    let slot = table.find(&key).unwrap();
    for round in 2..100u64 {
        if round % 3 == 0 {
            assert_eq!(table.delete(&key, way()), Ok(()));
        } else {
            assert_eq!(glance.remove(7, way()), Some(true));
        }
        assert_eq!((value_of(&table, 7), glance.find_or_gone(7), table.len()), (None, Some(None), 0));
        assert_eq!((glance.remove(7, way()), table.delete(&key, way())), (Some(false), Err(Error::NotFound)));
        assert_eq!(table.update(&key, &[0; 8], Flag::Exist, way()), Err(Error::NotFound));
        if round % 2 == 0 {
            table.update(&key, &round.to_ne_bytes(), Flag::NoExist, way()).unwrap();
        } else {
            assert!(glance.set(7, round, way()));
        }
        assert_eq!((value_of(&table, 7), table.find(&key), table.len()), (Some(round), Ok(slot), 1));
        assert!(glance.set(7, round + 1, way()), "what is there is set anew");
        assert_eq!(value_of(&table, 7), Some(round + 1));
    }
    table.delete(&key, way()).unwrap();
    assert_eq!(table.find_or_init(&key, way()), Ok(slot));
    assert_eq!(value_of(&table, 7), Some(0), "what is made begins with zeros");
    table.clear();
    assert_eq!((table.len(), table.next(Slot(0)), value_of(&table, 7)), (0, None, None));
    assert!(glance.set(7, 5, way()) && table.find(&key) == Ok(slot), "the element is still its own");
}

#[test]
fn keys_that_are_gone_leave_room_for_as_many_as_were_asked_for() {
    const LIMIT: u64 = 50;
    let (maps, words) = moved(vec![spec(LIMIT as usize)], 0);
    let table = words.table(&maps, 0);
    let set = |key: u64| table.update(&key.to_ne_bytes(), &key.to_ne_bytes(), Flag::Any, way());
    // Threads that come and go, for ever: each has one key, and takes it away.
    for key in 1..1000 {
        set(key).unwrap();
        table.delete(&key.to_ne_bytes(), way()).unwrap();
    }
    assert_eq!(table.len(), 0);
    for key in 2000..2000 + LIMIT {
        set(key).unwrap();
    }
    assert_eq!(table.len(), LIMIT as u32);
    assert_eq!(set(5000), Err(Error::Full));
    assert!((2000..2000 + LIMIT).all(|key| value_of(&table, key) == Some(key)));
    // One of those whose element stayed comes back, and nobody has it.
    set(1).unwrap();
    assert_eq!((value_of(&table, 1), table.len()), (Some(1), LIMIT as u32 + 1));
    table.clear();
    assert_eq!(table.len(), 0);
    for key in 2000..2000 + LIMIT {
        set(key).unwrap();
    }
    assert_eq!(table.len(), LIMIT as u32);
}

#[test]
fn threads_find_what_they_left_while_others_come_go_and_clear() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 30_000;
    let (maps, words) = moved(vec![spec(40)], 0);
    let (maps, words, over) = (&maps, &words, &AtomicBool::new(false));
    thread::scope(|scope| {
        let own = |thread: u64, keys: u64| {
            let table = words.table(maps, 0);
            let near = AtomicU64::new(0);
            // SAFETY: the maps live as long as the test.
            let glance = unsafe { Glance::at(words.form(maps, 0), Near::new(Some(&near))) };
            for round in 0..ROUNDS {
                // Many threads of one number after another, as of threads that end.
                let key = 1 + thread + THREADS * (round / 8 % keys);
                let value = key << 32 | round;
                if !glance.set(key, value, way()) {
                    while table.update(&key.to_ne_bytes(), &value.to_ne_bytes(), Flag::Any, way()).is_err() {
                        thread::yield_now();
                    }
                }
                let found = loop {
                    match table.find(&key.to_ne_bytes()) {
                        Err(Error::Busy) => thread::yield_now(),
                        found => break found.expect("it is this thread's own"),
                    }
                };
                let mut out = [0; 8];
                assert!(table.value(found, &mut out));
                assert_eq!(u64::from_ne_bytes(out), value);
                while glance.remove(key, way()) != Some(true) {
                    match table.delete(&key.to_ne_bytes(), way()) {
                        Err(Error::Busy) => thread::yield_now(),
                        removed => {
                            assert_eq!(removed, Ok(()));
                            break;
                        }
                    }
                }
            }
        };
        let threads: Vec<_> =
            (0..THREADS).map(|n| scope.spawn(move || own(n, if n == 0 { 1 } else { 500 }))).collect();
        let looks = scope.spawn(move || {
            let table = words.table(maps, 0);
            while !over.load(Relaxed) {
                let mut at = Slot(0);
                while let Some(slot) = table.next(at) {
                    let (mut key, mut value) = ([0; 8], [0; 8]);
                    if table.key(slot, &mut key) && table.value(slot, &mut value) && table.key(slot, &mut key)
                    {
                        // An element of the second half may have become another's between the looks.
                        let of = u64::from_ne_bytes(value) >> 32;
                        assert!(of <= 1 + THREADS * 501, "{of}");
                    }
                    at = slot;
                }
                thread::yield_now();
            }
        });
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        over.store(true, Relaxed);
        looks.join().unwrap();
        ended.into_iter().for_each(|end| end.unwrap());
    });
    assert_eq!(words.table(maps, 0).len(), 0);
}

/// The controller of another process clears by locked instructions; the thread whose key it is goes on without.
#[test]
fn who_clears_takes_no_element_away_from_its_thread() {
    let (maps, words) = moved(vec![spec(8)], 0);
    let (maps, words, over) = (&maps, &words, &AtomicBool::new(false));
    thread::scope(|scope| {
        let clears = scope.spawn(move || {
            while !over.load(Relaxed) {
                maps.table(0).clear();
                thread::yield_now();
            }
        });
        let own = |key: u64| {
            let table = words.table(maps, 0);
            for round in 0..20_000u64 {
                let set = table.update(&key.to_ne_bytes(), &round.to_ne_bytes(), Flag::Any, way());
                assert!(matches!(set, Ok(()) | Err(Error::Busy)), "{set:?}");
                if let Some(value) = value_of(&table, key) {
                    assert!(set.is_err() || value == round, "{value} in round {round}");
                }
                let _ = table.delete(&key.to_ne_bytes(), way());
                assert_eq!(value_of(&table, key), None);
            }
        };
        let threads: Vec<_> = (1..4).map(|key| scope.spawn(move || own(key))).collect();
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        over.store(true, Relaxed);
        clears.join().unwrap();
        ended.into_iter().for_each(|end| end.unwrap());
    });
}
