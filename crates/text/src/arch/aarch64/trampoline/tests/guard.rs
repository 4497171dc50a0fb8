//! The same of blocks that ask before they save.

use super::hit::before;
use super::*;
use crate::trampoline::{Guard, Guarded};

const GUARDED_CELL: u32 = 0x2058;
const NEGATIVE: u64 = 1 << 31;
const ZERO: u64 = 1 << 30;
const CARRY: u64 = 1 << 29;
const OVERFLOW: u64 = 1 << 28;

impl Thread {
    /// Instructions of questions; false if it is none of them.
    pub(super) fn step_of_guard(&mut self, word: u32) -> bool {
        let (rt, rn, by) = ((word & 31) as usize, (word >> 5 & 31) as usize, (word >> 16 & 31) as usize);
        let half = u64::from(word >> 5 & 0xffff);
        let is_wide = word >> 31 == 1;
        match word & 0x7fff_ffff {
            _ if word == 0xd53b_4211 => self.x[17] = self.flags,
            _ if word == 0xd51b_4211 => self.flags = self.x[17],
            _ if word & 0xffe0_001f == 0xd280_0010 => self.x[16] = half,
            _ if word & 0xffe0_001f == 0x9280_0010 => self.x[16] = !half,
            _ if word & 0xffe0_001f == 0xf2a0_0010 => {
                self.x[16] = self.x[16] & !0xffff_0000 | half << 16;
            }
            // add x16, x16, #number, lsl #12
            _ if word & 0xffc0_03ff == 0x9140_0210 => self.x[16] += u64::from(word >> 10 & 0xfff) << 12,
            // cmp with a number, cmp, tst
            it if it & 0xffc0_001f == 0x7100_001f => {
                self.subtract(is_wide, self.x[rn], u64::from(word >> 10 & 0xfff));
            }
            it if it & 0xffe0_fc1f == 0x6b00_001f => self.subtract(is_wide, self.x[rn], self.x[by]),
            it if it & 0xffe0_fc1f == 0x6a00_001f => {
                let both = self.x[rn] & self.x[by] & if is_wide { u64::MAX } else { 0xffff_ffff };
                let sign = if is_wide { both >> 63 } else { both >> 31 & 1 };
                self.flags = (sign * NEGATIVE) | (u64::from(both == 0) * ZERO);
            }
            _ if word & 0xff00_0010 == 0x5400_0000 => self.branch_on(rt, word),
            _ => return false,
        }
        true
    }

    /// What the processor's manual says of a subtraction's flags.
    fn subtract(&mut self, is_wide: bool, a: u64, b: u64) {
        let (a, b, sign) = match is_wide {
            true => (a, b, 1 << 63),
            false => (a & 0xffff_ffff, b & 0xffff_ffff, 1 << 31),
        };
        let result = a.wrapping_sub(b) & (sign | (sign - 1));
        let has = |is: bool, flag: u64| if is { flag } else { 0 };
        self.flags = has(result & sign != 0, NEGATIVE)
            | has(result == 0, ZERO)
            | has(a >= b, CARRY)
            | has((a ^ b) & (a ^ result) & sign != 0, OVERFLOW);
    }

    fn branch_on(&mut self, condition: usize, word: u32) {
        let is = |flag: u64| self.flags & flag != 0;
        let holds = match condition >> 1 {
            0 => is(ZERO),
            1 => is(CARRY),
            2 => is(NEGATIVE),
            3 => is(OVERFLOW),
            4 => is(CARRY) && !is(ZERO),
            5 => is(NEGATIVE) == is(OVERFLOW),
            6 => is(NEGATIVE) == is(OVERFLOW) && !is(ZERO),
            _ => panic!("always"),
        };
        if holds == (condition & 1 == 0) {
            self.pc = self.pc.wrapping_add(signed(word, 5, 19) << 2);
        }
    }
}

fn body(guards: [Option<Guard>; 2]) -> Body {
    let guard = Some(Guarded { cell: GUARDED_CELL, guards });
    Body::Hit { desc: super::hit::DESC, uses: insn::RegSet::default(), guard }
}

/// A thread whose x3 and x4 are these.
fn with(block: &Trampoline, (x3, x4): (u64, u64), cpu: u32, alive: u64) -> Thread {
    let mut thread = before(block, cpu, alive);
    thread.memory.extend([COPY, ALL, CHILDREN].map(|copy| (copy + u64::from(GUARDED_CELL), 0)));
    (thread.x[3], thread.x[4]) = (x3, x4);
    thread
}

fn turned_down(thread: &Thread) -> u64 {
    [COPY, ALL, CHILDREN].iter().map(|copy| thread.memory[&(copy + u64::from(GUARDED_CELL))]).sum()
}

/// Runs a hit: whether it was turned down, which is counted once; nobody is called then. Checks what a stopped thread is told.
fn is_turned_down(block: &Trampoline, mut thread: Thread) -> bool {
    let start = thread.x;
    let mut runs_on = 0;
    for _ in 0..200 {
        if thread.pc == SITE + 4 {
            assert_eq!((thread.sp, thread.flags, thread.x[0]), (STACK, FLAGS, start[0] + 1));
            assert_eq!(thread.x[1..], start[1..]);
            assert_eq!((thread.memory[&(STACK - 8)], thread.memory[&(STACK - 16)]), (0x60, 0x61));
            let (calls, counted) = (thread.calls.len() as u64, turned_down(&thread));
            assert_eq!(calls + 2 * counted, 2, "handled by both consumers, or turned down");
            assert!(counted == 0 || runs_on <= 8, "{runs_on}");
            return counted == 1;
        }
        match block.place_of(thread.pc) {
            Some(PcPlace::Body(back)) => {
                let (mut x, mut flags) = (thread.x, thread.flags);
                for saved in &back.saved {
                    x[usize::from(saved.number)] = thread.load(thread.sp + u64::from(saved.slot));
                }
                if let Some(slot) = back.flags {
                    flags = thread.load(thread.sp + u64::from(slot));
                }
                let at = thread.pc - AT;
                assert_eq!((x, flags), (start, FLAGS), "at {at:#x}");
                assert_eq!(thread.sp + u64::from(back.rsp_add), STACK, "at {at:#x}");
                let is_counted = turned_down(&thread) == 1 || !thread.calls.is_empty();
                assert_eq!(back.counted, is_counted, "at {at:#x}");
            }
            Some(PcPlace::Elsewhere) => runs_on += 1,
            _ => {}
        }
        thread.step();
    }
    panic!("it does not come out");
}

