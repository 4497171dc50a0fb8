//! A walk that is remembered.
//!
//! For:     stack.rs: most hits of a thread come with few stacks.
//! State:   in the hit's working memory: where a walk began, each word that it hung on, and what was found.
//! Context: hit; the working memory is the hit's alone.
//! Keeps:   M1 what is recalled is what a walk would find now: it hangs on nothing but what is compared (`unwind`, W4).
//!          M2 nothing outside of the thread's stack is read, whatever stands in the memory: each word's distance is compared.
//!          M3 what is half written is not recalled: `pc` is 0 until all stands.
//! Checked: crate `unwind`, tests/steps (M1); testkit `stacks`; tests below.
//!
//! A walk is a chain of reads, each of which waits for the one before and for the table between. Whether the same words stand
//! where they stood can be asked of all of them at once.

use crate::handler::PtRegs;
use unwind::{KEPT_IN_PT_REGS, Reg, Stop};
use wire::{WALK_CHECKS, WALK_MEMOS, WalkMemo};

/// The highest bit of `most`.
const AT_ENTRY: u32 = 1 << 31;

/// What a walk begins with.
pub(super) struct Key {
    pub pc: u64,
    pub sp: u64,
    pub end: u64,
    pub tables: u32,
    pub most: usize,
    pub is_entry: bool,
}

impl Key {
    /// Where such a walk is remembered: walks that begin elsewhere, or whose caller is another one, at other places.
    #[inline(always)]
    pub fn place(&self) -> usize {
        let is_there = self.is_entry && self.sp.checked_add(8).is_some_and(|next| next <= self.end);
        let top = match is_there {
            // SAFETY: inside of the thread's stack, above where it runs.
            true => unsafe { (self.sp as *const u64).read_unaligned() },
            false => 0,
        };
        let mixed =
            (self.sp ^ self.pc.rotate_left(20) ^ top.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> (64 - WALK_MEMOS.ilog2())) as usize
    }

    #[inline(always)]
    fn most(&self) -> u32 {
        self.most as u32 | if self.is_entry { AT_ENTRY } else { 0 }
    }

    /// The stack's number, its length and why it ends, if a walk that began so would find it again.
    #[inline(always)]
    pub fn recall(&self, memo: &WalkMemo, regs: &PtRegs) -> Option<(u32, usize, Stop)> {
        let is_same = memo.pc == self.pc
            && memo.sp == self.sp
            && memo.end == self.end
            && memo.tables == self.tables
            && memo.most == self.most();
        if !is_same || (memo.registers != 0 && !have(memo, regs)) {
            return None;
        }
        let room = self.end.checked_sub(self.sp)?.checked_sub(8)?;
        for [above, value] in memo.checks.get(..memo.words as usize)? {
            if *above > room {
                return None;
            }
            let at = self.sp.wrapping_add(*above) as *const u64;
            // SAFETY: inside of the thread's stack (compared), above where it runs.
            if unsafe { at.read_unaligned() } != *value {
                return None;
            }
        }
        Some((memo.number, memo.len as usize, Stop::of(memo.stop)))
    }
}

/// Whether the registers that the walk hung on are as they were.
#[inline(always)]
fn have(memo: &WalkMemo, regs: &PtRegs) -> bool {
    KEPT_IN_PT_REGS.into_iter().all(|(reg, at)| {
        let number = reg as usize;
        memo.registers >> number & 1 == 0 || memo.values.get(number) == Some(&regs.at(at.into()))
    })
}

/// A walk that may be remembered.
pub(super) struct Record<'a> {
    memo: &'a mut WalkMemo,
    sp: u64,
    /// Words so far; more than there is room for if it cannot be remembered.
    words: usize,
}

