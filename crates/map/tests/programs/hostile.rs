//! A target that writes whatever it likes, anywhere in a program's maps, while the controller uses them: nothing outside is
//! touched, every call ends, and a table that it leaves alone is as it was (I1, T4).

use crate::ground::{Words, moved};
use map::{Agg, Flag, Kind, Maps, Outside, SeriesKind, Slot, Spec};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// What somebody hostile would write.
fn nasty(state: &mut u64) -> u64 {
    match random(state) % 9 {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << (random(state) % 64),
        3 => random(state) % 64,
        4 => (1 << 31) | (random(state) % 8192),
        5 => (1 << 31) | (1 << 30) | 16,
        6 => i64::MAX as u64,
        7 => ((random(state) % 64) << 32) | (random(state) % 64),
        _ => random(state),
    }
}

fn tables() -> Vec<Spec> {
    let kinds = [Kind::Hash, Kind::OwnHash, Kind::LruHash, Kind::PercpuHash, Kind::PercpuLruHash];
    let plain = kinds.map(|kind| Spec { kind, key: 8, value: 24, limit: 40, agg: None });
    let series = Agg::Tseries { interval: 10, num: 3, how: SeriesKind::Avg, signed: true };
    let aggs = [Agg::Count, Agg::Max { signed: true }, Agg::Hist { bits: 0 }, series].map(|agg| Spec {
        kind: Kind::PercpuHash,
        key: 12,
        value: 0,
        limit: 40,
        agg: Some(agg),
    });
    plain.into_iter().chain(aggs).collect()
}

/// Everything that the controller can do, once.
fn use_all(maps: &mut Maps, state: &mut u64) {
    for number in 0..8 {
        let table = maps.table(number);
        let mut key = vec![0; table.key_bytes()];
        key[..8].copy_from_slice(&(random(state) % 60).to_ne_bytes());
        let mut value = vec![0; table.value_bytes()];
        match random(state) % 8 {
            0 => drop(table.delete(&key, Outside)),
            1 if table.agg().is_none() => drop(table.update(&key, &value, Flag::Any, Outside)),
            2 => drop(table.aggregate(&key, random(state), random(state), Outside)),
            3 => drop(table.find_or_init(&key, Outside)),
            4 if random(state).is_multiple_of(16) => table.clear(),
            5 if random(state).is_multiple_of(16) => table.zero(),
            _ => {
                if let Ok(slot) = table.find(&key) {
                    let _ = (table.words(slot), table.aggregated(slot), table.value(slot, &mut value));
                    let _ = table.exchange(slot, 0, 1, 2);
                }
            }
        }
        let (mut at, mut met) = (Slot(0), 0);
        while let Some(slot) = table.next(at) {
            let _ = (table.key(slot, &mut key), table.value(slot, &mut value), table.words(slot));
            (at, met) = (slot, met + 1);
            assert!(met <= 40, "more elements than there are");
        }
        assert!(table.len() <= 40);
    }
    let _ = (maps.take_records(random(state)), maps.abandoned());
    let _ = wire::maps::HelperError::ALL.map(|cause| maps.errors(cause));
    maps.set_clock(map::Piece { from: 1, until: 2, ns: 3, ns_per_tick: 4 });
    maps.keep_clock();
}

#[test]
fn whatever_is_written_anywhere_every_call_ends_and_stays_inside() {
    let (mut maps, words) = moved(tables(), 4096);
    let (is_over, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    let seed = 0x5eed_0000 + u64::from(std::process::id());
    println!("seed {seed:#x}");
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut state = seed;
            while !is_over.load(Relaxed) {
                let at = random(&mut state) as usize % words.0.len();
                words.0[at].store(nasty(&mut state), Relaxed);
                // Parts of it stay as they are now and then, so that calls get further than the first word.
                if random(&mut state).is_multiple_of(64) {
                    thread::yield_now();
                }
            }
        });
        let (mut state, end) = (seed ^ 0xffff, Instant::now() + Duration::from_secs(3));
        while Instant::now() < end || calls.load(Relaxed) < 50 {
            use_all(&mut maps, &mut state);
            calls.fetch_add(1, Relaxed);
        }
        is_over.store(true, Relaxed);
    });
    println!("{} rounds", calls.load(Relaxed));
}

#[test]
fn one_word_at_a_time_is_enough_for_nothing() {
    let mut state = 0x1234_5678;
    let (mut maps, words) = prepared();
    let sound: Vec<u64> = words.0.iter().map(|word| word.load(Relaxed)).collect();
    for round in 0..3_000u64 {
        words.0.iter().zip(&sound).for_each(|(to, from)| to.store(*from, Relaxed));
        // Chains, heads and links, which lie in front, are hit more often than values.
        let most = if round % 2 == 0 { words.0.len() } else { words.0.len() / 16 };
        for _ in 0..1 + round % 3 {
            let at = random(&mut state) as usize % most;
            words.0[at].store(nasty(&mut state), Relaxed);
        }
        (0..4).for_each(|_| use_all(&mut maps, &mut state));
    }
}

fn prepared() -> (Maps, Words) {
    let (maps, words) = moved(tables(), 0);
    for number in 0..8 {
        for n in 0..30u64 {
            let table = maps.table(number);
            let mut key = vec![0; table.key_bytes()];
            key[..8].copy_from_slice(&n.to_ne_bytes());
            match table.agg() {
                Some(_) => table.aggregate(&key, n, n, Outside).unwrap(),
                None => table.update(&key, &[3; 24], Flag::Any, Outside).unwrap(),
            }
        }
    }
    (maps, words)
}

#[test]
fn a_table_beside_one_that_was_scribbled_over_is_as_it_was() {
    let (maps, words) = prepared();
    let mut state = 77;
    let at = |number: usize| words.0[maps.handle(number).unwrap() / 8].load(Relaxed) as usize / 8;
    // The ninth word of a form says how far its elements are; they lie in the order of the tables.
    let data = |number: usize| at(number) + words.0[at(number) + 8].load(Relaxed) as usize / 8;
    let own = [at(2)..at(3), data(2)..data(3)];
    for n in (0..words.0.len()).filter(|n| !own.iter().any(|own| own.contains(n))) {
        words.0[n].store(nasty(&mut state), Relaxed);
    }
    let (table, mut out) = (maps.table(2), [0; 24]);
    for n in 0..30u64 {
        let slot = table.find(&n.to_ne_bytes()).unwrap();
        assert!(table.value(slot, &mut out) && out == [3; 24]);
    }
    assert_eq!(table.len(), 30);
}
