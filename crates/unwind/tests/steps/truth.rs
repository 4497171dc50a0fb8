//! The true stacks of a program that is stepped: each call is seen to push its return address, each return to take it.
//!
//! Go has several stacks: one for each goroutine, which moves when it grows, and one for each thread. A return address stands at the same
//! distance from its stack's end wherever that lies.

use std::collections::HashMap;
use sys::ptrace::Regs;

/// Where return addresses are, and what they are, the outermost first. Of a signal what was interrupted.
#[derive(Default)]
pub struct Truth {
    /// Of each stack: how far below its end, and the address.
    stacks: HashMap<u64, Vec<(i64, u64)>>,
    whose: u64,
    end: u64,
    is_go: bool,
}

/// Reads a word of the program's memory.
pub type Word<'a> = &'a mut dyn FnMut(u64) -> Option<u64>;

impl Truth {
    pub fn of(is_go: bool) -> Truth {
        Truth { is_go, ..Truth::default() }
    }

    fn below(&self, slot: u64) -> i64 {
        self.end.wrapping_sub(slot).cast_signed()
    }

    fn push(&mut self, slot: u64, address: u64) {
        let entry = (self.below(slot), address);
        self.stacks.entry(self.whose).or_default().push(entry);
    }

    pub fn step(&mut self, before: &Regs, after: &Regs, top: u64, word: Word<'_>) {
        if self.is_go && after.rsp.abs_diff(before.rsp) > 8 {
            self.find_stack(before, after, top, word);
        }
        let below = self.below(after.rsp);
        let stack = self.stacks.entry(self.whose).or_default();
        while stack.last().is_some_and(|(at, _)| *at > below) {
            stack.pop();
        }
        let is_behind = top > before.rip && top <= before.rip + 15;
        if after.rsp == before.rsp.wrapping_sub(8) && is_behind && after.rip != before.rip {
            self.push(after.rsp, top);
        }
    }

    /// Go says in the thread's block which goroutine runs, and it begins with the bounds of its stack.
    fn find_stack(&mut self, before: &Regs, after: &Regs, top: u64, word: Word<'_>) {
        let goroutine = word(after.fs_base.wrapping_sub(8)).unwrap_or(0);
        let bounds = word(goroutine).zip(word(goroutine + 8));
        let inside = bounds.filter(|(start, end)| (*start..=*end).contains(&after.rsp));
        let (whose, end) = inside.map_or((0, 0), |(_, end)| (goroutine, end));
        let moved = end.wrapping_sub(self.end).cast_signed();
        let was = std::mem::replace(&mut self.whose, whose);
        self.end = end;
        if was == whose {
            return;
        }
        // The first stack gets its goroutine while it is in use.
        if was == 0 && after.rsp.abs_diff(before.rsp) < 1 << 16 {
            let begun = self.stacks.remove(&0).unwrap_or_default();
            let begun = begun.into_iter().map(|(below, address)| (below + moved, address));
            self.stacks.insert(whose, begun.collect());
        } else if whose != 0 && !self.stacks.contains_key(&whose) {
            // A goroutine begins as if what ends it had called it.
            self.push(after.rsp, top);
        }
    }

    pub fn signal(&mut self, before: &Regs, after: &Regs, restorer: u64) {
        self.push(after.rsp + 8, before.rip);
        self.push(after.rsp, restorer);
    }

    pub fn frames(&self, pc: u64) -> Vec<u64> {
        let mut frames = vec![pc];
        let stack = self.stacks.get(&self.whose).into_iter().flatten();
        frames.extend(stack.rev().map(|(_, address)| *address));
        frames
    }
}