impl<'a> Record<'a> {
    #[inline(always)]
    pub fn of(memo: &'a mut WalkMemo, sp: u64) -> Record<'a> {
        memo.pc = 0;
        memo.registers = 0;
        Record { memo, sp, words: 0 }
    }

    #[inline(always)]
    pub fn word(&mut self, addr: u64, value: u64) {
        match self.memo.checks.get_mut(self.words) {
            Some(to) => {
                *to = [addr.wrapping_sub(self.sp), value];
                self.words += 1;
            }
            None => self.give_up(),
        }
    }

    /// Two of them, each an address and what stands there.
    #[inline(always)]
    pub fn two_words(&mut self, first: [u64; 2], second: [u64; 2]) {
        match self.memo.checks.get_mut(self.words..self.words.wrapping_add(2)) {
            Some([to, next]) => {
                *to = [first[0].wrapping_sub(self.sp), first[1]];
                *next = [second[0].wrapping_sub(self.sp), second[1]];
                self.words += 2;
            }
            _ => self.give_up(),
        }
    }

    #[inline(always)]
    pub fn register(&mut self, reg: Reg, value: u64) {
        if let Some(to) = self.memo.values.get_mut(reg as usize) {
            *to = value;
            self.memo.registers |= 1 << reg as u64;
        }
    }

    #[inline(always)]
    pub fn give_up(&mut self) {
        self.words = WALK_CHECKS + 1;
    }

    /// The walk is over.
    #[inline(always)]
    pub fn keep(self, key: &Key, number: u32, len: usize, stop: Stop) {
        if self.words > WALK_CHECKS {
            return;
        }
        let memo = self.memo;
        (memo.sp, memo.end, memo.tables, memo.most) = (key.sp, key.end, key.tables, key.most());
        (memo.number, memo.len, memo.stop, memo.words) = (number, len as u32, stop as u32, self.words as u32);
        memo.pc = key.pc;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(stack: &[u64; 8]) -> Key {
        let sp = stack.as_ptr() as u64;
        Key { pc: 0x1000, sp, end: sp + 64, tables: 3, most: 127, is_entry: true }
    }

    fn nothing() -> WalkMemo {
        // SAFETY: numbers alone, which may be 0.
        unsafe { core::mem::zeroed() }
    }

    #[test]
    fn a_walk_is_recalled_as_long_as_all_that_it_hung_on_is_the_same() {
        let (mut stack, mut memo, mut regs) = ([7u64; 8], nothing(), PtRegs::default());
        assert!(key(&stack).recall(&memo, &regs).is_none(), "nothing is remembered");
        let at = |stack: &[u64; 8], n: usize| stack.as_ptr() as u64 + 8 * n as u64;
        let mut record = Record::of(&mut memo, at(&stack, 0));
        record.word(at(&stack, 0), 7);
        record.word(at(&stack, 7), 7);
        record.register(Reg::Rbp, 0);
        record.keep(&key(&stack), 40, 3, Stop::NoFrame);
        assert_eq!(key(&stack).recall(&memo, &regs), Some((40, 3, Stop::NoFrame)));
        stack[3] = 8;
        assert!(key(&stack).recall(&memo, &regs).is_some(), "it did not hang on this word");
        stack[7] = 8;
        assert!(key(&stack).recall(&memo, &regs).is_none(), "a word");
        stack[7] = 7;
        for other in [
            Key { pc: 0x1001, ..key(&stack) },
            Key { end: key(&stack).end - 8, ..key(&stack) },
            Key { tables: 4, ..key(&stack) },
            Key { most: 5, ..key(&stack) },
            Key { is_entry: false, ..key(&stack) },
        ] {
            assert!(other.recall(&memo, &regs).is_none());
        }
        regs.set(32, 1);
        assert!(key(&stack).recall(&memo, &regs).is_none(), "a register");
    }

    #[test]
    fn what_is_remembered_leads_nowhere_but_to_the_stack() {
        let (stack, mut memo, regs) = ([7u64; 8], nothing(), PtRegs::default());
        Record::of(&mut memo, key(&stack).sp).keep(&key(&stack), 1, 1, Stop::Outermost);
        assert!(key(&stack).recall(&memo, &regs).is_some());
        memo.words = 1;
        for above in [57, 64, 1 << 40, u64::MAX, 0u64.wrapping_sub(8)] {
            memo.checks[0] = [above, 7];
            assert!(key(&stack).recall(&memo, &regs).is_none(), "{above:#x}");
        }
        memo.words = u32::MAX;
        assert!(key(&stack).recall(&memo, &regs).is_none(), "more words than there are");
    }

    #[test]
    fn too_long_a_walk_is_not_remembered() {
        let (stack, mut memo, regs) = ([7u64; 8], nothing(), PtRegs::default());
        let mut record = Record::of(&mut memo, key(&stack).sp);
        (0..=WALK_CHECKS).for_each(|_| record.word(key(&stack).sp, 7));
        record.keep(&key(&stack), 1, 1, Stop::Outermost);
        assert!(key(&stack).recall(&memo, &regs).is_none());
        for (words, is_kept) in [(WALK_CHECKS - 1, false), (WALK_CHECKS - 2, true)] {
            let sp = key(&stack).sp;
            let mut record = Record::of(&mut memo, sp);
            (0..words).for_each(|_| record.word(sp, 7));
            record.two_words([sp, 7], [sp + 8, 7]);
            record.keep(&key(&stack), 1, 1, Stop::Outermost);
            assert_eq!(key(&stack).recall(&memo, &regs).is_some(), is_kept, "two words behind {words}");
        }
        for (n, others) in [[8, 7], [7, 8]].into_iter().enumerate() {
            let sp = key(&stack).sp;
            let mut record = Record::of(&mut memo, sp);
            record.two_words([sp, others[0]], [sp + 8, others[1]]);
            record.keep(&key(&stack), 1, 1, Stop::Outermost);
            assert!(key(&stack).recall(&memo, &regs).is_none(), "word {n} is another");
        }
    }
}
