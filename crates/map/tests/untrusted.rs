//! Maps in memory that somebody else writes as he likes: a look ends, reads nothing outside, and believes no length (P3, N5).

use map::{Array, Checked, Error, Histogram, Next, PercpuArray, Reader, Ring};
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
fn a_look_ends_whatever_is_written_meanwhile() {
    let (arena, words) = arena();
    let array = Array::create(&arena, 8, 40).unwrap();
    let sums = PercpuArray::create(&arena, 8).unwrap();
    let ring = Ring::create(&arena, SIZE).unwrap();
    let view = view(words);
    let is_over = AtomicBool::new(false);
    let (from, to) = (array.offset() / 8, (ring.offset() + 384 + SIZE) / 8);
    let seen_array = Array::in_untrusted(view, array.offset(), 8, 40).unwrap();
    let seen_sums = PercpuArray::in_untrusted(view, sums.offset(), 8, sums.copies()).unwrap();
    let mut reader = reader(view, ring.offset());
    std::thread::scope(|scope| {
        let is_over = &is_over;
        scope.spawn(move || {
            let mut state = 88_172_645_463_325_252;
            while !is_over.load(Relaxed) {
                let at = from + random(&mut state) as usize % (to - from);
                words[at].store(nasty(&mut state), Relaxed);
            }
        });
        let (mut buffer, mut out, mut looks) = (Vec::new(), [0; 40], 0u32);
        let end = Instant::now() + Duration::from_millis(if cfg!(miri) { 100 } else { 1000 });
        while Instant::now() < end {
            for index in 0..9 {
                let _ = seen_array.get(index, &mut out);
                let _ = seen_sums.sum(index);
            }
            let _ = reader.next(&mut buffer);
            assert!(buffer.len() < SIZE, "{}", buffer.len());
            looks += 1;
        }
        is_over.store(true, Relaxed);
        assert!(looks > 10, "{looks}");
    });
}
