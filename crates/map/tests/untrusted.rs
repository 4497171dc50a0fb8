//! Maps in memory that somebody else writes as he likes: a look ends, reads nothing outside, and believes no length (P3, N5).

use map::{
    Array, Checked, Copies, Entries, Error, Flag, Frames, Hash, Histogram, Next, PercpuArray, Reader, Ring,
};
use map::{Order, Queue, StackTable, Stacks};
use objcache::{Arena, CHUNK};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use wire::Untrusted;

const BYTES: usize = 64 * CHUNK;
const SIZE: usize = 1 << 12;

/// An arena, and the words that it is made of.
fn arena() -> (Arena, &'static [AtomicU64]) {
    let arena = Arena::private(BYTES).unwrap();
    let base = arena.base().cast::<AtomicU64>().as_ptr();
    // SAFETY: the arena has so many bytes, aligned to a page; it is never freed, and all who use it use atomics.
    let words = unsafe { std::slice::from_raw_parts(base, BYTES / 8) };
    std::mem::forget(arena.clone());
    (arena, words)
}

fn view(words: &'static [AtomicU64]) -> Untrusted<'static> {
    // SAFETY: these words, as long as they live, used as atomics alone.
    unsafe { Untrusted::new(NonNull::from(words).cast(), size_of_val(words)) }
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// What somebody hostile would write.
fn nasty(state: &mut u64) -> u64 {
    match random(state) % 8 {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << (random(state) % 64),
        3 => random(state) % 64,
        4 => (1 << 31) | (random(state) % 8192),
        5 => (1 << 31) | (1 << 29),
        6 => i64::MAX as u64,
        _ => random(state),
    }
}

fn reader(view: Untrusted<'static>, offset: usize) -> Reader<Checked<'static>> {
    let ring = Ring::in_untrusted(view, offset, SIZE).unwrap();
    // SAFETY: the only reader.
    unsafe { Reader::new(ring) }
}

#[test]
fn what_does_not_fit_or_says_something_else_is_not_attached() {
    let (arena, words) = arena();
    let view = view(words);
    let array = Array::create(&arena, 10, 24).unwrap();
    let sums = PercpuArray::create(&arena, 10).unwrap();
    let ring = Ring::create(&arena, SIZE).unwrap();
    let (copies, at) = (sums.copies(), [array.offset(), sums.offset(), ring.offset()]);
    assert!(Array::in_untrusted(view, at[0], 10, 24).is_ok());
    assert!(PercpuArray::in_untrusted(view, at[1], 10, copies).is_ok());
    assert!(Ring::in_untrusted(view, at[2], SIZE).is_ok());
    for (offset, entries, value) in
        [(at[0], 11, 24), (at[0], 10, 32), (at[0] + 4, 10, 24), (BYTES - 64, 10, 24), (usize::MAX, 1, 8)]
    {
        assert_eq!(Array::in_untrusted(view, offset, entries, value).err(), Some(Error::Damaged));
    }
    for value in [usize::MAX, usize::MAX / 8, 1 << 40] {
        assert_eq!(Array::in_untrusted(view, at[0], 10, value).err(), Some(Error::Damaged));
    }
    for (entries, copies) in [(11, copies), (10, copies + 1), (u32::MAX, u32::MAX)] {
        assert_eq!(PercpuArray::in_untrusted(view, at[1], entries, copies).err(), Some(Error::Damaged));
    }
    for size in [SIZE * 2, SIZE + 8, 0, 1 << 63] {
        assert_eq!(Ring::in_untrusted(view, at[2], size).err(), Some(Error::Damaged));
    }
    // The head is compared, and not followed: with a length that lies the map is none.
    words[at[0] / 8].store(u64::MAX, Relaxed);
    assert_eq!(Array::in_untrusted(view, at[0], 10, 24).err(), Some(Error::Damaged));
}

#[test]
fn an_honest_writer_is_read_whole() {
    let (arena, words) = arena();
    let ring = Ring::create(&arena, SIZE).unwrap();
    let sums = PercpuArray::create(&arena, 66).unwrap();
    let histogram = Histogram::on(sums.clone(), map::Buckets::Log2).unwrap();
    let view = view(words);
    let (mut reader, mut buffer) = (reader(view, ring.offset()), Vec::new());
    for n in 0..10_000u64 {
        let record = n.to_ne_bytes().repeat(n as usize % 7 + 1);
        ring.output(&record).unwrap();
        histogram.record(n);
        assert_eq!(reader.next(&mut buffer), Next::Record);
        assert_eq!(buffer, record);
    }
    assert_eq!((reader.next(&mut buffer), ring.lost(), reader.abandoned()), (Next::Empty, 0, 0));
    let seen = PercpuArray::in_untrusted(view, sums.offset(), 66, sums.copies()).unwrap();
    assert_eq!((0..65).map(|bucket| seen.sum(bucket)).sum::<u64>(), 10_000);
}

/// What the arena holds now, elsewhere: somebody may scribble over it while the maps' own processes go on.
fn copy_of(words: &[AtomicU64]) -> &'static [AtomicU64] {
    let copy: Vec<AtomicU64> = words.iter().map(|word| AtomicU64::new(word.load(Relaxed))).collect();
    copy.leak()
}

#[test]
fn a_hash_and_stacks_are_found_whole_by_who_knows_their_shape() {
    let (arena, words) = arena();
    let plain = Hash::builder(12, 24, 100).build(&arena).unwrap();
    let percpu = Hash::builder(8, 8, 100).per_cpu().build(&arena).unwrap();
    let stacks = Stacks::create(&arena, 1024, 20).unwrap();
    let key = |n: u64| [n.to_ne_bytes().as_slice(), &[7; 4]].concat();
    let mut ids = Vec::new();
    for n in 0..50u64 {
        plain.update(&key(n), [n.to_ne_bytes(); 3].as_flattened(), Flag::Any).unwrap();
        percpu.add(&n.to_ne_bytes(), n).unwrap();
        ids.push((stacks.id(&[n, n + 1, n + 2]).unwrap(), n));
    }
    let view = view(words);
    let seen = Entries::in_untrusted(view, plain.offset(), plain.shape()).unwrap();
    let mut out = [0; 24];
    for n in 0..50u64 {
        assert_eq!(seen.get(&key(n), &mut out), Ok(()));
        assert_eq!(&out[..], [n.to_ne_bytes(); 3].as_flattened());
    }
    assert_eq!(seen.get(&key(50), &mut out), Err(Error::NotFound));
    let mut keys = Vec::new();
    seen.for_each(|key, _| keys.push(key.to_vec())).unwrap();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!((keys.len(), seen.len()), (50, 50));
    let seen = Entries::in_untrusted(view, percpu.offset(), percpu.shape()).unwrap();
    assert!((0..50u64).all(|n| seen.sum(&n.to_ne_bytes()) == Ok(n)));
    let seen = StackTable::in_untrusted(view, stacks.offset(), 1024, 20).unwrap();
    let mut frames = [0; 20];
    for (id, n) in &ids {
        assert_eq!(seen.get(*id, &mut frames), Ok(3));
        assert_eq!(frames[..3], [*n, n + 1, n + 2]);
    }
    // What says something else, or does not fit, is none.
    for (offset, shape) in [
        (plain.offset(), percpu.shape()),
        (percpu.offset(), plain.shape()),
        (plain.offset() + 64, plain.shape()),
        (BYTES - 64, plain.shape()),
        (usize::MAX - 7, plain.shape()),
    ] {
        assert_eq!(Entries::in_untrusted(view, offset, shape).err(), Some(Error::Damaged));
    }
    for (offset, slots, depth) in
        [(stacks.offset(), 1024, 21), (stacks.offset(), 512, 20), (BYTES - 8, 1024, 20)]
    {
        assert_eq!(StackTable::in_untrusted(view, offset, slots, depth).err(), Some(Error::Damaged));
    }
}

#[test]
fn chains_that_lead_anywhere_are_left_after_a_bounded_number_of_steps() {
    let (arena, words) = arena();
    let hash = Hash::builder(8, 8, 64).build(&arena).unwrap();
    (0..64u64).for_each(|n| hash.update(&n.to_ne_bytes(), &[1; 8], Flag::Any).unwrap());
    let (words, buckets) = (copy_of(words), hash.shape());
    // Every word of 32 bits that could be an index is one that leads to itself, outside, or back to the front.
    for lie in [1u64, 64, 0x7fff_ffff, 0xffff, 0] {
        for at in words.iter().skip(hash.offset() / 8 + 16) {
            at.store(lie << 32 | lie, Relaxed);
        }
        let seen = Entries::in_untrusted(view(words), hash.offset(), buckets).unwrap();
        let mut out = [0; 8];
        assert!((0..64u64).all(|n| seen.get(&n.to_ne_bytes(), &mut out).is_err()));
        let mut met = 0;
        let _ = seen.for_each(|_, _| met += 1);
        assert!(met <= 16 * 128 + 4096, "{met}");
        let _ = seen.next_key(None);
    }
}

#[test]
fn a_record_that_cannot_be_is_given_up_and_the_ring_goes_on() {
    let (arena, words) = arena();
    let ring = Ring::create(&arena, SIZE).unwrap();
    let first_byte = (ring.offset() + 384) / 8;
    let (mut reader, mut buffer) = (reader(view(words), ring.offset()), Vec::new());
    ring.output(&[7; 16]).unwrap();
    ring.output(&[8; 16]).unwrap();
    // A length beyond the end of the ring.
    words[first_byte].store((1 << 31) | SIZE as u64, Relaxed);
    assert_eq!(reader.next(&mut buffer), Next::Damaged);
    assert_eq!((reader.next(&mut buffer), reader.abandoned()), (Next::Empty, 1));
    ring.output(&[9; 16]).unwrap();
    assert_eq!(reader.next(&mut buffer), Next::Record);
    assert_eq!(buffer, [9; 16]);
}

#[test]
fn open_calls_are_counted_in_what_is_there() {
    let words: &[AtomicU64] = (0..Frames::BYTES / 8).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak();
    assert_eq!(Frames::in_untrusted(view(words), 8).err(), Some(Error::Damaged));
    let seen = Frames::in_untrusted(view(words), 0).unwrap();
    words[0].store(u64::MAX, Relaxed);
    words[3].store(u64::MAX, Relaxed); // a stamp, and no key
    words[4].store(1, Relaxed);
    assert_eq!(seen.in_use(), 2);
}

#[test]
fn cells_are_found_in_their_copies_alone() {
    let words: Vec<AtomicU64> = (0..64).map(AtomicU64::new).collect();
    let view = view(words.leak());
    let copies = Copies::in_untrusted(view, 64, 128, 3).unwrap();
    assert_eq!((copies.get(0, 0), copies.get(2, 120), copies.count()), (8, 8 + 32 + 15, 3));
    for (copy, at) in [(3, 0), (0, 128), (1, 4), (usize::MAX, 0), (0, usize::MAX), (usize::MAX / 128, 8)] {
        assert!(copies.cell(copy, at).is_none() && copies.get(copy, at) == 0, "{copy} {at}");
    }
    for (offset, each, copies) in
        [(64, 128, 4), (60, 128, 3), (64, 4, 3), (usize::MAX, 8, 1), (0, usize::MAX - 7, 2)]
    {
        assert_eq!(Copies::in_untrusted(view, offset, each, copies).err(), Some(Error::Damaged));
    }
}

#[test]
fn a_look_ends_whatever_is_written_meanwhile() {
    let (arena, words) = arena();
    let array = Array::create(&arena, 8, 40).unwrap();
    let sums = PercpuArray::create(&arena, 8).unwrap();
    let hash = Hash::builder(8, 16, 64).build(&arena).unwrap();
    (0..64u64).for_each(|n| hash.update(&n.to_ne_bytes(), &[1; 16], Flag::Any).unwrap());
    let stacks = Stacks::create(&arena, 64, 8).unwrap();
    assert!((0..64u64).filter(|n| stacks.id(&[*n, *n]).is_ok()).count() > 20);
    let queue = Queue::create(&arena, Order::Queue, 8, 40).unwrap();
    let ring = Ring::create(&arena, SIZE).unwrap();
    // A copy: caches of the arena are tended by threads that believe what stands there.
    let words = copy_of(words);
    let view = view(words);
    let is_over = AtomicBool::new(false);
    let seen_hash = Entries::in_untrusted(view, hash.offset(), hash.shape()).unwrap();
    let seen_stacks = StackTable::in_untrusted(view, stacks.offset(), 64, 8).unwrap();
    let seen_queue = Queue::in_untrusted(view, queue.offset(), Order::Queue, 8, 40).unwrap();
    let seen_array = Array::in_untrusted(view, array.offset(), 8, 40).unwrap();
    let seen_sums = PercpuArray::in_untrusted(view, sums.offset(), 8, sums.copies()).unwrap();
    let mut reader = reader(view, ring.offset());
    std::thread::scope(|scope| {
        let is_over = &is_over;
        scope.spawn(move || {
            let mut state = 88_172_645_463_325_252;
            while !is_over.load(Relaxed) {
                let at = random(&mut state) as usize % words.len();
                words[at].store(nasty(&mut state), Relaxed);
            }
        });
        let (mut buffer, mut out, mut frames, mut looks) = (Vec::new(), [0; 40], [0; 8], 0u32);
        let end = Instant::now() + Duration::from_millis(if cfg!(miri) { 100 } else { 1000 });
        while looks <= 10 || Instant::now() < end {
            for index in 0..9 {
                let _ = seen_array.get(index, &mut out);
                let _ = seen_sums.sum(index);
            }
            for n in 0..65u64 {
                let _ = seen_hash.get(&n.to_ne_bytes(), &mut out[..16]);
                let _ = seen_hash.sum(&n.to_ne_bytes());
                let _ = seen_stacks.get(n as u32, &mut frames);
            }
            let mut met = 0;
            let _ = seen_hash.for_each(|_, _| met += 1);
            assert!(met <= 16 * 128 + 4096, "{met}");
            for nth in 0..9 {
                let _ = seen_queue.nth(nth, &mut out);
            }
            let _ = reader.next(&mut buffer);
            let _ = reader.next_words(&mut [0; 7]);
            assert!(buffer.len() < SIZE, "{}", buffer.len());
            looks += 1;
        }
        is_over.store(true, Relaxed);
    });
}
