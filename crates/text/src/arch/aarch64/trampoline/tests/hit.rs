//! The same of blocks that call consumers: handlers that write all that a function may.

use super::super::hit::ABOVE;
use super::*;
use wire::cell;

pub(super) const DESC: u64 = 0x6300_0000_0000;
const CONSUMERS: [u64; 2] = [0x6400_0000_0000, 0x6400_0000_0040];
const HANDLER: u64 = 0x6500_0000_0000;
const REGISTERS_BYTES: u64 = 34 * 8;

fn hit() -> Body {
    Body::Hit { desc: DESC, uses: insn::RegSet::default(), guard: None }
}

impl Thread {
    /// Instructions that the general path alone has; false if it is none of them.
    pub(super) fn step_of_hit(&mut self, word: u32) -> bool {
        let (rt, rn, second) = ((word & 31) as usize, (word >> 5 & 31) as usize, (word >> 10 & 31) as usize);
        let (immediate, by) = (u64::from(word >> 10 & 0xfff), (word >> 16 & 31) as usize);
        match word {
            _ if word & 0xffc0_03ff == 0xd100_03ff => self.sp -= immediate,
            _ if word & 0xffc0_03ff == 0x9100_03ff => self.sp += immediate,
            0x9100_03e0 => self.x[0] = self.sp,
            _ if word & 0xffc0_0000 == 0x9100_0000 && rn != 31 && rt != 31 && word != ORIGINAL => {
                self.x[rt] = self.x[rn] + immediate;
            }
            _ if word & 0xffc0_0000 == 0xa900_0000 => {
                let at = self.base(rn).wrapping_add(signed(word, 15, 7) << 3);
                self.store(at, self.x[rt]);
                self.store(at + 8, self.x[second]);
            }
            _ if word & 0xffc0_0000 == 0xa940_0000 => {
                let at = self.base(rn).wrapping_add(signed(word, 15, 7) << 3);
                (self.x[rt], self.x[second]) = (self.load(at), self.load(at + 8));
            }
            0xd53b_4210 => self.x[16] = self.flags,
            0xd51b_4210 => self.flags = self.x[16],
            0xd503_3bbf => {}
            0xd280_0033 => self.x[19] = 1,
            0xb27b_0273 => self.x[19] |= table::CHILD,
            0xb940_3211 => self.x[17] = self.word(self.x[16] + u64::from(cell::RANK)).into(),
            0x121c_0231 => self.x[17] &= table::RANK,
            0x927c_0271 => self.x[17] = self.x[19] & table::RANK,
            0x927a_f663 => self.x[3] = self.x[19] & !(table::RANK | table::CHILD),
            _ if word & 0xffe0_fc00 == 0xaa00_0000 => self.x[rt] = self.x[rn] | self.x[by],
            // tbz
            _ if word & 0xfff8_0000 == 0x3628_0000 => self.branch_if(self.x[rt] & 32 == 0, word, 14),
            // ldar, stlr
            _ if word & 0xffff_fc00 == 0xc8df_fc00 => self.x[rt] = self.load(self.x[rn]),
            _ if word & 0xffff_fc00 == 0xc89f_fc00 => self.store(self.x[rn], self.x[rt]),
            0xd63f_0200 => self.call(),
            _ => return false,
        }
        true
    }

    fn branch_if(&mut self, does: bool, word: u32, len: u32) {
        if does {
            self.pc = self.pc.wrapping_add(signed(word, 5, len) << 2);
        }
    }

    /// A handler: writes all that a function may.
    fn call(&mut self) {
        assert_eq!(self.x[16], HANDLER);
        assert_eq!(self.sp % 16, 0);
        self.calls.push([self.x[0], self.x[1], self.x[2], self.x[3]]);
        (0..18).for_each(|i| self.x[i] = 0xdead_0000 + i as u64);
        (self.x[30], self.flags) = (self.pc + 4, 0x5000_0000);
        // Below its stack pointer everything is its own.
        self.store(self.sp - 16, 0xdead);
    }

    fn sum(&self, at: u32) -> u64 {
        let of = |copy: u64| [0, 1].map(|rank| self.memory[&(copy + u64::from(at) + rank * table::RANK)]);
        [COPY, ALL, CHILDREN].iter().flat_map(|copy| of(*copy)).sum()
    }

    fn of_copy(&self, copy: u64, rank: u64) -> [u64; 2] {
        let at = |cell: u32| self.memory[&(copy + u64::from(cell) + rank * table::RANK)];
        [at(cell::READERS_ENTERED), at(cell::READERS_LEFT)]
    }
}

/// A thread before a site with two consumers.
pub(super) fn before(block: &Trampoline, cpu: u32, alive: u64) -> Thread {
    let mut thread = thread(block, cpu, alive);
    for copy in [COPY, ALL, CHILDREN] {
        let cells = [0, 8, 16, 24].map(|at| (copy + at, 0));
        thread.memory.extend(cells);
        thread.memory.insert(copy + u64::from(cell::RANK), table::RANK);
    }
    thread.memory.extend([(DESC, CONSUMERS[0]), (CONSUMERS[0], CONSUMERS[1]), (CONSUMERS[1], 0)]);
    thread.memory.extend(CONSUMERS.map(|at| (at + 8, HANDLER)));
    thread
}

