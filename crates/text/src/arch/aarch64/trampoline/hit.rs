//! The general path in A64 code: registers saved in the kernel's `user_pt_regs` layout, the site's consumers called.
//!
//! For:     handlers that are more than one add.
//! State:   a frame of `FRAME` bytes on the thread's stack.
//! Context: built in control; run in a hit.
//! Keeps:   H1, H3, H6 as in the parent. x18 and x20 to x30 are as at the site all the time: the agent writes no x18 and keeps
//!             the others as any function does; a profiler's signal handler may walk by x29.
//!          H4 no vector register is touched, here or in the agent: it is built for a target without them.
//!          H5 every run of consumers on the list is called once, between the reader's two counts.
//!          H9 a reader leaves the rank that it entered, which x19 keeps in its low byte.
//!          H10 what a hit has read is read before it is seen to have left: the second count is a store with release.
//! Checked: the parent's `tests` (an abstract run of every step), the machine's test (docs/aarch64.md).
//! Source:  as of `crate::trampoline`; kernel user_pt_regs.
//!
//! All of x0 to x30 are stored: one instruction for two of them, and any handler may read any.

use super::{Block, LOAD, LOAD_EXCLUSIVE, LOAD_X16, STORE_EXCLUSIVE, branch, guard, near};
use crate::trampoline::{Flavour, Rollback, SavedReg};
use insn::Unreachable;
use percpu::emit::aarch64::{enter, leave};
use wire::{TrampolineHeader, cell, table};

/// Out of line for each body: two descriptors, four constants, two slow ways.
pub(super) const OUT: usize = 256;
/// No body is longer.
pub(super) const LONGEST: usize = 4 * 80;

/// In a body's part out of line.
pub(super) mod at {
    pub const DESCRIPTORS: usize = 0;
    /// CPU 0's entry of the table.
    pub const TABLE: usize = 64;
    /// Where the address of the copy of all stands.
    pub const ALIVE: usize = 72;
    /// Where the address of the children's copy stands.
    pub const CHILDREN: usize = 80;
    /// The site's description.
    pub const SITE: usize = 88;
    /// Behind the signature.
    pub const ENTER: usize = 100;
    pub const LEAVE: usize = 180;
}

/// In the frame: `user_pt_regs` up to pstate, two words of ours, and the 16 bytes below the program's stack pointer.
const PSTATE: u16 = 8 * 33;
const REGISTERS: u16 = 8 * 34;
/// Where the consumer that is being called is kept.
const CONSUMER: u16 = REGISTERS;
const FRAME: u16 = REGISTERS + ABOVE;
/// What lies between the saved registers and the program's stack pointer: two words of ours, and what Go keeps there.
pub(crate) const ABOVE: u16 = 16 + 16;
/// The registers that a body or the agent writes and that come back from the frame.
const LAST_OF_CALLS: u8 = 17;
const ENTRY_REGISTER: u8 = 19;
const LINK: u8 = 30;

const SP_DOWN: u32 = 0xd100_03ff | (FRAME as u32) << 10; // sub sp, sp, #FRAME
const SP_UP: u32 = 0x9100_03ff | (FRAME as u32) << 10; // add sp, sp, #FRAME
const READ_FLAGS: u32 = 0xd53b_4210; // mrs x16, nzcv
const WRITE_FLAGS: u32 = 0xd51b_4210; // msr nzcv, x16
const FENCE: u32 = 0xd503_3bbf; // dmb ish
const NO_COPY: u32 = 0xd280_0013 | (wire::COPY_NONE as u32) << 5; // movz x19, #COPY_NONE
const RANK_OF_ENTRY: u32 = 0x927c_0271; // and x17, x19, #RANK
const STORE_RELEASE_EXCLUSIVE: u32 = 0xc809_fe11; // stlxr w9, x17, [x16]
const CBNZ_X16: u32 = 0xb500_0010;
const CBNZ_W9: u32 = 0x3500_0009;
const ADD_ONE: u32 = 0x9100_0631; // add x17, x17, #1

const _: () = assert!(table::RANK == 16 && table::CHILD == 32 && FRAME.is_multiple_of(16));

/// Where in a block with so many bodies the first instruction stands.
pub(super) const fn entry(bodies: usize, is_guarded: bool) -> usize {
    let guards = if is_guarded { bodies * guard::OUT } else { 0 };
    (bodies * OUT + guards + TrampolineHeader::LEN).next_multiple_of(64)
}

/// str or ldr of an x register at an offset from the stack pointer.
const fn by_sp(word: u32, register: u8, offset: u16) -> u32 {
    word | (offset as u32 / 8) << 10 | 31 << 5 | register as u32
}
const STORE: u32 = 0xf900_0000;
const LOAD_X: u32 = 0xf940_0000;

