//! Calls that are open: where each began, by its place on a stack.
//!
//! For:     durations of calls, without a thread's identity and without touching a return address.
//! State:   groups of frames: a key and a stamp each. A call is found by the place of its return address, which no other
//!          live call has.
//! Context: hit, signal, target: a handler that interrupts us runs deeper on the same stack, or on another one, and so
//!          never has our key. `in_use` also in another process, and in one that does not trust the others.
//! Keeps:   F1 a frame's key is 0 or that of one call; whoever sets it from 0 or replaces it owns the frame.
//!          F2 opened = closed + replaced + in use, and what found no room was not opened.
//! Checked: tests/frames.rs (F2, threads), tests/untrusted.rs, model `frames` (mutant no-claim), testkit `returns`.
//! Source:  a return address's place as a call's identity: the kernel compares it too (return_instance.stack,
//!          kernel-facts 1.12).
//!
//! Neighbours on one stack are neighbours here: a thread writes the lines that it wrote a moment ago, and two threads
//! meet in a line only if their stacks' blocks share a group. It is a hash all the same, with these differences: an entry
//! is changed by its owner alone, so there is no version; a key that finds no room is refused, so there is no chain.

#[cfg(not(loom))]
use crate::Error;
#[cfg(not(loom))]
use crate::place::Checked;
use crate::place::{Access, Place};
use crate::prim::{Acquire, Relaxed, Release};
use core::ptr::NonNull;

/// Groups of frames; each serves blocks of stack of [`BLOCK_BYTES`].
const GROUPS: usize = if cfg!(loom) { 1 } else { 4096 };
/// Frames of a group, one for each place that a return address can have in a block.
const FRAMES: usize = if cfg!(loom) { 2 } else { 128 };
/// Bytes of stack that share a group: 16 for each frame.
const BLOCK_BYTES: u64 = 16 * 128;
/// Groups in which a call may be found.
const WAYS: usize = if cfg!(loom) { 1 } else { 4 };

/// A frame: the key, 0 for none, and the stamp.
const STAMP: usize = 8;
const FRAME: usize = 16;

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
        Call { key, block: place / BLOCK_BYTES, frame: (place >> 4) as usize }
    }

    /// In a goroutine, whose stack may move: its address, and how far the place is from the stack's end.
    #[inline(always)]
    pub fn in_goroutine(g: u64, depth: u64, function: u32) -> Call {
        let block = mix(g).wrapping_add(depth >> 10);
        // Two calls may share a key once in 2^48 pairs: a wrong duration, nothing else.
        let key = mix(mix(g) ^ depth ^ u64::from(function) << 48) | 1;
        Call { key, block, frame: (depth >> 3) as usize }
    }

    /// Which call, as one word: the same at its entry and its exits.
    #[inline(always)]
    pub fn key(self) -> u64 {
        self.key
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

/// The table of open calls. It has no head: its size is always the same.
#[derive(Clone, Copy, Debug)]
pub struct Frames<M = Place> {
    place: M,
}

impl Frames {
    /// Bytes of a table. Pages that no call comes by are never touched.
    pub const BYTES: usize = GROUPS * FRAMES * FRAME;

    /// The table at this address.
    ///
    /// # Safety
    /// So many bytes must lie there, at a multiple of 8, zeros at first, and be used by tables alone as long as the value is.
    #[inline(always)]
    pub unsafe fn at(base: NonNull<u8>) -> Frames {
        // SAFETY: the caller's promise.
        Frames { place: unsafe { Place::new(base) } }
    }

    /// Opens a call with this stamp.
    #[inline(always)]
    pub fn open(&self, call: Call, stamp: u64) -> Opened {
        for way in 0..WAYS {
            let frame = self.frame(call, way);
            let (key, to) = (frame.u64(0), frame.u64(STAMP));
            // Frames are set from 0 by whoever gets there first; a key of ours can only be ours.
            let mut found = key.load(Relaxed);
            if found == 0 {
                #[cfg(mutant = "no-claim")]
                let claimed = {
                    key.store(call.key, Relaxed);
                    Ok::<u64, u64>(0)
                };
                // [MAP-17] Orders the last owner's reading of the stamp before ours is written. Pairs with [MAP-16].
                #[cfg(not(mutant = "no-claim"))]
                let claimed = key.compare_exchange(0, call.key, Acquire, Relaxed);
                match claimed {
                    Ok(_) => {
                        to.store(stamp, Relaxed);
                        return Opened::New;
                    }
                    Err(other) => found = other,
                }
            }
            if is_same_place(found, call.key)
                && key.compare_exchange(found, call.key, Relaxed, Relaxed).is_ok()
            {
                to.store(stamp, Relaxed);
                return Opened::InsteadOfOther;
            }
        }
        Opened::NoRoom
    }

    /// Closes a call and returns its stamp, `None` if it was not opened.
    #[inline(always)]
    pub fn close(&self, call: Call) -> Option<u64> {
        for way in 0..WAYS {
            let frame = self.frame(call, way);
            if frame.u64(0).load(Relaxed) == call.key {
                let stamp = frame.u64(STAMP).load(Relaxed);
                // [MAP-16] The frame is free for others once they see 0; they write the stamp after that, and we have read
                // it before. Pairs with [MAP-17].
                frame.u64(0).store(0, Release);
                return Some(stamp);
            }
        }
        None
    }

    #[inline(always)]
    fn frame(&self, call: Call, way: usize) -> Place {
        let group = (mix(call.block) >> 16) as usize + way * (GROUPS / WAYS + 1);
        self.place.at((group % GROUPS * FRAMES + call.frame % FRAMES) * FRAME)
    }
}

#[cfg(not(loom))]
impl<'a> Frames<Checked<'a>> {
    /// The table at an offset in memory that somebody else writes.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it does not fit there.
    pub fn in_untrusted(arena: wire::Untrusted<'a>, offset: usize) -> Result<Self, Error> {
        let place = Checked::new(arena, offset, Frames::BYTES).ok_or(Error::Damaged)?;
        Ok(Frames { place })
    }
}

impl<M: Access> Frames<M> {
    /// How many calls are open; exact while none begins or ends.
    pub fn in_use(&self) -> u64 {
        let keys = (0..Frames::BYTES).step_by(FRAME).map(|at| self.place.at(at));
        keys.filter(|frame| frame.u64(0).load(Relaxed) != 0).count() as u64
    }
}

/// A call whose return address lies where that of a newer call lies is over, whichever function it was.
#[inline(always)]
fn is_same_place(a: u64, b: u64) -> bool {
    (a ^ b) << 16 == 0
}
