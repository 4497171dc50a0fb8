//! Getting a thread out of a slot, wherever it stands in it.
//!
//! For:     signals that come during a step, faults of the instruction, a debugger's single steps.
//! State:   none of its own.
//! Context: hit, signal; in the thread that it is about.
//! Keeps:   S1 afterwards the registers are those at the probed instruction, if it has had no effect, else those behind
//!          it; no address of ours is in them.
//!          S2 the slot is given back, once.
//! Checked: `tests::a_thread_is_settled_from_every_instruction`.

use super::area::Area;
use super::release::{Flags, Mark, SAVED};
use super::{PAGE_SLOTS, SLOT_BYTES};
use insn::{At, RELEASE_FRAME_BYTES, RSP, Registers, Resume};

/// What the registers stand for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// They were not in this area, and were not changed.
    Elsewhere,
    /// The instruction at `rip` is still to be run.
    Before,
    /// It was run.
    After,
}

const RED_ZONE: u64 = 128;
/// Carry, parity, adjust, zero, sign: what lahf stores.
const LOW_FLAGS: u64 = 0xd5;
const OVERFLOW: u64 = 0x800;

impl Area {
    /// Takes the thread with these registers out of its slot.
    ///
    /// # Safety
    /// The registers must be those of the calling thread, as it was interrupted by a signal whose handler runs now.
    pub unsafe fn settle(&self, regs: &mut Registers) -> Settled {
        if !self.holds(regs.rip) {
            return Settled::Elsewhere;
        }
        let offset = (regs.rip - self.code) as usize;
        let (number, offset) = (offset / SLOT_BYTES, offset % SLOT_BYTES);
        if number % PAGE_SLOTS == 0 {
            let Some(mark) = self.release.at(offset) else { return Settled::Elsewhere };
            // SAFETY: the caller's duty; the thread is in the routine.
            unsafe { self.leave_routine(mark, regs) };
            return Settled::After;
        }
        // SAFETY: the thread is in the slot, so nobody writes it (C1, C2).
        let Some(code) = (unsafe { *self.slots[number].code.get() }) else { return Settled::Elsewhere };
        let settled = match code.at(offset as u8) {
            At::Before { shift } => {
                lift(regs, i64::from(shift));
                regs.rip = code.addr();
                Settled::Before
            }
            At::After { shift, resume, return_to } => {
                regs.rip = match resume {
                    Resume::At(to) => to,
                    // SAFETY: the slot's code has pushed it there.
                    Resume::OnStack(above) => unsafe { load(regs.general[RSP] + u64::from(above)) },
                };
                lift(regs, i64::from(shift));
                if let Some(return_to) = return_to {
                    // SAFETY: the slot's code has written half of this word already.
                    unsafe { store(regs.general[RSP], return_to) };
                }
                Settled::After
            }
        };
        self.give_back(number);
        settled
    }

    /// # Safety
    /// As for `settle`; the thread must be in the release routine, in the state of `mark`.
    unsafe fn leave_routine(&self, mark: Mark, regs: &mut Registers) {
        let entry = regs.general[RSP].wrapping_add_signed(i64::from(mark.depth));
        // SAFETY: the slot's code has pushed it.
        let number = unsafe { load(entry) };
        // SAFETY: likewise.
        let resume = unsafe { load(entry + 8) };
        let held = match mark.flags {
            Flags::Live => None,
            Flags::InRax => Some(regs.general[0]),
            // SAFETY: the routine has pushed it.
            Flags::Saved(below) => Some(unsafe { load(entry - u64::from(below)) }),
        };
        if let Some(rax) = held {
            let overflow = if matches!(rax as u8, 1 | 0x80) { OVERFLOW } else { 0 };
            regs.flags = regs.flags & !(LOW_FLAGS | OVERFLOW) | rax >> 8 & LOW_FLAGS | overflow;
        }
        for (nth, register) in
            SAVED.iter().take(usize::from(mark.saved)).enumerate().filter(|(_, r)| **r < 16)
        {
            // SAFETY: as above.
            regs.general[usize::from(*register)] = unsafe { load(entry - 8 * (nth as u64 + 1)) };
        }
        regs.general[RSP] = entry + RELEASE_FRAME_BYTES as u64 + RED_ZONE;
        regs.rip = resume;
        if !mark.released {
            self.give_back(number as usize);
        }
    }
}

fn lift(regs: &mut Registers, by: i64) {
    regs.general[RSP] = regs.general[RSP].wrapping_add_signed(by);
}

/// # Safety
/// `at` must be eight bytes of the calling thread's stack.
unsafe fn load(at: u64) -> u64 {
    // SAFETY: the caller's duty.
    unsafe { (at as *const u64).read_unaligned() }
}

/// # Safety
/// As for `load`.
unsafe fn store(at: u64, value: u64) {
    // SAFETY: the caller's duty.
    unsafe { (at as *mut u64).write_unaligned(value) };
}