/// Runs a hit, with `meanwhile` done in the first call; checks what a stopped thread would be told at every instruction.
fn run(block: &Trampoline, mut thread: Thread, meanwhile: impl Fn(&mut Thread)) -> Thread {
    let start = thread.x;
    for _ in 0..200 {
        if thread.pc == SITE + 4 {
            assert_eq!((thread.sp, thread.flags, thread.x[0]), (STACK, FLAGS, start[0] + 1));
            assert_eq!(thread.x[1..], start[1..]);
            assert_eq!((thread.memory[&(STACK - 8)], thread.memory[&(STACK - 16)]), (0x60, 0x61));
            return thread;
        }
        if let Some(PcPlace::Body(back)) = block.place_of(thread.pc) {
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
            let inside = thread.sum(cell::READERS_ENTERED) - thread.sum(cell::READERS_LEFT);
            assert_eq!((inside, back.counted), (0, !thread.calls.is_empty()), "at {at:#x}");
        }
        let calls = thread.calls.len();
        thread.step();
        if calls == 0 && thread.calls.len() == 1 {
            meanwhile(&mut thread);
        }
    }
    panic!("it does not come out");
}

#[test]
fn a_hit_calls_each_consumer_once_between_its_two_counts() {
    let block = block_of(THREADS, Flavour::Lite, &[hit()]);
    assert!(block.bytes.len() <= len_bound(1, false));
    let done = run(&block, before(&block, 1, ALL), |thread| {
        assert_eq!((thread.sum(cell::READERS_ENTERED), thread.sum(cell::READERS_LEFT)), (1, 0));
    });
    let frame = STACK - REGISTERS_BYTES - u64::from(ABOVE);
    assert_eq!(done.calls, CONSUMERS.map(|consumer| [frame, DESC, consumer, COPY]));
    assert_eq!(done.of_copy(COPY, 1), [1, 1], "the rank of the CPU's entry");
    let registers: Vec<u64> = (0..31).map(|i| done.memory[&(frame + 8 * i)]).collect();
    assert_eq!(registers, (0..31).map(|i| 0x1000 + i).collect::<Vec<u64>>());
    assert_eq!(done.memory[&(frame + 8 * 33)], FLAGS);
}

#[test]
fn a_hit_without_a_copy_enters_and_leaves_the_copy_of_all_or_of_the_children() {
    let block = block_of(THREADS, Flavour::Lite, &[hit()]);
    for (threads, flavour) in [(THREADS, Flavour::Lite), (None, Flavour::Normal), (THREADS, Flavour::Sigsafe)]
    {
        let block = block_of(threads, flavour, &[hit()]);
        for (alive, copy) in [(ALL, ALL), (0, CHILDREN)] {
            let done = run(&block, before(&block, u32::MAX, alive), |_| {});
            assert_eq!(done.of_copy(copy, 1), [1, 1]);
            assert!(done.calls.iter().all(|call| call[3] == wire::COPY_NONE), "{:x?}", done.calls);
        }
    }
    // On another CPU, or with another rank by then: where it entered, or in the copy of all by the rank that it entered.
    let entry = |thread: &mut Thread, to: u64| thread.memory.extend([(TABLE + table::CPU0 as u64 + 8, to)]);
    let changed = run(&block, before(&block, 1, ALL), |thread| entry(thread, COPY));
    assert_eq!((changed.of_copy(COPY, 1), changed.of_copy(ALL, 1)), ([1, 0], [0, 1]));
    // Forked inside: the parent's thread leaves.
    let mut forked = before(&block, 1, ALL);
    while forked.calls.is_empty() {
        forked.step();
    }
    entry(&mut forked, 0);
    forked.memory.insert(TABLE + table::ALIVE as u64, 0);
    while forked.pc != SITE + 4 {
        forked.step();
    }
    assert_eq!((forked.sum(cell::READERS_ENTERED), forked.sum(cell::READERS_LEFT)), (1, 0));
}

#[test]
fn a_function_that_begins_with_its_exit_has_two_bodies_before_one_instruction() {
    let block = block_of(THREADS, Flavour::Normal, &[hit(), hit()]);
    assert!(block.bytes.len() <= len_bound(2, false));
    let mut thread = before(&block, 1, ALL);
    while thread.pc != SITE + 4 {
        thread.step();
    }
    assert_eq!((thread.calls.len(), thread.of_copy(COPY, 1)), (4, [2, 2]));
    assert_eq!((thread.sp, thread.x[1..].to_vec()), (STACK, (1..31).map(|i| 0x1000 + i).collect()));
}

#[test]
fn a_hit_that_the_kernel_interrupts_enters_and_leaves_once() {
    let block = block_of(THREADS, Flavour::Lite, &[hit()]);
    let word = |at: usize| u64::from_le_bytes(block.bytes[at..at + 8].try_into().unwrap());
    for descriptor in [0, 32] {
        let (start, len, abort) = (word(descriptor + 8), word(descriptor + 16), word(descriptor + 24));
        let before_abort = (abort - AT) as usize - 4;
        assert_eq!(block.bytes[before_abort..][..4], percpu::SIGNATURE_A64.to_le_bytes());
        for pc in (start..start + len).step_by(4) {
            let mut thread = before(&block, 1, ALL);
            while thread.pc != pc {
                thread.step();
            }
            thread.pc = abort;
            while thread.pc != SITE + 4 {
                thread.step();
            }
            assert_eq!((thread.sum(cell::READERS_ENTERED), thread.sum(cell::READERS_LEFT)), (1, 1));
            assert_eq!((thread.calls.len(), thread.sp, thread.flags), (2, STACK, FLAGS));
        }
    }
}