#[test]
fn a_hit_that_is_turned_down_is_counted_once_and_calls_nobody() {
    let wide = Guard { reg: 3, is_wide: true, is_masked: false, constant: 7, goes_on: 0 };
    let masked = Guard { reg: 4, is_wide: false, is_masked: true, constant: 0x1_0000, goes_on: 1 };
    let block = block_of(THREADS, Flavour::Lite, &[body([Some(wide), Some(masked)])]);
    assert!(block.bytes.len() <= len_bound(1, true));
    for (registers, holds) in [((7, 0x1_0000), true), ((8, 0x1_0000), false), ((7, 0xffff), false)] {
        assert_eq!(is_turned_down(&block, with(&block, registers, 1, ALL)), !holds, "{registers:x?}");
    }
    // Threads that have no copy: not registered; of a forked child. In such a way each thread runs on.
    let shared = block_of(None, Flavour::Normal, &[body([Some(wide), None])]);
    for (block, cpu, alive, copy) in
        [(&block, u32::MAX, ALL, ALL), (&block, u32::MAX, 0, CHILDREN), (&shared, 1, ALL, ALL)]
    {
        let mut thread = with(block, (8, 0), cpu, alive);
        while thread.pc != SITE + 4 {
            thread.step();
        }
        assert_eq!((turned_down(&thread), thread.calls.len()), (1, 0));
        assert_eq!(thread.memory[&(copy + u64::from(GUARDED_CELL))], 1);
        assert_eq!((thread.sp, thread.flags, thread.x[17]), (STACK, FLAGS, 0x1011));
    }
}

/// Of two words, and of the same as signed numbers.
type Holds = fn(u64, u64, i64, i64) -> bool;

#[test]
fn every_comparison_answers_as_the_numbers_compare() {
    let constants = [0, 1, 0xfff, 0x1000, 0x1_2345, i32::MAX, -1, -2, -0x1_0000, -0x1_2345, i32::MIN];
    let ways: [(u8, Holds); 10] = [
        (0, |a, b, _, _| a == b),
        (1, |a, b, _, _| a != b),
        (2, |a, b, _, _| a >= b),
        (3, |a, b, _, _| a < b),
        (8, |a, b, _, _| a > b),
        (9, |a, b, _, _| a <= b),
        (10, |_, _, a, b| a >= b),
        (11, |_, _, a, b| a < b),
        (12, |_, _, a, b| a > b),
        (13, |_, _, a, b| a <= b),
    ];
    for constant in constants {
        let wide = i64::from(constant).cast_unsigned();
        for near in [0, 1, u64::MAX, 1 << 32, 1 << 63] {
            let word = wide.wrapping_add(near);
            for is_wide in [true, false] {
                let cut = |word: u64| if is_wide { word } else { word & 0xffff_ffff };
                let signed = |word: u64| if is_wide { word.cast_signed() } else { i64::from(word as i32) };
                for (goes_on, holds) in ways {
                    let guard = Guard { reg: 3, is_wide, is_masked: false, constant, goes_on };
                    let block = block_of(THREADS, Flavour::Lite, &[body([Some(guard), None])]);
                    let down = is_turned_down(&block, with(&block, (word, 0), 1, ALL));
                    let want = holds(cut(word), cut(wide), signed(word), signed(wide));
                    assert_eq!(!down, want, "{word:#x} {goes_on} {constant:#x}, {is_wide}");
                }
                let guard = Guard { reg: 3, is_wide, is_masked: true, constant, goes_on: 1 };
                let block = block_of(THREADS, Flavour::Lite, &[body([Some(guard), None])]);
                let down = is_turned_down(&block, with(&block, (word, 0), 1, ALL));
                assert_eq!(!down, cut(word) & cut(wide) != 0, "{word:#x} & {constant:#x}, {is_wide}");
            }
        }
    }
}

#[test]
fn a_hit_that_is_interrupted_when_it_is_turned_down_is_counted_once() {
    let guard = Guard { reg: 3, is_wide: true, is_masked: false, constant: 7, goes_on: 0 };
    let block = block_of(THREADS, Flavour::Lite, &[body([Some(guard), None])]);
    // Behind what each body of the general path has out of line.
    let word = |at: usize| u64::from_le_bytes(block.bytes[256 + at..][..8].try_into().unwrap());
    let (start, len, abort) = (word(8), word(16), word(24));
    assert_eq!(block.bytes[(abort - AT) as usize - 4..][..4], percpu::SIGNATURE_A64.to_le_bytes());
    for pc in (start..start + len).step_by(4) {
        let mut thread = with(&block, (8, 0), 1, ALL);
        while thread.pc != pc {
            thread.step();
        }
        thread.pc = abort;
        while thread.pc != SITE + 4 {
            thread.step();
        }
        assert_eq!((turned_down(&thread), thread.sp, thread.flags), (1, STACK, FLAGS));
        assert_eq!(thread.x[1..], with(&block, (8, 0), 1, ALL).x[1..]);
    }
}