/// stp or ldp of two neighbours at their places in the frame.
const fn pair(word: u32, first: u8) -> u32 {
    word | (first as u32) << 15 | (first as u32 + 1) << 10 | 31 << 5 | first as u32
}
const STORE_PAIR: u32 = 0xa900_0000;
const LOAD_PAIR: u32 = 0xa940_0000;

/// What comes back from the frame.
fn saved() -> Rollback {
    let numbers = (0..=LAST_OF_CALLS).chain([ENTRY_REGISTER, LINK]);
    let saved = numbers.map(|number| SavedReg { number, slot: 8 * u16::from(number) }).collect();
    Rollback { rsp_add: FRAME, saved, flags: Some(PSTATE), ..Rollback::default() }
}

impl Block<'_> {
    /// Calls the consumers of the site that is described at `desc`.
    ///
    /// Stack: `FRAME` bytes, and what the handlers use.
    pub(super) fn hit(&mut self, number: usize, desc: u64) -> Result<(), Unreachable> {
        let out = number * OUT;
        let (table, slow) = (self.request.table, self.request.slow);
        let constants = [table + table::CPU0 as u64, table + table::ALIVE as u64, slow, desc];
        constants.into_iter().enumerate().for_each(|(i, word)| self.word_at(out + at::TABLE + 8 * i, word));
        self.save();
        self.enter(out)?;
        self.walk(out);
        self.leave(out)?;
        self.restore();
        Ok(())
    }

    fn save(&mut self) {
        self.step(Some(Rollback::default()));
        self.put(SP_DOWN);
        self.step(Some(Rollback { rsp_add: FRAME, ..Rollback::default() }));
        (0..30).step_by(2).for_each(|first| self.put(pair(STORE_PAIR, first)));
        self.put(by_sp(STORE, LINK, 8 * u16::from(LINK)));
        self.put(READ_FLAGS);
        // x16 alone has changed, and the flags are not in their slot yet.
        let x16 = vec![SavedReg { number: 16, slot: 8 * 16 }];
        self.step(Some(Rollback { rsp_add: FRAME, saved: x16, ..Rollback::default() }));
        self.put(by_sp(STORE, 16, PSTATE));
        self.step(Some(saved()));
    }

    /// The area by which readers are counted in their CPU's copy.
    fn area(&self) -> Option<i32> {
        self.threads().filter(|_| self.request.ways.flavour != Flavour::Sigsafe)
    }

    fn fence(&mut self) {
        if self.request.ways.flavour != Flavour::Lite {
            self.put(FENCE);
        }
    }

    /// The reader's first count, which leaves the table's entry in x19.
    fn enter(&mut self, out: usize) -> Result<(), Unreachable> {
        let (descriptor, slow) = (out + at::DESCRIPTORS, out + at::ENTER);
        match self.area() {
            Some(area) => {
                let places = self.places(descriptor, out + at::TABLE, slow);
                self.add(enter(area, cell::READERS_ENTERED, &places), (descriptor, slow))?;
            }
            None => {
                let word = branch(self.bytes.len(), slow);
                self.put(word);
            }
        }
        // Once entered, the hit runs to its end: its consumers and its leaving count too.
        let back = self.bytes.len();
        self.step(None);
        self.enter_slowly(out, back);
        self.fence();
        Ok(())
    }

    /// x2: the consumer. The handler gets x0: registers, x1: site, x2: consumer, x3: the copy.
    fn walk(&mut self, out: usize) {
        let site = near(0x5800_0001, self.bytes.len(), out + at::SITE);
        self.put(site); // ldr x1, site
        // [WIRE-3] Orders the list before what is read of it. Pairs with [WIRE-1].
        self.put(0xc8df_fc22); // ldar x2, [x1]
        let skip = self.bytes.len();
        self.put(0);
        let again = self.bytes.len();
        self.put(by_sp(STORE, 2, CONSUMER));
        self.put(0x9100_03e0); // mov x0, sp
        self.put(0x927a_f663); // and x3, x19, #~(RANK | CHILD)
        self.put(0xf940_0450); // ldr x16, [x2, #handler]
        self.put(0xd63f_0200); // blr x16
        self.put(by_sp(LOAD_X, 2, CONSUMER));
        // What follows was complete before it led there; the next load waits for this one's address.
        self.put(0xf940_0042); // ldr x2, [x2]
        let site = near(0x5800_0001, self.bytes.len(), out + at::SITE);
        self.put(site);
        let more = near(0xb500_0002, self.bytes.len(), again);
        self.put(more); // cbnz x2, again
        let over = near(0xb400_0002, skip, self.bytes.len()); // cbz x2, over
        self.bytes[skip..skip + 4].copy_from_slice(&over.to_le_bytes());
    }

    /// The second count, into the same copy if we are on its CPU still and its rank has not changed.
    fn leave(&mut self, out: usize) -> Result<(), Unreachable> {
        self.fence();
        let (descriptor, slow) = (out + at::DESCRIPTORS + 32, out + at::LEAVE);
        match self.area() {
            Some(area) => {
                self.put(0xf101_fe7f); // cmp x19, #127: who has no copy leaves slowly
                let word = near(0x5400_0009, self.bytes.len(), slow);
                self.put(word); // b.ls slow
                let places = self.places(descriptor, out + at::TABLE, slow);
                self.add(leave(area, cell::READERS_LEFT, &places), (descriptor, slow))?;
            }
            None => {
                let word = branch(self.bytes.len(), slow);
                self.put(word);
            }
        }
        self.leave_slowly(out, self.bytes.len());
        Ok(())
    }

    fn restore(&mut self) {
        self.step(Some(Rollback { counted: true, ..saved() }));
        self.put(by_sp(LOAD_X, 16, PSTATE));
        self.put(WRITE_FLAGS);
        (0..LAST_OF_CALLS).step_by(2).for_each(|first| self.put(pair(LOAD_PAIR, first)));
        self.put(by_sp(LOAD_X, ENTRY_REGISTER, 8 * u16::from(ENTRY_REGISTER)));
        self.put(by_sp(LOAD_X, LINK, 8 * u16::from(LINK)));
        self.put(SP_UP);
        self.step(Some(Rollback { counted: true, ..Rollback::default() }));
    }

    /// The way of a thread that has no copy: an add to the copy of all, or in a forked child to the children's. x19 says which
    /// rank, and whether in a child.
    fn enter_slowly(&mut self, out: usize, back: usize) {
        let at = out + at::ENTER;
        let words = [
            NO_COPY,
            near(LOAD_X16, at + 4, out + at::ALIVE),
            LOAD,
            near(CBNZ_X16, at + 12, at + 28),
            near(LOAD_X16, at + 16, out + at::CHILDREN),
            LOAD,
            0xb27b_0273,                               // orr x19, x19, #CHILD
            0xb940_0211 | (cell::RANK / 4) << 10,      // ldr w17, [x16, #RANK]
            0x121c_0231,                               // and w17, w17, #RANK: whatever stands there
            0xaa11_0273,                               // orr x19, x19, x17
            0x8b11_0210,                               // add x16, x16, x17
            0x9100_0210 | cell::READERS_ENTERED << 10, // add x16, x16, #entered
            LOAD_EXCLUSIVE,
            ADD_ONE,
            STORE_EXCLUSIVE & !0x1f_0000 | 9 << 16, // stxr w9, x17, [x16]
            near(CBNZ_W9, at + 60, at + 48),
            branch(at + 64, back),
        ];
        self.out_of_line(at, &words);
    }

    fn leave_slowly(&mut self, out: usize, back: usize) {
        let at = out + at::LEAVE;
        let words = [
            RANK_OF_ENTRY,
            near(LOAD_X16, at + 4, out + at::ALIVE),
            LOAD,
            near(CBNZ_X16, at + 12, at + 28),
            if_entered_in_parent(at + 16, back), // its thread leaves too
            near(LOAD_X16, at + 20, out + at::CHILDREN),
            LOAD,
            0x8b11_0210,                            // add x16, x16, x17
            0x9100_0210 | cell::READERS_LEFT << 10, // add x16, x16, #left
            LOAD_EXCLUSIVE,
            ADD_ONE,
            STORE_RELEASE_EXCLUSIVE,
            near(CBNZ_W9, at + 48, at + 36),
            branch(at + 52, back),
        ];
        self.out_of_line(at, &words);
    }

    /// Code to which only branches lead; a thread that is stopped there runs on.
    fn out_of_line(&mut self, at: usize, words: &[u32]) {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.bytes[at..at + code.len()].copy_from_slice(&code);
    }
}

/// tbz w19, #5: the bit of [`table::CHILD`]
fn if_entered_in_parent(from: usize, to: usize) -> u32 {
    let distance = ((to as i64 - from as i64) >> 2) as u32;
    0x3628_0013 | (distance & 0x3fff) << 5
}

const _: () = assert!(at::ENTER + 17 * 4 < at::LEAVE - 4);
const _: () = assert!(at::LEAVE + 14 * 4 <= OUT);
