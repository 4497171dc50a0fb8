//! An abstract run of blocks: what each instruction does, and at each that a stopped thread would be given back what it had.

use super::*;
use crate::trampoline::{Flavour, PcPlace, Threads, Ways};
use insn::{Asked, Code, Flow, Placement, place};
use std::collections::BTreeMap;

mod guard;
mod hit;

const AT: u64 = 0x5555_0000_0000;
const SITE: u64 = AT + 0x10_0000;
const TABLE: u64 = AT - 0x10_0000;
const SLOW_AT: u64 = AT - 0x1_0000;
const AREA: i32 = -32;
const POINTER: u64 = 0x7f00_0000_1000;
const STACK: u64 = 0x7fff_0000_1000;
const CELL: u32 = 0x48;
const FLAGS: u64 = 0xa000_0000;
const COPY: u64 = 0x6000_0000_0000;
const ALL: u64 = 0x6100_0000_0000;
const CHILDREN: u64 = 0x6200_0000_0000;
/// add x0, x0, #1
const ORIGINAL: u32 = 0x9100_0400;

fn block(threads: Option<Threads>) -> Trampoline {
    block_of(threads, Flavour::Lite, &[Body::Count { cell: CELL }])
}

fn block_of(threads: Option<Threads>, flavour: Flavour, bodies: &[Body]) -> Trampoline {
    let bytes: Vec<u8> = [ORIGINAL, 0xd65f_03c0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let code = Code { base: SITE, bytes: &bytes };
    let (function, taken, room) = (Some(SITE..SITE + 8), &|_| false, &|_| false);
    let asked = Asked { site: SITE, function, next_function: None, taken, room };
    let placement: Placement = place(&Flow::of_a64(&[SITE], false), &[code], &asked).unwrap();
    let request = Request {
        at: AT,
        placement: &placement,
        bias: 0,
        jump_original: [0; wire::JUMP_LEN],
        short_original: None,
        table: TABLE,
        slow: SLOW_AT,
        ways: Ways { threads, has_rdpid: false, flavour },
        bodies,
    };
    build(&request).unwrap()
}

/// A thread, and the memory that it sees; words of eight bytes.
struct Thread {
    x: [u64; 31],
    sp: u64,
    pc: u64,
    memory: BTreeMap<u64, u64>,
    /// N, Z, C and V, where they stand in pstate.
    flags: u64,
    /// The first so many exclusive stores fail.
    failing: u32,
    /// What handlers were called with: registers, site, consumer, copy.
    calls: Vec<[u64; 4]>,
}

fn signed(word: u32, low: u32, len: u32) -> u64 {
    (i64::from(((word >> low) << (32 - len)).cast_signed()) >> (32 - len)).cast_unsigned()
}

impl Thread {
    fn load(&self, at: u64) -> u64 {
        assert_eq!(at % 8, 0, "{at:#x}");
        *self.memory.get(&at).unwrap_or_else(|| panic!("a load from {at:#x}, at {:#x}", self.pc))
    }

    fn store(&mut self, at: u64, value: u64) {
        assert_eq!(at % 8, 0, "{at:#x}");
        self.memory.insert(at, value);
    }

    fn word(&self, at: u64) -> u32 {
        (self.load(at & !7) >> (8 * (at & 4))) as u32
    }

    /// Executes one instruction; where it has no meaning here, the test fails.
    fn step(&mut self) {
        let word = self.word(self.pc);
        let (rt, rn) = ((word & 31) as usize, (word >> 5 & 31) as usize);
        let second = (word >> 10 & 31) as usize;
        let near = self.pc.wrapping_add(signed(word, 5, 19) << 2);
        let scaled = u64::from(word >> 10 & 0xfff);
        let (from, mut next) = (self.pc, self.pc + 4);
        match word {
            _ if word & 0xffc0_0000 == 0xa980_0000 => {
                assert_eq!(rn, 31);
                self.sp = self.sp.wrapping_add(signed(word, 15, 7) << 3);
                let (at, [a, b]) = (self.sp, [self.x[rt], self.x[second]]);
                self.store(at, a);
                self.store(at + 8, b);
            }
            _ if word & 0xffc0_0000 == 0xa8c0_0000 => {
                (self.x[rt], self.x[second]) = (self.load(self.sp), self.load(self.sp + 8));
                self.sp = self.sp.wrapping_add(signed(word, 15, 7) << 3);
            }
            _ if word & 0xffff_ffe0 == 0xd53b_d040 => self.x[rt] = POINTER,
            _ if word & 0xff00_0000 == 0xb400_0000 && self.x[rt] == 0 => next = near,
            _ if word & 0xff00_0000 == 0xb500_0000 && self.x[rt] != 0 => next = near,
            _ if word & 0xff00_0000 == 0x3500_0000 && self.x[rt] as u32 != 0 => next = near,
            _ if matches!(word >> 24, 0xb4 | 0xb5 | 0x35) => {}
            _ if word & 0x9f00_0000 == 0x1000_0000 => self.x[rt] = near,
            _ if word & 0xffe0_0c00 == 0xf800_0000 => {
                self.store(self.x[rn].wrapping_add(signed(word, 12, 9)), self.x[rt]);
            }
            _ if word & 0xffe0_0c00 == 0x7840_0000 => {
                let at = self.x[rn].wrapping_add(signed(word, 12, 9));
                self.x[rt] = u64::from(self.word(at) as u16);
            }
            _ if word & 0xff00_0000 == 0x5800_0000 => self.x[rt] = self.load(near),
            _ if word & 0xff00_0000 == 0x1800_0000 => self.x[rt] = self.word(near).into(),
            _ if word & 0xffe0_fc00 == 0xf860_5800 => {
                let index = self.x[(word >> 16 & 31) as usize] & 0xffff_ffff;
                self.x[rt] = self.load(self.x[rn] + 8 * index);
            }
            0x9278_de10 => self.x[16] &= !0xff,
            ADD_CELL => self.x[16] += self.x[17],
            ADD_ONE => self.x[17] += 1,
            LOAD_EXCLUSIVE => self.x[17] = self.load(self.x[16]),
            _ if word & 0xffe0_7c00 == 0xc800_7c00 => {
                let is_failing = self.failing > 0;
                if is_failing {
                    self.failing -= 1;
                } else {
                    self.store(self.x[rn], self.x[rt]);
                }
                self.x[(word >> 16 & 31) as usize] = is_failing.into();
            }
            _ if word & 0xffc0_0000 == 0xf940_0000 => self.x[rt] = self.load(self.base(rn) + 8 * scaled),
            _ if word & 0xffc0_0000 == 0xf900_0000 => self.store(self.base(rn) + 8 * scaled, self.x[rt]),
            _ if self.step_of_guard(word) => {}
            _ if self.step_of_hit(word) => {}
            _ if word >> 26 == 5 => next = self.pc.wrapping_add(signed(word, 0, 26) << 2),
            ORIGINAL => self.x[0] += 1,
            NOP => {}
            other => panic!("{other:#010x} at {:#x}", self.pc),
        }
        // A branch of the general path has been taken already.
        self.pc = if self.pc == from { next } else { self.pc };
    }

    /// Register 31 as the base of an access is the stack pointer.
    fn base(&self, register: usize) -> u64 {
        self.x.get(register).copied().unwrap_or(self.sp)
    }

    fn counted(&self) -> u64 {
        [COPY, ALL, CHILDREN].iter().map(|copy| self.memory[&(copy + u64::from(CELL))]).sum()
    }
}

fn thread(block: &Trampoline, cpu: u32, alive: u64) -> Thread {
    let words = block.bytes.as_chunks::<8>().0.iter().enumerate();
    let mut memory: BTreeMap<u64, u64> =
        words.map(|(i, word)| (AT + 8 * i as u64, u64::from_le_bytes(*word))).collect();
    let rest: Vec<u8> = block.bytes[block.bytes.len() & !7..].iter().copied().chain([0; 8]).take(8).collect();
    memory.insert(AT + (block.bytes.len() & !7) as u64, u64::from_le_bytes(rest.try_into().unwrap()));
    memory.extend([COPY, ALL, CHILDREN].map(|copy| (copy + u64::from(CELL), 0)));
    memory.insert(SLOW_AT, CHILDREN);
    memory.insert(TABLE + table::ALIVE as u64, alive);
    memory.insert(TABLE + table::CPU0 as u64 + 8, COPY | table::RANK);
    memory.insert(TABLE + table::CPU0 as u64 + 8 * 0xffff, 0);
    memory.insert(POINTER - 32, u64::from(cpu) << 32);
    // Go's word, and the one below it.
    memory.extend([(STACK - 8, 0x60), (STACK - 16, 0x61)]);
    let x = std::array::from_fn(|i| 0x1000 + i as u64);
    let (calls, flags) = (Vec::new(), FLAGS);
    Thread { x, sp: STACK, pc: block.entry_addr(), memory, flags, failing: 1, calls }
}

/// Runs a hit; at each instruction the roll-back gives the registers of the site, and says rightly whether it is counted.
fn run(block: &Trampoline, mut thread: Thread) -> Thread {
    let start = thread.x;
    for _ in 0..60 {
        if thread.pc == SITE + 4 {
            assert_eq!(thread.sp, STACK);
            assert_eq!(
                (thread.memory[&(STACK - 8)], thread.memory[&(STACK - 16)]),
                (0x60, 0x61),
                "Go's words"
            );
            assert_eq!(thread.x[0], start[0] + 1);
            assert_eq!(thread.x[1..], start[1..]);
            return thread;
        }
        match block.place_of(thread.pc) {
            Some(PcPlace::Body(back)) => {
                let mut x = thread.x;
                for saved in &back.saved {
                    x[usize::from(saved.number)] = thread.load(thread.sp + u64::from(saved.slot));
                }
                assert_eq!(x, start, "at {:#x}", thread.pc - AT);
                assert_eq!(thread.sp + u64::from(back.rsp_add), STACK, "at {:#x}", thread.pc - AT);
                assert_eq!(back.counted, thread.counted() == 1, "at {:#x}", thread.pc - AT);
            }
            Some(PcPlace::Displaced(origin)) => {
                assert_eq!(thread.counted(), 1);
                assert_eq!(origin.offset, if thread.x[0] == start[0] { 0 } else { 4 });
            }
            Some(PcPlace::Elsewhere) => {
                assert_eq!(thread.word(thread.pc) >> 24, 0x35, "only behind the store")
            }
            None => panic!("outside at {:#x}", thread.pc),
        }
        thread.step();
    }
    panic!("it does not come out");
}

const THREADS: Option<Threads> = Some(Threads { rseq_offset: AREA, self_offset: 0 });

#[test]
fn a_hit_is_counted_once_and_can_be_taken_back_at_every_instruction() {
    let restartable = block(THREADS);
    let done = run(&restartable, thread(&restartable, 1, ALL));
    assert_eq!(done.memory[&(COPY + u64::from(CELL))], 1, "in the CPU's copy");
    assert_eq!(done.memory[&(POINTER - 24)], AT, "the descriptor is named");
    // Not registered; of a forked child, whose table is empty.
    for (cpu, alive, copy) in [(u32::MAX, ALL, ALL), (u32::MAX, 0, CHILDREN)] {
        let done = run(&restartable, thread(&restartable, cpu, alive));
        assert_eq!(done.memory[&(copy + u64::from(CELL))], 1);
    }
    let shared = block(None);
    let done = run(&shared, thread(&shared, 1, ALL));
    assert_eq!(done.memory[&(ALL + u64::from(CELL))], 1);
    assert!(!done.memory.contains_key(&(POINTER - 24)), "no thread pointer is followed");
}

#[test]
fn the_descriptor_says_from_where_to_where_a_thread_is_sent_to_the_other_way() {
    let block = block(THREADS);
    let word = |at: usize| u64::from_le_bytes(block.bytes[at..at + 8].try_into().unwrap());
    let (start, len, abort) = (word(8), word(16), word(24));
    assert_eq!((word(0), abort), (0, AT + SLOW as u64));
    assert_eq!(block.bytes[SLOW - 4..SLOW], percpu::SIGNATURE_A64.to_le_bytes());
    let at = |addr: u64| u32::from_le_bytes(block.bytes[(addr - AT) as usize..][..4].try_into().unwrap());
    assert_eq!(at(start) & 0xffe0_0c00, 0x7840_0000, "it begins where the CPU is read");
    assert_eq!(at(start + len - 4) & 0xffc0_0000, 0xf900_0000, "and ends with the store");
    // Interrupted at any of its instructions a hit is counted once.
    for pc in (start..start + len).step_by(4) {
        let mut interrupted = thread(&block, 1, ALL);
        while interrupted.pc != pc {
            interrupted.step();
        }
        interrupted.pc = abort;
        let mut back = thread(&block, 1, ALL);
        (back.x, back.sp, back.pc, back.memory) =
            (interrupted.x, interrupted.sp, interrupted.pc, interrupted.memory);
        while back.pc != SITE + 4 {
            back.step();
        }
        assert_eq!((back.counted(), back.sp, back.x[17]), (1, STACK, 0x1011));
    }
}

#[test]
fn an_area_that_one_instruction_does_not_reach_is_not_used_and_a_far_site_is_refused() {
    let far_area = block(Some(Threads { rseq_offset: -4096, self_offset: 0 }));
    assert_eq!(far_area.bytes, block(None).bytes);
    assert!(far_area.bytes.len() <= len_bound(1, false));
    assert_eq!(insn::aarch64::b(SITE, far_area.entry_addr()).map(|word| word >> 26), Some(5));
}
