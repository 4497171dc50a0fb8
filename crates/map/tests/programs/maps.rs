//! The maps of a program from their making to the end: before and behind a move, and the records that programs leave.

use crate::ground::{Words, settled, way};
use map::{Agg, Flag, Kind, Maps, Outside, Piece, Plan, Ring, Slot, Spec};
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use wire::maps::{HANDLES, HelperError, MapsHead};

fn plan() -> Plan {
    let spec = |agg, limit| Spec { kind: Kind::Hash, key: 8, value: 40, limit, agg };
    Plan {
        constants: b"text of the program".to_vec(),
        tables: vec![
            spec(None, 50),
            spec(Some(Agg::Hist { bits: 0 }), 50),
            spec(Some(Agg::Count), 1_000_000),
        ],
        first_table: 3,
        ring_bytes: 4096,
    }
}

#[test]
fn what_was_in_the_maps_before_a_move_is_there_afterwards() {
    let mut maps = Maps::new(&plan()).unwrap();
    for n in 0..30u64 {
        maps.table(0).update(&n.to_ne_bytes(), &[n as u8; 40], Flag::Any, Outside).unwrap();
        maps.table(1).aggregate(&n.to_ne_bytes(), n, 0, Outside).unwrap();
        maps.table(2).aggregate(&n.to_ne_bytes(), n, 0, Outside).unwrap();
    }
    maps.table(0).delete(&3u64.to_ne_bytes(), Outside).unwrap();
    maps.set_clock(Piece { from: 5, until: 6, ns: 7, ns_per_tick: 8 });
    let words = settled(&mut maps);
    for n in 0..30u64 {
        let key = n.to_ne_bytes();
        let (inside, mut value) = (words.table(&maps, 3), [0; 40]);
        match inside.find(&key) {
            Ok(slot) => assert!(inside.value(slot, &mut value) && value == [n as u8; 40]),
            Err(_) => assert_eq!(n, 3),
        }
        words.table(&maps, 4).aggregate(&key, n, 0, way()).unwrap();
        words.table(&maps, 5).aggregate(&key, n, 0, way()).unwrap();
        let sum = |table: usize| maps.table(table).aggregated(maps.table(table).find(&key).unwrap());
        assert_eq!((sum(1), sum(2)), (2, 2));
    }
    assert_eq!(maps.table(0).len(), 29);
    let clock = offset_of!(MapsHead, clock) / 8;
    let span = |number: usize| [0, 1, 2, 3, 4].map(|n| words.0[clock + 5 * number + n].load(Relaxed));
    assert_eq!((span(0), span(1)), ([4, 5, 6, 7, 8], [0; 5]));
    maps.set_clock(Piece { from: 6, until: 9, ns: 70, ns_per_tick: 80 });
    assert_eq!((span(0), span(1)), ([4, 5, 6, 7, 8], [8, 6, 9, 70, 80]));
    let text: Vec<u8> =
        (0..3).flat_map(|n| words.0[maps.constants() / 8 + n].load(Relaxed).to_ne_bytes()).collect();
    assert_eq!(&text[..19], b"text of the program");
    assert_eq!(maps.handle(5), Some(HANDLES + 40));
    assert_eq!(maps.handle(6), None);
}

#[test]
fn maps_go_on_in_memory_that_was_filled_with_their_image() {
    let mut maps = Maps::new(&plan()).unwrap();
    for n in 0..30u64 {
        maps.table(2).aggregate(&n.to_ne_bytes(), n, 0, Outside).unwrap();
    }
    let words = Words::new(maps.len());
    for (word, bytes) in words.0.iter().zip(maps.image().chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_ne_bytes(whole), Relaxed);
    }
    maps.go_on_in(Arc::new(words)).unwrap();
    words.table(&maps, 5).aggregate(&7u64.to_ne_bytes(), 0, 0, way()).unwrap();
    let sum = |n: u64| maps.table(2).aggregated(maps.table(2).find(&n.to_ne_bytes()).unwrap());
    assert_eq!((sum(7), sum(8), maps.table(2).len()), (2, 1, 30));
    assert!(put(words, 0, 5) && maps.take_records(u64::MAX).len() == 1);
    assert!(Maps::new(&plan()).unwrap().go_on_in(Arc::new(Words(&words.0[..64]))).is_err());
}

#[test]
fn maps_that_would_be_too_large_are_refused() {
    for (key, value, limit) in
        [(8, 8, 0), (0, 8, 8), (8, 1 << 31, 8), (8, 1 << 20, 1 << 29), (8, 8, usize::MAX)]
    {
        let tables = vec![Spec { kind: Kind::Hash, key, value, limit, agg: None }];
        assert!(Maps::new(&Plan { tables, ..Plan::default() }).is_err(), "{key} {value} {limit}");
    }
}

/// A CPU's ring, as a target has it.
fn ring(words: Words, cpu: usize) -> Ring {
    // SAFETY: maps lie there, whose head is written.
    let head = unsafe { &*words.0.as_ptr().cast::<MapsHead>() };
    let at = head.rings as usize + cpu * head.ring_stride as usize;
    // SAFETY: a ring of this length lies there, in words that are never freed.
    unsafe { Ring::at(NonNull::from(&words.0[at / 8]).cast(), head.ring_bytes as usize) }
}

fn put(words: Words, cpu: usize, stamp: u64) -> bool {
    ring(words, cpu).output(&[stamp.to_ne_bytes(), (stamp * 3).to_ne_bytes()].concat()).is_ok()
}

#[test]
fn records_of_all_cpus_come_once_in_the_order_of_their_stamps() {
    let mut maps = Maps::new(&plan()).unwrap();
    let words = settled(&mut maps);
    let cpus = percpu::possible_cpus() as usize;
    let (mut seen, mut put_in) = (Vec::new(), 0u64);
    for round in 0..500u64 {
        for n in 0..7 {
            let stamp = round * 10 + n;
            put_in += u64::from(put(words, (round + n) as usize * 7 % cpus, stamp));
        }
        // A record of this round may still come, so that none of it is given out.
        let records = maps.take_records(round * 10);
        assert!(records.iter().all(|record| record.stamp < round * 10));
        seen.extend(records);
    }
    seen.extend(maps.take_records(u64::MAX));
    assert_eq!(seen.len() as u64, put_in);
    assert!(seen.windows(2).all(|two| two[0].stamp < two[1].stamp));
    assert!(seen.iter().all(|record| record.bytes == (record.stamp * 3).to_ne_bytes()));
    let lost = (0..).take_while(|n| put(words, 0, *n)).count();
    assert!(lost > 50, "a ring has room for {lost}");
    assert_eq!((maps.abandoned(), maps.errors(HelperError::RingFull)), (0, 0));
}

#[test]
fn the_controllers_own_walk_begins_before_the_first() {
    let maps = Maps::new(&plan()).unwrap();
    assert_eq!(maps.table(0).next(Slot(0)), None);
    assert_eq!(maps.table(0).next(Slot(u32::MAX)), None);
}
