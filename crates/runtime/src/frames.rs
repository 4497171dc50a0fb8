//! Opening and closing calls in the table of frames.
//!
//! For:     the handlers at a function's entry and where it is left.
//! State:   `wire::frames`, in the arena.
//! Context: hit, signal included: a handler that interrupts us runs deeper on the same stack, or on another one,
//!          and so never has our key.
//! Keeps:   F1 of wire::frames.
//!          F2 opened = closed + replaced + still open, and what found no room was not opened.
//! Checked: tests below (threads, F2); testkit `returns`.
//! Source:  a return address's place as a call's identity: the kernel compares it too (return_instance.stack,
//!          kernel-facts 1.12).

use core::sync::atomic::{AtomicU64, Ordering};
use wire::frames::{FRAMES, Frame, GROUPS, Table, WAYS};

/// Which call: the function and the place of its return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    key: u64,
    block: u64,
    frame: usize,
}

impl Call {
    /// The call of function number `function` whose return address lies at `place`.
    #[inline(always)]
    pub fn at(place: u64, function: u32) -> Call {
        let key = place & ((1 << 48) - 1) | u64::from(function) << 48;
        Call { key, block: place >> 11, frame: (place >> 4) as usize }
    }

    /// Which call, as one word: the same at its entry and its exits.
    #[inline(always)]
    pub fn key(self) -> u64 {
        self.key
    }

    /// In a goroutine, whose stack may move: its address, and how far the place is from the stack's end.
    #[inline(always)]
    pub fn in_goroutine(g: u64, depth: u64, function: u32) -> Call {
        let block = mix(g).wrapping_add(depth >> 10);
        // Two calls may share a key once in 2^48 pairs: a wrong duration, nothing else.
        let key = mix(mix(g) ^ depth ^ u64::from(function) << 48) | 1;
        Call { key, block, frame: (depth >> 3) as usize }
    }
}

#[inline(always)]
fn mix(x: u64) -> u64 {
    let x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^ (x >> 29)
}

/// What became of a call that began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// It has a frame.
    New,
    /// It has the frame of a call that never returned: unwound, left by a jump, or begun again.
    InsteadOfOther,
    /// All its frames are in use.
    NoRoom,
}

/// Opens a call with this stamp.
#[inline(always)]
pub fn open(table: &Table, call: Call, stamp: u64) -> Opened {
    for way in 0..WAYS {
        let frame = frame(table, call, way);
        // Frames are set from 0 by whoever gets there first; a key of ours can only be ours.
        let mut found = frame.key.load(Ordering::Relaxed);
        if found == 0 {
            // [FRAME-2] Orders the last owner's reading of the stamp before ours is written. Pairs with [FRAME-1].
            match frame.key.compare_exchange(0, call.key, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    frame.stamp.store(stamp, Ordering::Relaxed);
                    return Opened::New;
                }
                Err(other) => found = other,
            }
        }
        if is_same_place(found, call.key)
            && frame.key.compare_exchange(found, call.key, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            frame.stamp.store(stamp, Ordering::Relaxed);
            return Opened::InsteadOfOther;
        }
    }
    Opened::NoRoom
}

/// Closes a call and returns its stamp, `None` if it was not opened.
#[inline(always)]
pub fn close(table: &Table, call: Call) -> Option<u64> {
    for way in 0..WAYS {
        let frame = frame(table, call, way);
        if frame.key.load(Ordering::Relaxed) == call.key {
            let stamp = frame.stamp.load(Ordering::Relaxed);
            // [FRAME-1] Pairs with [FRAME-2]. The frame is free for others once they see 0; they write the stamp after that, and we have read it
            // before.
            frame.key.store(0, Ordering::Release);
            return Some(stamp);
        }
    }
    None
}

/// A call whose return address lies where that of a newer call lies is over, whichever function it was.
#[inline(always)]
fn is_same_place(a: u64, b: u64) -> bool {
    (a ^ b) << 16 == 0
}

