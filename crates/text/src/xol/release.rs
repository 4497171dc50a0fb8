//! The routine by which threads leave slots.
//!
//! For:     the first slot of each page.
//! State:   its bytes and, for each, what the thread's registers are and where.
//! Context: making it: target. It runs in the program's threads, between two of the program's instructions.
//! Keeps:   R1 every register, flag and byte of the red zone is the program's afterwards; no vector register is used.
//!          R2 the slot is given back once, by a locked instruction, before it is looked for sleepers.
//!          R3 `at` tells how to get a thread out before and after each of its instructions.
//! Checked: `tests.rs`: `registers_flags_and_red_zone_survive_and_a_thread_is_settled_from_every_instruction`.
//!
//! Entered with the slot's number and the address to go on at on the stack, below the red zone.

use super::area::{Scheme, offsets};

/// Room for the routine.
pub(super) const ROUTINE_BYTES: usize = 128;

/// Where the program's flags are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flags {
    /// In the processor.
    Live,
    /// In rax: the low ones in ah, overflow in al.
    InRax,
    /// On the stack, in that form, this many bytes below the entry's stack pointer.
    Saved(u16),
}

/// The state before an instruction of the routine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    pub from: u8,
    /// How much lower the stack pointer is than at the entry.
    pub depth: i16,
    /// The first so many of `SAVED` are on the stack, at 8, 16, ... bytes below the entry's stack pointer, with rax's
    /// flags between the second and the third.
    pub saved: u8,
    pub flags: Flags,
    /// The slot was given back.
    pub released: bool,
}

/// Numbers of the registers in the order in which they are saved; 255 is not one, but the flags.
pub(super) const SAVED: [u8; 7] = [RAX, RCX, 255, 11, 7, 6, 2];
const RAX: u8 = 0;
const RCX: u8 = 1;

/// The routine of an area.
#[derive(Debug)]
pub(super) struct Release {
    routines: Vec<Vec<u8>>,
    marks: Vec<Mark>,
}

impl Release {
    /// For each of `pages` pages. A broken one looks for sleepers too early.
    pub fn new(scheme: Scheme, wakes_early: bool, pages: usize) -> Release {
        let built =
            (0..pages).map(|page| Builder::new(((pages - page) * 4096) as u64).build(scheme, wakes_early));
        let (routines, mut marks): (Vec<_>, Vec<_>) = built.map(|b| (b.bytes, b.marks)).unzip();
        Release { routines, marks: marks.swap_remove(0) }
    }

    pub fn bytes(&self, page: usize) -> &[u8] {
        &self.routines[page]
    }

    /// What holds `offset` bytes into the routine.
    pub fn at(&self, offset: usize) -> Option<Mark> {
        self.marks.iter().rev().find(|mark| usize::from(mark.from) <= offset).copied()
    }

    /// Where its instructions start.
    #[cfg(test)]
    pub fn starts(&self) -> impl Iterator<Item = usize> + '_ {
        self.marks.iter().map(|mark| usize::from(mark.from))
    }
}

struct Builder {
    bytes: Vec<u8>,
    marks: Vec<Mark>,
    now: Mark,
    /// From the routine's first byte to the control page.
    control: u64,
}

impl Builder {
    fn new(control: u64) -> Builder {
        let now = Mark { from: 0, depth: 0, saved: 0, flags: Flags::Live, released: false };
        Builder { bytes: Vec::with_capacity(ROUTINE_BYTES), marks: Vec::new(), now, control }
    }

    /// One instruction; `now` is the state before it.
    fn put(&mut self, bytes: &[u8]) {
        self.marks.push(Mark { from: self.bytes.len() as u8, ..self.now });
        self.bytes.extend_from_slice(bytes);
    }

    /// One instruction with a word of the control page as its operand, and `more` behind the distance.
    fn put_control(&mut self, opcode: &[u8], word: u64, more: &[u8]) {
        let end = self.bytes.len() + opcode.len() + 4 + more.len();
        let distance = (self.control + word - end as u64) as u32;
        self.put(&[opcode, &distance.to_le_bytes(), more].concat());
    }

    fn push(&mut self, bytes: &[u8]) {
        self.put(bytes);
        self.now.depth += 8;
        self.now.saved += 1;
    }

