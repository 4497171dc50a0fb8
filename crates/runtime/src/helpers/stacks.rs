//! The stack of the thread that a program runs in.
//!
//! For:     programs: `ustack`.
//! State:   the stacks that were seen, in the arena.
//! Context: hit. No system call; a walk is bounded by the frames that are asked for, and by 127.
//! Keeps:   K1 what a program gets is the number of a whole stack, or no frame at all; why is counted.
//!          K2 equal stacks of a process are equal bytes.
//! Checked: testkit `stacks`; see `stack` for what is read.

use crate::around::{Around, errno};
use crate::cell::Adder;
use crate::handler::PtRegs;
use crate::stack::Walker;
use core::marker::PhantomData;
use unwind::Stop;
use wire::maps::HelperError;
use wire::{ConsumerDesc, Hit, WALK_AT_ENTRY, WalkDesc, walk_cell};

/// Bytes of a stack: its number (in the upper half whose, among those that share the maps), how many frames it has, the process.
const LEN: u64 = 24;

impl Around<'_> {
    /// (to, frames) -> 0 or an error: the thread's stack, as far as so many frames.
    ///
    /// # Safety
    /// It must be the hit that runs, with the registers saved that calls keep, rbx and r10.
    #[inline(never)]
    pub unsafe fn user_stack<A: Adder>(&self, hit: &Hit, to: u64, most: u64) -> u64 {
        let Some(to) = self.bytes_mut(to, LEN) else {
            return self.refused(HelperError::BadArgument, errno::EINVAL);
        };
        // SAFETY: passed on from the caller.
        let (number, frames) = match unsafe { self.numbered::<A>(hit, most) } {
            Ok((number, len)) => (u64::from(self.site.family) << 32 | u64::from(number), len as u64),
            Err(cause) => {
                self.failed(cause);
                (0, 0)
            }
        };
        let process = self.process_and_thread::<A>() >> 32;
        let words = [number, frames, if frames > 0 { process } else { 0 }];
        for (to, word) in to.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_ne_bytes();
        }
        if frames > 0 || most == 0 { 0 } else { errno::ENOENT }
    }

    /// The stack's number and length; or why it has none.
    ///
    /// # Safety
    /// As for [`Around::user_stack`].
    #[inline(always)]
    unsafe fn numbered<A: Adder>(&self, hit: &Hit, most: u64) -> Result<(u32, usize), HelperError> {
        let consumer = hit.consumer as *const ConsumerDesc;
        // SAFETY: the consumer's description lives as long as a list leads to it; there is none outside of a hit.
        let walk = unsafe { consumer.as_ref() }.map_or(0, |consumer| consumer.walk);
        // SAFETY: a description in the arena, which lives as long as this code; or there is none.
        let Some(desc) = (unsafe { (walk as *const WalkDesc).as_ref() }) else {
            return Err(HelperError::NoHelper);
        };
        // SAFETY: the saved registers of the hit (contract).
        let regs = unsafe { &*(hit.regs as *const PtRegs) };
        let flags = if self.site.is_edge != 0 { WALK_AT_ENTRY } else { 0 };
        let walker = Walker::<A> { regs, site: self.site, flags, copy: self.copy, desc, adder: PhantomData };
        // SAFETY: passed on from the caller.
        let (number, stop) = unsafe { walker.number(usize::try_from(most).unwrap_or(usize::MAX)) };
        match stop {
            Stop::Outermost | Stop::Depth => {}
            Stop::NotStack => self.failed(HelperError::StackNotKnown),
            Stop::NoFrame => self.failed(HelperError::StackNoFrame),
            Stop::Unknown => self.failed(HelperError::StackUnknown),
            Stop::NotUp => self.failed(HelperError::StackNotUp),
        }
        number.map_err(|cell| match cell {
            walk_cell::NO_SPACE => HelperError::StackBusy,
            walk_cell::CHILD => HelperError::StackOfChild,
            _ => HelperError::StackFull,
        })
    }
}
