//! Open calls: every one closed once with its own stamp, by whatever threads (F1, F2).

use map::{Call, Frames, Opened};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// A table, and the words in which it lies.
struct Table {
    frames: Frames,
    _words: Vec<AtomicU64>,
}

fn table() -> Table {
    let words: Vec<AtomicU64> = (0..Frames::BYTES / 8).map(|_| AtomicU64::new(0)).collect();
    // SAFETY: zeros of this length, kept beside the table, which goes first.
    let frames = unsafe { Frames::at(NonNull::from(words.as_slice()).cast()) };
    Table { frames, _words: words }
}

#[test]
fn a_call_is_closed_once_with_its_stamp() {
    let table = table();
    let call = Call::at(0x7ffe_1234_5678, 3);
    assert_eq!(table.frames.open(call, 77), Opened::New);
    assert_eq!(table.frames.close(Call::at(0x7ffe_1234_5678, 4)), None, "another function");
    assert_eq!(table.frames.close(Call::at(0x7ffe_1234_5688, 3)), None, "another place");
    assert_eq!(table.frames.close(call), Some(77));
    assert_eq!(table.frames.close(call), None);
    assert_eq!(table.frames.in_use(), 0);
}

#[test]
fn a_newer_call_at_the_same_place_takes_the_frame_of_one_that_never_returned() {
    let table = table();
    assert_eq!(table.frames.open(Call::at(0x7000_0008, 1), 1), Opened::New);
    assert_eq!(table.frames.open(Call::at(0x7000_0008, 1), 2), Opened::InsteadOfOther);
    assert_eq!(table.frames.open(Call::at(0x7000_0008, 2), 3), Opened::InsteadOfOther);
    assert_eq!(table.frames.in_use(), 1);
    assert_eq!(table.frames.close(Call::at(0x7000_0008, 1)), None);
    assert_eq!(table.frames.close(Call::at(0x7000_0008, 2)), Some(3));
    assert_eq!(table.frames.in_use(), 0);
}

#[test]
fn recursion_to_any_depth_has_a_frame_for_each_call() {
    let table = table();
    let calls = || (0..10_000u64).map(|i| Call::at(0x7fff_ffff_0008 - i * 48, 0));
    for (i, call) in calls().enumerate() {
        assert_eq!(table.frames.open(call, i as u64), Opened::New);
    }
    assert_eq!(table.frames.in_use(), 10_000);
    for (i, call) in calls().enumerate().collect::<Vec<_>>().into_iter().rev() {
        assert_eq!(table.frames.close(call), Some(i as u64));
    }
    assert_eq!(table.frames.in_use(), 0);
}

#[test]
fn what_finds_no_room_is_not_opened() {
    let table = table();
    let (groups, blocked) = (4096, Call::at(0x10_0008, 0));
    let opened = (0..10 * groups)
        .filter(|i| table.frames.open(Call::at(0x2000_0008 + i * 2048, 0), *i) == Opened::New)
        .count() as u64;
    assert_eq!(opened, groups, "one frame of each group");
    assert_eq!(table.frames.open(blocked, 1), Opened::NoRoom);
    assert_eq!(table.frames.close(blocked), None);
    assert_eq!(table.frames.in_use(), groups);
}

#[test]
fn goroutines_whose_stacks_move_keep_their_calls_apart() {
    let table = table();
    let calls = || (0..64u64).map(|i| Call::in_goroutine(0xc000_0000_1000 + i % 8 * 512, 8 * (i / 8), 1));
    assert!(calls().zip(0..).all(|(call, n)| table.frames.open(call, n) == Opened::New));
    assert!(calls().zip(0..).all(|(call, n)| table.frames.close(call) == Some(n)));
}

#[test]
fn threads_on_their_own_stacks_lose_and_mix_up_nothing() {
    let table = table();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let frames = table.frames;
            scope.spawn(move || {
                let base = 0x7f00_0000_0000 + thread * 0x80_0000;
                let mut random = thread + 1;
                for round in 0..if cfg!(miri) { 20 } else { 20_000 } {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let depth = random % 64;
                    let calls = || (0..depth).map(|i| Call::at(base - i * 64 + 8, 0));
                    calls().for_each(|c| assert_eq!(frames.open(c, thread << 32 | round), Opened::New));
                    calls().for_each(|c| assert_eq!(frames.close(c), Some(thread << 32 | round)));
                }
            });
        }
    });
    assert_eq!(table.frames.in_use(), 0);
}