#[inline(always)]
fn frame(table: &Table, call: Call, way: usize) -> &Frame {
    let group = (mix(call.block) >> 16) as usize + way * (GROUPS / WAYS + 1);
    // Both remainders are by constants: no bounds check, and no panic in a hit.
    &table[group % GROUPS * FRAMES + call.frame % FRAMES]
}

const _: () = assert!(size_of::<Frame>() == 2 * size_of::<AtomicU64>());

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::boxed::Box;
    use std::vec::Vec;

    fn table() -> Box<Table> {
        let frames: Vec<Frame> = (0..GROUPS * FRAMES).map(|_| Frame::default()).collect();
        frames.into_boxed_slice().try_into().unwrap()
    }

    fn is_empty(table: &Table) -> bool {
        table.iter().all(|f| f.key.load(Ordering::Relaxed) == 0)
    }

    #[test]
    fn a_call_is_closed_once_with_its_stamp() {
        let table = table();
        let call = Call::at(0x7ffe_1234_5678, 3);
        assert_eq!(open(&table, call, 77), Opened::New);
        assert_eq!(close(&table, Call::at(0x7ffe_1234_5678, 4)), None, "another function");
        assert_eq!(close(&table, Call::at(0x7ffe_1234_5688, 3)), None, "another place");
        assert_eq!(close(&table, call), Some(77));
        assert_eq!(close(&table, call), None);
        assert!(is_empty(&table));
    }

    #[test]
    fn a_newer_call_at_the_same_place_takes_the_frame_of_one_that_never_returned() {
        let table = table();
        assert_eq!(open(&table, Call::at(0x7000_0008, 1), 1), Opened::New);
        assert_eq!(open(&table, Call::at(0x7000_0008, 1), 2), Opened::InsteadOfOther);
        assert_eq!(open(&table, Call::at(0x7000_0008, 2), 3), Opened::InsteadOfOther);
        assert_eq!(close(&table, Call::at(0x7000_0008, 1)), None);
        assert_eq!(close(&table, Call::at(0x7000_0008, 2)), Some(3));
        assert!(is_empty(&table));
    }

    #[test]
    fn recursion_to_any_depth_has_a_frame_for_each_call() {
        let table = table();
        let calls = || (0..10_000u64).map(|i| Call::at(0x7fff_ffff_0008 - i * 48, 0));
        for (i, call) in calls().enumerate() {
            assert_eq!(open(&table, call, i as u64), Opened::New);
        }
        for (i, call) in calls().enumerate().collect::<Vec<_>>().into_iter().rev() {
            assert_eq!(close(&table, call), Some(i as u64));
        }
        assert!(is_empty(&table));
    }

    #[test]
    fn what_finds_no_room_is_not_opened() {
        let table = table();
        let blocked = Call::at(0x10_0008, 0);
        let mut opened = 0;
        for i in 0..10 * GROUPS as u64 {
            let same_frame = Call::at(0x2000_0008 + i * 2048, 0);
            opened += u64::from(open(&table, same_frame, i) == Opened::New);
        }
        assert_eq!(opened, GROUPS as u64, "one frame of each group");
        assert_eq!(open(&table, blocked, 1), Opened::NoRoom);
        assert_eq!(close(&table, blocked), None);
    }

    #[test]
    fn threads_on_their_own_stacks_lose_and_mix_up_nothing() {
        let table = table();
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let table = &table;
                scope.spawn(move || {
                    let base = 0x7f00_0000_0000 + thread * 0x80_0000;
                    let mut random = thread + 1;
                    for round in 0..if cfg!(miri) { 20 } else { 20_000 } {
                        random = mix(random + round);
                        let depth = random % 64;
                        let calls = || (0..depth).map(|i| Call::at(base - i * 64 + 8, 0));
                        calls().for_each(|c| assert_eq!(open(table, c, thread << 32 | round), Opened::New));
                        calls().for_each(|c| assert_eq!(close(table, c), Some(thread << 32 | round)));
                    }
                });
            }
        });
        assert!(is_empty(&table));
    }
}
