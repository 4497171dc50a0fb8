//! Reserve, commit, consume: N1, N2; mutants MAP-12, MAP-13, no-turn.

use crate::{base, model};
use loom::thread;
use map::{Memory, Next, Reader, Ring, lay_out_ring};

fn ring(size: usize) -> Ring {
    Memory::begin(1024);
    lay_out_ring(base(), size);
    // SAFETY: the head was written to the model's memory.
    unsafe { Ring::attach(base(), 0) }
}

/// Reads what there is; whole records only.
fn read(reader: &mut Reader, got: &mut Vec<u64>) {
    let mut buffer = Vec::new();
    while reader.next(&mut buffer) == Next::Record {
        let words: Vec<_> = buffer.chunks(8).map(|w| u64::from_ne_bytes(w.try_into().unwrap())).collect();
        assert_eq!((words.len(), words[0]), (2, words[1]), "a torn record");
        got.push(words[0]);
    }
}

fn produce(ring: &Ring, n: u64) {
    let _ = ring.output([n.to_ne_bytes(), n.to_ne_bytes()].as_flattened());
}

#[test]
fn records_of_two_producers_come_whole_and_none_is_lost() {
    model(2, || {
        let ring = ring(64);
        // SAFETY: the only reader.
        let mut reader = unsafe { Reader::new(ring.clone()) };
        let producers = [1, 2].map(|n| {
            let ring = ring.clone();
            thread::spawn(move || produce(&ring, n))
        });
        let mut got = Vec::new();
        read(&mut reader, &mut got);
        producers.into_iter().for_each(|p| p.join().unwrap());
        read(&mut reader, &mut got);
        got.sort_unstable();
        assert_eq!((got.as_slice(), ring.lost()), ([1, 2].as_slice(), 0));
    });
}

#[test]
fn produced_is_read_and_lost_when_room_runs_out_and_comes_back() {
    model(2, || {
        // Room for two records and a pad behind them.
        let ring = ring(64);
        // SAFETY: the only reader.
        let mut reader = unsafe { Reader::new(ring.clone()) };
        let producer = thread::spawn({
            let ring = ring.clone();
            move || (1..=4).for_each(|n| produce(&ring, n))
        });
        let mut got = Vec::new();
        read(&mut reader, &mut got);
        producer.join().unwrap();
        read(&mut reader, &mut got);
        assert!(got.is_sorted() && got.len() as u64 + ring.lost() == 4, "{got:?}, {} lost", ring.lost());
    });
}
