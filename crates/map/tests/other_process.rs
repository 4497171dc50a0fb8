//! Another process reads every kind of map, at another address, while this one writes (H1, H2, I1, P2).

use map::{Array, Buckets, Error, Flag, Hash, Histogram, PercpuArray, Stacks};
use objcache::{Arena, CHUNK};
use percpu::RseqOffset;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

unsafe extern "C" {
    fn fork() -> i32;
    fn _exit(status: i32) -> !;
}

const BYTES: usize = 1024 * CHUNK;
const KEYS: u64 = 64;
const VALUE: usize = 120;

/// Roots of the arena: where each map lies, then what the two processes tell each other.
const OFFSETS: [usize; 6] = [0, 1, 2, 3, 4, 5];
const READY: usize = 10;
const DONE: usize = 11;

fn root(base: NonNull<u8>, n: usize) -> &'static std::sync::atomic::AtomicU32 {
    // SAFETY: the arena lies there to the end of both processes.
    unsafe { Arena::root_at(base, n) }.unwrap()
}

fn value(n: u64) -> Vec<u8> {
    n.to_ne_bytes().repeat(VALUE / 8)
}

fn is_whole(bytes: &[u8]) -> bool {
    bytes.chunks(8).all(|word| word == &bytes[..8])
}

/// What the reading process does until it is told that all is written; then it checks the final counts.
fn read(base: NonNull<u8>) -> Result<u64, String> {
    let offset = |n: usize| root(base, OFFSETS[n]).load(Relaxed) as usize;
    // SAFETY: the maps were made before the fork and stay to the end.
    let hashes = [0, 1].map(|n| unsafe { Hash::attach(base, offset(n)) });
    // SAFETY: as above.
    let array = unsafe { Array::attach(base, offset(2)) };
    // SAFETY: as above.
    let sums = unsafe { PercpuArray::attach(base, offset(3), RseqOffset::NONE) };
    // SAFETY: as above.
    let counts = unsafe { PercpuArray::attach(base, offset(4), RseqOffset::NONE) };
    let histogram = Histogram::on(counts, Buckets::Log2).unwrap();
    // SAFETY: as above.
    let stacks = unsafe { Stacks::attach(base, offset(5)) };
    root(base, READY).store(1, Release);
    let (mut rounds, mut reads) = (0u64, 0u64);
    loop {
        let done = root(base, DONE).load(Acquire) != 0;
        for map in &hashes {
            let (mut out, mut keys, mut torn) = ([0; VALUE], 0, false);
            for key in 0..KEYS / 2 {
                // These keys are replaced, never removed.
                match map.get(&key.to_ne_bytes(), &mut out) {
                    Ok(()) if !is_whole(&out) => return Err(format!("torn value of key {key}")),
                    Ok(()) => reads += 1,
                    Err(Error::Busy) if !done => {}
                    Err(error) => return Err(format!("key {key}: {error}")),
                }
            }
            let walked = map.for_each(|_, value| (keys, torn) = (keys + 1, torn || !is_whole(value)));
            match walked {
                Err(Error::Busy) if !done => {}
                Err(error) => return Err(format!("the walk: {error}")),
                Ok(()) if torn || !(KEYS / 2..=KEYS).contains(&keys) => {
                    return Err(format!("{keys} keys, torn: {torn}"));
                }
                Ok(()) => {}
            }
        }
        let mut out = [0; VALUE];
        if array.get(3, &mut out).is_ok() && !is_whole(&out) {
            return Err("torn entry".into());
        }
        let mut frames = [0; 16];
        for id in 0..256 {
            if let Ok(len) = stacks.get(id, &mut frames)
                && !frames[..len].iter().all(|f| *f & 0xff == len as u64 && *f == frames[0])
            {
                return Err(format!("torn stack {frames:?}"));
            }
        }
        rounds += 1;
        if done {
            let total: u64 = (0..65).map(|b| histogram.count(b)).sum();
            return match (sums.sum(7), total, hashes[0].len(), reads > 0 && rounds > 1) {
                (100_000, 100_000, 64, true) => Ok(reads),
                other => Err(format!("sum, values, keys, reads: {other:?}")),
            };
        }
    }
}

#[test]
fn every_map_is_read_whole_while_it_is_written_and_exact_at_the_end() {
    let file = sys::memfd_inheritable(c"maps", BYTES).unwrap();
    // SAFETY: the two processes of this test alone have the file, and change it through maps.
    let arena = unsafe { Arena::in_file(file, BYTES) }.unwrap();
    let plain = Hash::builder(8, VALUE, 200).plain_free().build(&arena).unwrap();
    let rcu = Hash::builder(8, VALUE, 200).build(&arena).unwrap();
    let array = Array::create(&arena, 10, VALUE).unwrap();
    let sums = PercpuArray::create(&arena, 10).unwrap();
    let histogram = Histogram::create(&arena, Buckets::Log2).unwrap();
    let stacks = Stacks::create(&arena, 256, 16).unwrap();
    let offsets = [
        plain.offset(),
        rcu.offset(),
        array.offset(),
        sums.offset(),
        histogram.counts().offset(),
        stacks.offset(),
    ];
    for (n, offset) in OFFSETS.into_iter().zip(offsets) {
        arena.root(n).unwrap().store(offset as u32, Relaxed);
    }
    for key in 0..KEYS {
        for map in [&plain, &rcu] {
            while map.update(&key.to_ne_bytes(), &value(0), Flag::Any).is_err() {
                std::thread::yield_now();
            }
        }
    }
    // SAFETY: the child uses the mapping and its own memory; it takes no lock of another thread but malloc's,
    // which the C library sets free in a child.
    let child = unsafe { fork() };
    if child == 0 {
        let map = sys::mapping::SharedMapping::of_file(file, BYTES).unwrap();
        let base = NonNull::new(map.base()).unwrap();
        assert_ne!(base, arena.base());
        let good = read(base);
        if let Err(what) = &good {
            eprintln!("the reading process: {what}");
        }
        // SAFETY: ends this process at once.
        unsafe { _exit(i32::from(good.is_err())) };
    }
    while arena.root(READY).unwrap().load(Acquire) == 0 {
        std::thread::yield_now();
    }
    for n in 0..100_000u64 {
        // The lower half is replaced, the upper half removed and made again.
        for map in [&plain, &rcu] {
            let _ = map.update(&(n % (KEYS / 2)).to_ne_bytes(), &value(n), Flag::Any);
            let upper = (KEYS / 2 + n % (KEYS / 2)).to_ne_bytes();
            let _ = map.delete(&upper);
            let _ = map.update(&upper, &value(n), Flag::Any);
        }
        array.set(3, &value(n)).unwrap();
        sums.add(7, 1);
        histogram.record(n);
        // A new one now and then, while the other process looks.
        let len = n % 16 + 1;
        let frames = [len | (n / 1000) << 8; 16];
        let _ = stacks.id(&frames[..len as usize]);
    }
    for key in 0..KEYS {
        while plain.update(&key.to_ne_bytes(), &value(1), Flag::Any).is_err() {
            std::thread::yield_now();
        }
    }
    arena.root(DONE).unwrap().store(1, Release);
    let mut status = 0i32;
    // SAFETY: the kernel writes one int to `status`.
    unsafe { sys::syscall(sys::nr::WAIT4, [child as usize, (&raw mut status) as usize, 0, 0, 0, 0]) };
    assert_eq!(status, 0);
}
