//! The code that a branch at an A64 site leads to: a count or calls of consumers, then the displaced instruction.
//!
//! For:     `Trampoline::build` in a build for AArch64; built and tested on any host.
//! State:   none.
//! Context: built in control; run in a hit.
//! Keeps:   H1 registers, flags and the stack above the stack pointer are at the tail as at the site, and so are the 16 bytes
//!             below it: Go keeps its caller's frame pointer there.
//!          H2 a count is one store (or one exclusive store): before it the hit is not counted, after it it is.
//!          H3 what is said of each instruction is right; where a register alone knows whether the hit is counted, a stopped
//!             thread has to run on.
//!          H6 a thread whose count the kernel interrupts does not begin again: it makes an exclusive add.
//! Checked: tests below (an abstract run of every step); the machine's test (docs/aarch64.md) runs it.
//!
//! A block that counts: the descriptor, four constants, the way of threads that have no copy, the header, the entry. Another one:
//! such a part for each of its bodies (`hit`), and where they ask first one more (`guard`), then the same.

use crate::trampoline::{Body, Request, Rollback, SavedReg, Trampoline};
use insn::Unreachable;
use percpu::emit::TooFar;
use percpu::emit::aarch64::{Emitted, Places, count, reaches};
use wire::{NO_CHAIN, TrampolineHeader, table};

mod guard;
mod hit;
pub(crate) use hit::ABOVE;

/// The constants, behind the descriptor: CPU 0's entry of the table; where the address of the copy of all stands; where that
/// of the children's; the cell.
const CONSTANTS: usize = 32;
/// Where a thread goes on that has no copy; before it stands what the kernel wants before an abort address.
const SLOW: usize = 68;
/// The first instruction of one that counts.
const ENTRY: usize = 192;
/// A tail and the longest copy.
const REST: usize = 4 * (1 + insn::aarch64::COPY_MAX_WORDS);
/// No count is longer.
const LONGEST: usize = 4 * 20;

const SAVE: u32 = 0xa9be_47f0; // stp x16, x17, [sp, #-32]!
const GIVE_BACK: u32 = 0xa8c2_47f0; // ldp x16, x17, [sp], #32
const SAVE_MORE: u32 = 0xa9bf_3fee; // stp x14, x15, [sp, #-16]!
const GIVE_MORE_BACK: u32 = 0xa8c1_3fee; // ldp x14, x15, [sp], #16
const LOAD: u32 = 0xf940_0210; // ldr x16, [x16]
const ADD_CELL: u32 = 0x8b11_0210; // add x16, x16, x17
const LOAD_EXCLUSIVE: u32 = 0xc85f_7e11; // ldxr x17, [x16]
const ADD_ONE: u32 = 0x9100_0631; // add x17, x17, #1
const STORE_EXCLUSIVE: u32 = 0xc80f_7e11; // stxr w15, x17, [x16]
const CBNZ_X16: u32 = 0xb500_0010;
const CBNZ_W15: u32 = 0x3500_000f;
const LOAD_X16: u32 = 0x5800_0010; // ldr x16, constant
const LOAD_W17: u32 = 0x1800_0011; // ldr w17, constant
const NOP: u32 = insn::aarch64::NOP;

/// Where in a block with so many bodies the first instruction stands.
pub(crate) fn entry(bodies: usize, is_count: bool, is_guarded: bool) -> usize {
    if is_count { ENTRY } else { hit::entry(bodies, is_guarded) }
}

/// The most bytes of a block with so many bodies.
pub(crate) fn len_bound(bodies: usize, is_guarded: bool) -> usize {
    let in_line = if is_guarded { guard::LONGEST } else { 0 };
    let bodies_len = bodies * (hit::LONGEST.max(LONGEST) + in_line);
    (hit::entry(bodies, is_guarded) + bodies_len + REST).next_multiple_of(64)
}

/// What a region has instead of a routine: the address of the children's copy.
pub(crate) fn slow_constants(children: u64) -> Vec<u8> {
    let mut bytes = vec![0; crate::SLOW_LEN];
    bytes[..8].copy_from_slice(&children.to_le_bytes());
    bytes
}

