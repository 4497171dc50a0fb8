//! What a hit is asked before its registers are saved.
//!
//! For:     hooks of the general path whose one consumer is a program that begins with such questions.
//! State:   32 bytes of the thread's stack.
//! Context: built in control; run in a hit.
//! Keeps:   H1, H2, H3, H6 as in the parent; the flags are in x17 while they are not the program's, and a thread that is stopped there
//!             has to run on.
//!          H10 a hit is counted once: where a guard does not hold by the add of a compiled count to the cell that is named; where all
//!             hold nothing is counted here, and registers and flags are as at the site.
//! Checked: the parent's `tests` (an abstract run of every step), the machine's test (docs/aarch64.md).
//! Source:  as of `crate::trampoline::guard`.

use super::hit::{self, at};
use super::{Block, GIVE_BACK, SAVE, branch, near, saved};
use crate::trampoline::{Guard, Guarded, Rollback};
use insn::Unreachable;

/// Out of line for each body, behind what all bodies have there: a descriptor, the cell, the way of threads that have no copy.
pub(super) const OUT: usize = 128;
const CELL: usize = 32;
/// Behind the signature.
const SLOW: usize = 44;
/// Questions, count and branches are no longer.
pub(super) const LONGEST: usize = 4 * 40;

const READ_FLAGS: u32 = 0xd53b_4211; // mrs x17, nzcv
const WRITE_FLAGS: u32 = 0xd51b_4211; // msr nzcv, x17
/// Registers from here on are no guard's: two of them are the questions' own.
const SCRATCH: u8 = 16;

impl Block<'_> {
    /// The general path, for hits that a consumer does not turn down.
    pub(super) fn guarded(&mut self, number: usize, desc: u64, guarded: &Guarded) -> Result<(), Unreachable> {
        self.step(Some(Rollback::default()));
        self.put(SAVE);
        self.step(Some(saved()));
        self.put(READ_FLAGS);
        let ways: Vec<usize> = guarded.guards.iter().flatten().map(|guard| self.ask(guard)).collect();
        self.put(WRITE_FLAGS);
        self.step(Some(saved()));
        self.put(GIVE_BACK);
        self.hit(number, desc)?;
        let over = self.bytes.len();
        self.put(0);
        for (way, guard) in ways.into_iter().zip(guarded.guards.iter().flatten()) {
            // The condition's opposite.
            let word = near(0x5400_0000 | u32::from(guard.goes_on ^ 1), way, self.bytes.len());
            self.bytes[way..way + 4].copy_from_slice(&word.to_le_bytes());
        }
        self.turned_down(number, guarded.cell)?;
        let word = branch(over, self.bytes.len());
        self.bytes[over..over + 4].copy_from_slice(&word.to_le_bytes());
        Ok(())
    }

    /// One question, to which the answer is a branch; where that is to stand.
    fn ask(&mut self, guard: &Guard) -> usize {
        debug_assert!(guard.reg < SCRATCH);
        let wide = u32::from(guard.is_wide) << 31;
        let register = u32::from(guard.reg) << 5;
        match guard.constant {
            small @ 0..=0xfff if !guard.is_masked => {
                self.put(0x7100_001f | wide | small.cast_unsigned() << 10 | register); // cmp reg, #small
            }
            constant => {
                self.constant(constant);
                let word = if guard.is_masked { 0x6a10_001f } else { 0x6b10_001f };
                self.put(word | wide | register); // tst or cmp reg, x16
            }
        }
        // The flags are in a register alone.
        self.step(None);
        let way = self.bytes.len();
        self.put(0);
        way
    }

    /// x16 = the constant, sign-extended.
    fn constant(&mut self, constant: i32) {
        let half = |word: u32, bits: i32| word | (bits.cast_unsigned() & 0xffff) << 5;
        match constant {
            0.. => self.put(half(0xd280_0010, constant)), // movz x16, #low
            _ => self.put(half(0x9280_0010, !constant)),  // movn x16, #low
        }
        if constant >> 16 != constant >> 31 {
            self.put(half(0xf2a0_0010, constant >> 16)); // movk x16, #high, lsl #16
        }
    }

    /// Counts a hit that was turned down, and falls through.
    fn turned_down(&mut self, number: usize, cell: u32) -> Result<(), Unreachable> {
        let counted = Rollback { counted: true, ..saved() };
        let of_hit = number * hit::OUT;
        let out = self.request.bodies.len() * hit::OUT + number * OUT;
        self.word_at(out + CELL, cell.into());
        self.step(None);
        self.put(WRITE_FLAGS);
        self.step(Some(saved()));
        let done = self.count_saved(cell, [out, of_hit + at::TABLE, out + SLOW], &counted)?;
        self.slow_way(out + SLOW, [of_hit + at::ALIVE, of_hit + at::CHILDREN, out + CELL], done);
        Ok(())
    }
}

const _: () = assert!(SLOW + 14 * 4 <= OUT && OUT.is_multiple_of(32) && hit::OUT.is_multiple_of(32));
