//! Random processor states and instruction bytes, from a printed seed.
//!
//! For:     main.rs.
//! State:   that of the seed.
//! Context: test only.
//! Keeps:   G1 the same seed gives the same cases.
//! Checked: by rerunning a printed seed.

use crate::machine::{CODE, CODE_LEN, DATA, DATA_LEN, FLAGS, STACK, STACK_LEN, State};
use crate::seed::Seed;

/// Random numbers, and what is made of them.
pub struct Random(Seed);

impl Random {
    /// From `NANOPROBE_SEED`, or the clock; the seed is printed.
    pub fn from_env(what: &str) -> Random {
        Random(Seed::from_env(what))
    }

    pub fn next(&mut self) -> u64 {
        self.0.next()
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0.below(limit)
    }

    pub fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.next() as u8)
    }

    /// An address of int3 in the code region, away from the code under test in its first half.
    pub fn landing(&mut self) -> u64 {
        CODE + CODE_LEN as u64 / 2 + self.below(CODE_LEN as u64 / 2 - 16)
    }

    /// An address well inside the data region.
    pub fn data_addr(&mut self) -> u64 {
        (DATA + DATA_LEN as u64 / 4 + self.below(DATA_LEN as u64 / 2)) & !15
    }

    fn value(&mut self) -> u64 {
        match self.below(8) {
            0..=2 => self.data_addr() + self.below(16),
            3 => self.landing(),
            4 => self.below(256),
            5 => self.below(256).wrapping_neg(),
            6 => STACK + STACK_LEN as u64 / 2 + 8 * self.below(64),
            _ => self.next() | 1 << 62, // not canonical
        }
    }

    /// All registers random, half of them pointers; the stack pointer in the middle of the stack.
    pub fn state(&mut self) -> State {
        let mut regs = std::array::from_fn(|_| self.value());
        regs[4] = STACK + STACK_LEN as u64 / 2 + 8 * self.below(32);
        if self.one_in(2) {
            regs[1] = self.below(4); // a small rcx for loops, shifts and repeats
        }
        let direction = if self.one_in(8) { 0 } else { 0x400 };
        State { regs, flags: self.next() & FLAGS & !direction, xmm: self.bytes() }
    }

    /// Every register points into data, so that hardly any instruction faults.
    pub fn calm_state(&mut self) -> State {
        let mut state = self.state();
        for number in (0..16).filter(|number| *number != 4) {
            state.regs[number] = if self.one_in(4) { self.below(64) } else { self.data_addr() };
        }
        state.flags &= !0x400;
        state
    }

    /// Memory of random words, half of them landing addresses.
    pub fn memory(&mut self, len: usize) -> Vec<u8> {
        let word = |random: &mut Random| if random.one_in(2) { random.landing() } else { random.next() };
        (0..len / 8).flat_map(|_| word(self).to_le_bytes()).collect()
    }

    /// Memory that holds a landing address at each word.
    pub fn landings(&mut self, len: usize) -> Vec<u8> {
        (0..len / 8).flat_map(|_| self.landing().to_le_bytes()).collect()
    }
}