/// The block for a request: of one count, or of calls of consumers, one behind the other.
///
/// # Errors
/// What the copy of the displaced instruction does not reach.
pub(crate) fn build(request: &Request<'_>) -> Result<Trampoline, Unreachable> {
    let is_count = matches!(request.bodies, [Body::Count { .. }]);
    let is_guarded = request.bodies.iter().any(|body| matches!(body, Body::Hit { guard: Some(_), .. }));
    let entry = entry(request.bodies.len(), is_count, is_guarded);
    let mut block = Block { request, bytes: vec![0; entry], steps: vec![(0, None)] };
    for (number, body) in request.bodies.iter().enumerate() {
        match *body {
            Body::Count { cell } => block.count(cell)?,
            Body::Hit { desc, guard: None, .. } => block.hit(number, desc)?,
            Body::Hit { desc, guard: Some(guarded), .. } => block.guarded(number, desc, &guarded)?,
        }
    }
    let tail = block.bytes.len();
    block.put(NOP);
    let displaced = insn::aarch64::displaced(request.placement, request.bias, block.here())?;
    block.bytes.extend(&displaced.bytes);
    block.header(entry, tail);
    let Block { bytes, mut steps, .. } = block;
    steps.sort_by_key(|(from, _)| *from);
    let before = Vec::new();
    Ok(Trampoline { at: request.at, bytes, entry, tail, tail_len: 4, displaced, before, steps })
}

/// x16 and x17 are on the stack.
fn saved() -> Rollback {
    let saved = [(16, 0), (17, 8)].map(|(number, slot)| SavedReg { number, slot }).to_vec();
    Rollback { rsp_add: 32, saved, ..Rollback::default() }
}

/// x14 and x15 too.
fn all_saved() -> Rollback {
    let slots = [(14, 0), (15, 8), (16, 16), (17, 24)];
    let saved = slots.map(|(number, slot)| SavedReg { number, slot }).to_vec();
    Rollback { rsp_add: 48, saved, ..Rollback::default() }
}

struct Block<'a> {
    request: &'a Request<'a>,
    bytes: Vec<u8>,
    steps: Vec<(usize, Option<Rollback>)>,
}

