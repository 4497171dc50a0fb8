//! The code that a branch at an A64 site leads to: a count, then the displaced instruction.
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
//! A block: the descriptor, four constants, the way of threads that have no copy, the header, the entry.

use crate::trampoline::{Body, Request, Rollback, SavedReg, Trampoline};
use insn::Unreachable;
use percpu::emit::TooFar;
use percpu::emit::aarch64::{Places, count, reaches};
use wire::{TrampolineHeader, table};

/// The constants, behind the descriptor: CPU 0's entry of the table; where the address of the copy of all stands; where that
/// of the children's; the cell.
const CONSTANTS: usize = 32;
/// Where a thread goes on that has no copy; before it stands what the kernel wants before an abort address.
const SLOW: usize = 68;
/// The first instruction.
pub(crate) const ENTRY: usize = 192;
/// A body, a tail and the longest copy.
const REST: usize = 4 * (20 + 1 + insn::aarch64::COPY_MAX_WORDS);

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

/// The most bytes of a block.
pub(crate) const LEN_BOUND: usize = (ENTRY + REST).next_multiple_of(64);

/// What a region has instead of a routine: the address of the children's copy.
pub(crate) fn slow_constants(children: u64) -> Vec<u8> {
    let mut bytes = vec![0; crate::SLOW_LEN];
    bytes[..8].copy_from_slice(&children.to_le_bytes());
    bytes
}

/// The block for a request of one count.
///
/// # Errors
/// What the copy of the displaced instruction does not reach.
pub(crate) fn build(request: &Request<'_>) -> Result<Trampoline, Unreachable> {
    // The session refuses all else by name before it comes here.
    let cell = match request.bodies {
        [Body::Count { cell }] => *cell,
        other => unreachable!("an A64 trampoline counts, and does nothing else: {other:?}"),
    };
    let mut block = Block { request, bytes: vec![0; ENTRY], steps: vec![(0, None)] };
    block.constants(cell);
    let counted = Rollback { counted: true, ..saved() };
    let done = block.body(cell, &counted)?;
    block.slow(done, &counted);
    let tail = block.bytes.len();
    block.put(NOP);
    let displaced = insn::aarch64::displaced(request.placement, request.bias, block.here())?;
    block.bytes.extend(&displaced.bytes);
    block.header(tail);
    let Block { bytes, mut steps, .. } = block;
    steps.sort_by_key(|(from, _)| *from);
    let before = Vec::new();
    Ok(Trampoline { at: request.at, bytes, entry: ENTRY, tail, tail_len: 4, displaced, before, steps })
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
        let (at, slow) = (self.request.at, self.request.at + SLOW as u64);
        match self.request.ways.threads.filter(|threads| reaches(threads.rseq_offset)) {
            Some(threads) => {
                let table = at + CONSTANTS as u64;
                let places = Places { at: self.here(), descriptor: at, table, slow };
                let far = |TooFar { from, to }| Unreachable { from, to };
                let add = count(threads.rseq_offset, cell, &places).map_err(far)?;
                let from = self.bytes.len();
                add.words().iter().for_each(|word| self.put(*word));
                let (start, end) = (from + 4 * add.start, self.bytes.len());
                let descriptor = [0, at + start as u64, (end - start) as u64, slow];
                descriptor.into_iter().enumerate().for_each(|(i, word)| self.word_at(8 * i, word));
            }
            None => {
                let distance = SLOW as i64 - self.bytes.len() as i64;
                self.put(0x1400_0000 | ((distance >> 2) as u32 & 0x3ff_ffff));
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
        let words: [u32; 13] = [
            SAVE_MORE,
            near(LOAD_X16, SLOW + 4, CONSTANTS + 8),
            LOAD,
            near(CBNZ_X16, SLOW + 12, SLOW + 24),
            near(LOAD_X16, SLOW + 16, CONSTANTS + 16),
            LOAD,
            near(LOAD_W17, SLOW + 24, CONSTANTS + 24),
            ADD_CELL,
            LOAD_EXCLUSIVE,
            ADD_ONE,
            STORE_EXCLUSIVE,
            near(CBNZ_W15, SLOW + 44, SLOW + 32),
            GIVE_MORE_BACK,
        ];
        let back = 0x1400_0000 | ((done - SLOW - 4 * words.len()) >> 2) as u32;
        let code: Vec<u8> = words.iter().chain([&back]).flat_map(|word| word.to_le_bytes()).collect();
        self.bytes[SLOW - 4..SLOW].copy_from_slice(&SIGNATURE.to_le_bytes());
        self.bytes[SLOW..SLOW + code.len()].copy_from_slice(&code);
        let all_counted = Rollback { counted: true, ..all_saved() };
        self.steps.extend([
            (SLOW, Some(saved())),
            (SLOW + 4, Some(all_saved())),
            // Behind the store its answer says whether it was made.
            (SLOW + 44, None),
            (SLOW + 48, Some(all_counted)),
            (SLOW + 52, Some(counted.clone())),
            (SLOW + code.len(), None),
        ]);
    }

    fn header(&mut self, tail: usize) {
        let request = self.request;
        let site = request.placement.site.wrapping_add(request.bias);
        let header = TrampolineHeader {
            magic: wire::TRAMPOLINE_MAGIC,
            site,
            jump_at: site,
            semaphore: 0,
            tail: (tail - ENTRY) as u16,
            window: request.placement.displaced_len,
            body: 0,
            hook: 0,
            jump_original: request.jump_original,
            short_original: [0; 2],
            has_short: 0,
        };
        self.bytes[ENTRY - TrampolineHeader::LEN..ENTRY].copy_from_slice(&header.bytes());
    }
}

/// What the kernel wants before an abort address.
const SIGNATURE: u32 = 0xd428_bc00;

/// A branch or load at one offset of the block whose distance to another stands in bits 23 to 5.
fn near(word: u32, from: usize, to: usize) -> u32 {
    let distance = ((to as i64 - from as i64) >> 2) as u32;
    word | (distance & 0x7_ffff) << 5
}

const _: () = assert!(SLOW + 14 * 4 <= ENTRY - TrampolineHeader::LEN);

#[cfg(test)]
mod tests;