    fn pop(&mut self, bytes: &[u8]) {
        self.put(bytes);
        self.now.depth -= 8;
        self.now.saved -= 1;
    }

    fn build(mut self, scheme: Scheme, wakes_early: bool) -> Builder {
        self.push(&[0x50]); // push rax
        self.push(&[0x51]); // push rcx
        self.put(&[0x9f]); // lahf
        self.put(&[0x0f, 0x90, 0xc0]); // seto al
        self.now.flags = Flags::InRax;
        self.put(&[0x48, 0x8b, 0x4c, 0x24, 16]); // mov rcx,[rsp+16]: the slot's number
        if !wakes_early {
            self.give_back(scheme);
        }
        let branch = self.look_for_sleepers();
        let (back, state) = (self.bytes.len(), self.now);
        if wakes_early {
            self.put(&[0xb9, 0, 0x40, 0, 0]); // mov ecx,16384
            self.put(&[0xe2, 0xfe]); // loop to itself: the mistake is there for some microseconds
            self.put(&[0x48, 0x8b, 0x4c, 0x24, 16]);
            self.give_back(scheme);
        }
        self.leave();
        self.now = state;
        self.bytes[branch - 1] = (self.bytes.len() - branch) as u8;
        self.wake(back);
        self
    }

    /// cmp dword [waiters],0; jne wake. Where the branch ends.
    fn look_for_sleepers(&mut self) -> usize {
        self.put_control(&[0x83, 0x3d], offsets::WAITERS, &[0]);
        self.put(&[0x75, 0]);
        self.bytes.len()
    }

    /// The locked instruction is the barrier between giving the slot back and looking for sleepers; it pairs with the
    /// locked add of who is about to sleep, [XOL-4].
    fn give_back(&mut self, scheme: Scheme) {
        match scheme {
            // lock btr [bitmap],ecx
            Scheme::Dynamic => self.put_control(&[0xf0, 0x0f, 0xb3, 0x0d], offsets::BITMAP, &[]),
            Scheme::Cached => {
                self.put(&[0x50]); // push rax
                self.now.depth += 8;
                self.now.flags = Flags::Saved(24);
                self.put_control(&[0x48, 0x8d, 0x05], offsets::USERS, &[]); // lea rax,[users]
                self.put(&[0xf0, 0xff, 0x0c, 0x88]); // lock dec dword [rax+rcx*4]
                self.now.released = true;
                self.put(&[0x58]); // pop rax
                self.now.depth -= 8;
                self.now.flags = Flags::InRax;
            }
        }
        self.now.released = true;
    }

    /// Flags and registers back; ret 128.
    fn leave(&mut self) {
        self.put(&[0x04, 0x7f]); // add al,127: overflow as it was
        self.put(&[0x9e]); // sahf
        self.now.flags = Flags::Live;
        self.pop(&[0x59]);
        self.pop(&[0x58]);
        self.put(&[0x48, 0x8d, 0x64, 0x24, 8]); // lea rsp,[rsp+8]
        self.now.depth -= 8;
        self.put(&[0xc2, 128, 0]);
    }

    /// A system call changes rax, rcx and r11 and no flag.
    fn wake(&mut self, back: usize) {
        self.push(&[0x50]);
        self.now.flags = Flags::Saved(24);
        self.push(&[0x41, 0x53]);
        self.push(&[0x57]);
        self.push(&[0x56]);
        self.push(&[0x52]);
        self.put_control(&[0xf0, 0xff, 0x05], offsets::SEQ, &[]); // lock inc dword [seq]
        self.put_control(&[0x48, 0x8d, 0x3d], offsets::SEQ, &[]); // lea rdi,[seq]
        self.put(&[0xbe, 0x81, 0, 0, 0]); // mov esi,FUTEX_WAKE|PRIVATE
        self.put(&[0xba, 1, 0, 0, 0]); // mov edx,1
        self.put(&[0xb8, 202, 0, 0, 0]); // mov eax,futex
        self.put(&[0x0f, 0x05]);
        self.pop(&[0x5a]);
        self.pop(&[0x5e]);
        self.pop(&[0x5f]);
        self.pop(&[0x41, 0x5b]);
        self.pop(&[0x58]);
        self.now.flags = Flags::InRax;
        let end = self.bytes.len() + 2;
        self.put(&[0xeb, back.wrapping_sub(end) as u8]);
    }
}