impl Block<'_> {
    fn here(&self) -> u64 {
        self.request.at + self.bytes.len() as u64
    }

    fn put(&mut self, word: u32) {
        self.bytes.extend(word.to_le_bytes());
    }

    /// From here on this holds.
    fn step(&mut self, now: Option<Rollback>) {
        self.steps.push((self.bytes.len(), now));
    }

    fn word_at(&mut self, at: usize, word: u64) {
        self.bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    /// The area of the threads, if it is one that a section reaches.
    fn threads(&self) -> Option<i32> {
        self.request.ways.threads.map(|threads| threads.rseq_offset).filter(|area| reaches(*area))
    }

    /// Places one of percpu's adds here, with its descriptor.
    fn add(
        &mut self,
        add: Result<Emitted, TooFar>,
        (descriptor, slow): (usize, usize),
    ) -> Result<(), Unreachable> {
        let add = add.map_err(|TooFar { from, to }| Unreachable { from, to })?;
        let (at, from) = (self.request.at, self.bytes.len());
        add.words().iter().for_each(|word| self.put(*word));
        let (start, end) = (from + 4 * add.start, self.bytes.len());
        let words = [0, at + start as u64, (end - start) as u64, at + slow as u64];
        words.into_iter().enumerate().for_each(|(i, word)| self.word_at(descriptor + 8 * i, word));
        self.bytes[slow - 4..slow].copy_from_slice(&percpu::SIGNATURE_A64.to_le_bytes());
        Ok(())
    }

    /// What an add here refers to: offsets in the block.
    fn places(&self, descriptor: usize, table: usize, slow: usize) -> Places {
        let at = |offset: usize| self.request.at + offset as u64;
        Places { at: self.here(), descriptor: at(descriptor), table: at(table), slow: at(slow) }
    }

    fn count(&mut self, cell: u32) -> Result<(), Unreachable> {
        self.constants(cell);
        let counted = Rollback { counted: true, ..saved() };
        let done = self.body(cell, &counted)?;
        self.slow(done, &counted);
        Ok(())
    }

    fn constants(&mut self, cell: u32) {
        let (table, slow) = (self.request.table, self.request.slow);
        let constants = [table + table::CPU0 as u64, table + table::ALIVE as u64, slow, cell.into()];
        constants.into_iter().enumerate().for_each(|(i, word)| self.word_at(CONSTANTS + 8 * i, word));
    }

    /// From the entry to the tail; where a hit goes on that was counted on the other way.
    fn body(&mut self, cell: u32, counted: &Rollback) -> Result<usize, Unreachable> {
        self.step(Some(Rollback::default()));
        self.put(SAVE);
        self.step(Some(saved()));
        self.count_saved(cell, [0, CONSTANTS, SLOW], counted)
    }

    /// The same, x16 and x17 being saved; where descriptor, CPU 0's entry of the table and the other way stand.
    fn count_saved(
        &mut self,
        cell: u32,
        [descriptor, table, slow]: [usize; 3],
        counted: &Rollback,
    ) -> Result<usize, Unreachable> {
        match self.threads() {
            Some(area) => {
                let places = self.places(descriptor, table, slow);
                self.add(count(area, cell, &places), (descriptor, slow))?;
            }
            None => {
                let word = branch(self.bytes.len(), slow);
                self.put(word);
            }
        }
        let done = self.bytes.len();
        self.step(Some(counted.clone()));
        self.put(GIVE_BACK);
        self.step(Some(Rollback { counted: true, ..Rollback::default() }));
        Ok(done)
    }

    /// The way of a thread that has no copy: it adds to the copy of all, or in a forked child to the children's.
    fn slow(&mut self, done: usize, counted: &Rollback) {
        let len = self.slow_way(SLOW, [CONSTANTS + 8, CONSTANTS + 16, CONSTANTS + 24], done);
        let all_counted = Rollback { counted: true, ..all_saved() };
        self.steps.extend([
            (SLOW, Some(saved())),
            (SLOW + 4, Some(all_saved())),
            // Behind the store its answer says whether it was made.
            (SLOW + 44, None),
            (SLOW + 48, Some(all_counted)),
            (SLOW + 52, Some(counted.clone())),
            (SLOW + len, None),
        ]);
    }

    /// Writes that way to `at`; where the addresses of the two copies stand, and the cell's offset. How long it is.
    fn slow_way(&mut self, at: usize, [alive, children, cell]: [usize; 3], done: usize) -> usize {
        let words: [u32; 13] = [
            SAVE_MORE,
            near(LOAD_X16, at + 4, alive),
            LOAD,
            near(CBNZ_X16, at + 12, at + 24),
            near(LOAD_X16, at + 16, children),
            LOAD,
            near(LOAD_W17, at + 24, cell),
            ADD_CELL,
            LOAD_EXCLUSIVE,
            ADD_ONE,
            STORE_EXCLUSIVE,
            near(CBNZ_W15, at + 44, at + 32),
            GIVE_MORE_BACK,
        ];
        let back = branch(at + 4 * words.len(), done);
        let code: Vec<u8> = words.iter().chain([&back]).flat_map(|word| word.to_le_bytes()).collect();
        self.bytes[at..at + code.len()].copy_from_slice(&code);
        code.len()
    }

    fn header(&mut self, entry: usize, tail: usize) {
        let request = self.request;
        let site = request.placement.site.wrapping_add(request.bias);
        let header = TrampolineHeader {
            magic: wire::TRAMPOLINE_MAGIC,
            site,
            jump_at: site,
            semaphore: 0,
            tail: (tail - entry) as u16,
            window: request.placement.displaced_len,
            body: 0,
            // Two bodies: a function that begins with its exit.
            hook: if request.bodies.len() == 1 { 0 } else { NO_CHAIN },
            jump_original: request.jump_original,
            short_original: [0; 2],
            has_short: 0,
        };
        self.bytes[entry - TrampolineHeader::LEN..entry].copy_from_slice(&header.bytes());
    }
}

/// A branch or load at one offset of the block whose distance to another stands in bits 23 to 5.
fn near(word: u32, from: usize, to: usize) -> u32 {
    let distance = ((to as i64 - from as i64) >> 2) as u32;
    word | (distance & 0x7_ffff) << 5
}

/// A branch from one offset of the block to another.
fn branch(from: usize, to: usize) -> u32 {
    let distance = to as i64 - from as i64;
    0x1400_0000 | ((distance >> 2) as u32 & 0x3ff_ffff)
}

const _: () = assert!(SLOW + 14 * 4 <= ENTRY - TrampolineHeader::LEN);

#[cfg(test)]
mod tests;
