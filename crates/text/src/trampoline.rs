//! The code that a patched site jumps to.
//!
//! For:     one site of one session: count, or call the agent; then the displaced instructions.
//! State:   the bytes, and what each of them means for a thread that stands on it.
//! Context: built in control; run in a hit.
//! Keeps:   H1 registers, flags, red zone and stack above it are at the tail as at the site.
//!          H2 a count is one store (or one locked add): before it the hit is not counted, after it it is.
//!          H3 `place_of` is right for every instruction boundary of the block.
//!          H6 a thread whose count the kernel interrupts does not begin again: it makes a locked add. A thread that is
//!          single-stepped is interrupted at every instruction, and would never get past.
//!          H7 the rseq area is touched only if the thread pointer leads to a block that has its address twice, and
//!          something else in between, as glibc's; any CPU number read there leads to a copy of the counts or to 0.
//! Checked: tests (another decoder, an abstract run that checks the roll-back of every step),
//!          testkit `counting`; `torture attach`.
//! Source:  rseq(2) for the restartable count; user-needs 0.2 for the red zone.

use crate::arch::aarch64;
use crate::assemble::{Code, RAX, RCX, Reg};
use insn::{
    Displaced, Hook, Origin, Placement, RegSet, Unreachable, relocate_len_bound, relocate_part,
    relocate_taken,
};
use percpu::emit::{Form, Places, TooFar, Way, emit};
use wire::{NO_CHAIN, TRAMPOLINE_MAGIC, TrampolineHeader, table};

mod guard;
mod hit;
mod slow;

pub use guard::{GUARDS_MAX, Guard, Guarded};
pub use slow::{SLOW_LEN, slow_routines};

/// No body is longer; `a_block_is_never_longer_than_its_bound` sees to it.
const LONGEST_BODY: usize = 384;
const HEADER_LEN: usize = TrampolineHeader::LEN;
/// Offset of a counting trampoline's entry from the start of its block.
const ENTRY: usize = 128;
/// Where the out-of-line count stands, of threads without rseq and of those that were interrupted in the other: just
/// before the header.
const SLOW: usize = ENTRY - HEADER_LEN - 15;
/// What a function may keep below its stack pointer.
pub const RED_ZONE: u16 = 128;
/// Bytes between the registers that a hit of this hook has saved and the program's stack pointer.
pub fn above_frame(hook: &Hook) -> u16 {
    match hook.is_red_zone_free {
        _ if cfg!(target_arch = "aarch64") => aarch64::trampoline::ABOVE,
        true => hit::OWN,
        false => hit::OWN + RED_ZONE,
    }
}

/// The bytes that the kernel wants before an abort address.
const RSEQ_SIGNATURE: u32 = percpu::SIGNATURE;
/// Where a thread's block has another word, from the thread pointer: memory that is all alike, or all 0, is no block.
const NOT_SELF: i32 = 8;

/// What a trampoline does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Adds one to the cell at this offset of the CPU's copy.
    Count {
        /// Byte offset in a copy.
        cell: u32,
    },
    /// Saves the registers and calls the site's consumers.
    Hit {
        /// Address of the site's [`wire::SiteDesc`].
        desc: u64,
        /// What its handlers write or read of r8 to r11, and r14 if they read it (Go keeps the goroutine there).
        uses: RegSet,
        /// What is asked before all that, where the site's one consumer would turn a hit down for it.
        guard: Option<Guarded>,
    },
}

/// What a trampoline is built from.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Address of the block, a multiple of 64.
    pub at: u64,
    /// Where the jump stands and what it displaces.
    pub placement: &'a Placement,
    /// What the process adds to the placement's addresses.
    pub bias: u64,
    /// What the file has where the 5-byte jump goes.
    pub jump_original: [u8; crate::JUMP_LEN],
    /// What the file has at the site if a 2-byte jump goes there.
    pub short_original: Option<[u8; 2]>,
    /// Address of the region's table page.
    pub table: u64,
    /// Address of the region's [`slow_routines`].
    pub slow: u64,
    /// How hits count.
    pub ways: Ways,
    /// What to do at each of the placement's hooks. A count stands alone and before the first instruction.
    pub bodies: &'a [Body],
}

/// How the hits of a process count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ways {
    /// Where the threads' rseq areas are; `None`: locked adds.
    pub threads: Option<Threads>,
    /// The processor has `rdpid`.
    pub has_rdpid: bool,
    /// Of the general path's readers; the same in all of a session.
    pub flavour: Flavour,
}

/// How a hit of the general path is told from outside to be over, and what that costs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flavour {
    /// Plain adds and no fence: who waits for readers makes one in their stead.
    #[default]
    Lite,
    /// Plain adds, a full fence behind the first and one before the second: who waits needs none.
    Normal,
    /// Locked adds, which are fences too.
    Sigsafe,
}

impl Flavour {
    /// The flavour of this name, as `rcu` calls them; a fast reader is a lite one here.
    pub fn named(name: &str) -> Option<Flavour> {
        Some(match name {
            "lite" | "fast" => Flavour::Lite,
            "normal" => Flavour::Normal,
            "sigsafe" => Flavour::Sigsafe,
            _ => return None,
        })
    }
}

impl core::fmt::Display for Flavour {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Flavour::Lite => "lite",
            Flavour::Normal => "normal",
            Flavour::Sigsafe => "sigsafe",
        })
    }
}

/// How the threads of a process keep what is their own.
///
/// Reading the thread pointer itself (`rdfsbase`) would tell more, and costs 8 ns in a hit (2026-11, AMD family 25).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threads {
    /// Where a thread's rseq area lies from its thread pointer.
    pub rseq_offset: i32,
    /// Where a thread's block holds its own address once more than where the ABI has it, from the thread pointer.
    pub self_offset: i32,
}

/// A register that a trampoline saved, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedReg {
    /// Number in instruction encodings.
    pub number: u8,
    /// Offset from the stack pointer at that place.
    pub slot: u16,
}

/// How to give a stopped thread back what it had at the site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rollback {
    /// What to add to the stack pointer.
    pub rsp_add: u16,
    /// Registers to load, before that.
    pub saved: Vec<SavedReg>,
    /// Slot of the flags in the form of `lahf; seto al`, if they must be loaded.
    pub flags: Option<u16>,
    /// The hit is already counted.
    pub counted: bool,
    /// Where the original goes on, in bytes from the site.
    pub resume: u8,
}

/// Where in a block a thread stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PcPlace {
    /// In a probe's code.
    Body(Rollback),
    /// In the displaced instructions, at the copy of this one; registers are the program's.
    Displaced(Origin),
    /// Where only running on helps.
    Elsewhere,
}

/// One trampoline, ready to be written.
#[derive(Clone, Debug)]
pub struct Trampoline {
    /// Address of the block.
    pub at: u64,
    /// The block.
    pub bytes: Vec<u8>,
    /// Offset of the first instruction.
    pub entry: usize,
    /// Offset of the tail.
    pub tail: usize,
    /// Its length, behind which the displaced instructions stand.
    pub(crate) tail_len: usize,
    /// The displaced instructions behind the last hook.
    pub displaced: Displaced,
    /// Those before each hook, with their offsets.
    pub(crate) before: Vec<(usize, Displaced)>,
    /// (offset, what holds from there on), ascending; `None` where only running on helps.
    pub(crate) steps: Vec<(usize, Option<Rollback>)>,
}

impl Trampoline {
    /// Builds the block for `request`.
    ///
    /// # Errors
    /// The first thing that is too far from `request.at`.
    pub fn build(request: &Request<'_>) -> Result<Trampoline, Unreachable> {
        debug_assert!(request.at.is_multiple_of(64));
        if cfg!(target_arch = "aarch64") {
            return aarch64::trampoline::build(request);
        }
        debug_assert_eq!(request.bodies.len(), request.placement.hooks.len());
        let mut b = Builder::new(request);
        for (stage, body) in request.bodies.iter().enumerate() {
            b.begin(stage)?;
            match (*body, request.ways.threads) {
                (Body::Count { cell }, Some(threads)) => b.count_restartable(cell, threads)?,
                (Body::Count { cell }, None) => b.count_locked(cell)?,
                (Body::Hit { desc, uses, guard }, _) => b.hit(desc, uses, guard)?,
            }
        }
        let tail = b.code.pos();
        b.code.nop5();
        let displaced = b.last_part()?;
        b.code.put(&displaced.bytes);
        b.header(tail);
        let Builder { code, steps, entry, before, .. } = b;
        let (bytes, tail_len) = (code.bytes, crate::JUMP_LEN);
        Ok(Trampoline { at: request.at, bytes, entry, tail, tail_len, displaced, before, steps })
    }

    /// Where in a block with so many hooks, one of them guarded or none, the first instruction stands.
    pub fn entry_offset(hooks: usize, is_count: bool, is_guarded: bool) -> usize {
        match is_count {
            _ if cfg!(target_arch = "aarch64") => aarch64::trampoline::entry(hooks, is_count, is_guarded),
            true => ENTRY,
            false => guard::entry(hooks, is_guarded),
        }
    }

    /// The most bytes that a block for this placement takes, with or without guards.
    pub fn len_bound(placement: &Placement, is_guarded: bool) -> usize {
        if cfg!(target_arch = "aarch64") {
            return aarch64::trampoline::len_bound(placement.hooks.len(), is_guarded);
        }
        let hooks = placement.hooks.len();
        let in_line = if is_guarded { guard::IN_LINE } else { 0 };
        let bodies = guard::entry(hooks, is_guarded) + hooks * (LONGEST_BODY + in_line);
        (bodies + crate::JUMP_LEN + relocate_len_bound(placement)).next_multiple_of(64)
    }

    /// Where its [`TrampolineHeader`] stands.
    pub fn header_addr(&self) -> u64 {
        self.entry_addr() - HEADER_LEN as u64
    }

    /// Address of the first instruction.
    pub fn entry_addr(&self) -> u64 {
        self.at + self.entry as u64
    }

    /// Where the first hook's code begins.
    pub fn body_addr(&self) -> u64 {
        let before = self.before.first().map_or(0, |(_, part)| part.bytes.len());
        self.entry_addr() + before as u64
    }

    /// Address of the tail.
    pub fn tail_addr(&self) -> u64 {
        self.at + self.tail as u64
    }

    /// Address of the first displaced instruction.
    pub fn displaced_addr(&self) -> u64 {
        self.tail_addr() + self.tail_len as u64
    }

    /// Address after the block.
    pub fn end(&self) -> u64 {
        self.at + self.bytes.len() as u64
    }

    /// Address of the copy of the displaced instruction `offset` bytes behind the site.
    pub fn copy_of(&self, offset: u8) -> Option<u64> {
        self.parts().find_map(|(from, part)| Some(self.at + from as u64 + u64::from(part.copy_of(offset)?)))
    }

    /// All copies of displaced instructions, and where they stand.
    fn parts(&self) -> impl Iterator<Item = (usize, &Displaced)> {
        let last = (self.tail + self.tail_len, &self.displaced);
        self.before.iter().map(|(from, part)| (*from, part)).chain([last])
    }

    /// Where a thread with this program counter stands; `None` if it is not in the block.
    pub fn place_of(&self, pc: u64) -> Option<PcPlace> {
        let offset = usize::try_from(pc.checked_sub(self.at)?).ok().filter(|o| *o < self.bytes.len())?;
        for (from, part) in self.parts() {
            if (from..from + part.bytes.len()).contains(&offset) {
                let origin = part.origin_of((offset - from) as u16);
                return Some(origin.map_or(PcPlace::Elsewhere, PcPlace::Displaced));
            }
        }
        let step = self.steps.iter().rev().find(|(from, _)| *from <= offset)?;
        Some(step.1.clone().map_or(PcPlace::Elsewhere, PcPlace::Body))
    }
}

struct Builder<'a> {
    code: Code,
    request: &'a Request<'a>,
    entry: usize,
    /// Which hook's code is being written.
    stage: usize,
    before: Vec<(usize, Displaced)>,
    steps: Vec<(usize, Option<Rollback>)>,
    now: Rollback,
    /// Where the distance of the jump around the hook will stand.
    way_around: Option<usize>,
}

impl<'a> Builder<'a> {
    fn new(request: &'a Request<'a>) -> Builder<'a> {
        let mut code = Code::new(request.at);
        let is_count = !matches!(request.bodies, [Body::Hit { .. }, ..]);
        let is_guarded = request.bodies.iter().any(|body| matches!(body, Body::Hit { guard: Some(_), .. }));
        let entry = Trampoline::entry_offset(request.bodies.len(), is_count, is_guarded);
        code.pad_to(entry);
        let (before, steps) = (Vec::new(), vec![(0, None)]);
        let now = Rollback::default();
        Builder { code, request, entry, stage: 0, before, steps, now, way_around: None }
    }

    fn hook(&self) -> &'a Hook {
        &self.request.placement.hooks[self.stage]
    }

    /// The displaced instructions with these offsets, for where we are.
    fn part(&self, offsets: core::ops::Range<u8>) -> Result<Displaced, Unreachable> {
        let request = self.request;
        relocate_part(request.placement, request.bias, request.at + self.code.pos() as u64, offsets)
    }

    /// The displaced instructions up to a hook; the hook's code follows. At a conditional jump it is jumped around where
    /// that is not taken.
    fn begin(&mut self, stage: usize) -> Result<(), Unreachable> {
        let from = if stage == 0 { 0 } else { self.leave_hook()? };
        self.stage = stage;
        let mut part = self.part(from..self.hook().offset)?;
        if self.hook().taken.is_some() {
            let distance = part.push_way_around(self.request.placement, self.hook());
            self.way_around = Some(self.code.pos() + distance);
        }
        self.before.push((self.code.pos(), part.clone()));
        self.code.put(&part.bytes);
        self.now = Rollback { resume: self.hook().offset, ..Rollback::default() };
        self.steps.push((self.code.pos(), Some(self.now.clone())));
        Ok(())
    }

    /// Ends the code of a hook that others follow. Returns the offset of the displaced instruction that comes next.
    fn leave_hook(&mut self) -> Result<u8, Unreachable> {
        let hook = self.hook();
        let Some(to) = hook.taken else { return Ok(hook.offset) };
        self.code.jump_to(to.wrapping_add(self.request.bias))?;
        self.arrive(self.code.pos());
        Ok(hook.offset + 1)
    }

    /// What is displaced behind the last hook.
    fn last_part(&mut self) -> Result<Displaced, Unreachable> {
        let (request, hook) = (self.request, self.hook());
        if hook.taken.is_none() {
            return self.part(hook.offset..u8::MAX);
        }
        let at = self.code.pos();
        let (part, rest) = relocate_taken(request.placement, request.bias, request.at + at as u64, hook)?;
        self.arrive(at + rest);
        Ok(part)
    }

    /// The way around the hook leads to `pos`.
    fn arrive(&mut self, pos: usize) {
        let Some(at) = self.way_around.take() else { return };
        // Within one block, which is far shorter than 2 GiB.
        let distance = (pos - (at + 4)) as u32;
        self.code.bytes[at..at + 4].copy_from_slice(&distance.to_le_bytes());
    }

    /// Says that from here on `change` holds.
    fn step(&mut self, change: impl FnOnce(&mut Rollback)) {
        change(&mut self.now);
        self.steps.push((self.code.pos(), Some(self.now.clone())));
    }

    /// From here on a stopped thread must run on by itself.
    fn run_only(&mut self) {
        self.steps.push((self.code.pos(), None));
    }

    fn counted_from_here(&mut self) {
        self.step(|now| now.counted = true);
    }

    fn header(&mut self, tail: usize) {
        let (bias, request) = (self.request.bias, self.request);
        let island = request.placement.island.map(|i| i.wrapping_add(bias));
        let header = TrampolineHeader {
            magic: TRAMPOLINE_MAGIC,
            site: self.site(),
            jump_at: island.unwrap_or(self.site()),
            semaphore: 0,
            tail: (tail - self.entry) as u16,
            window: request.placement.displaced_len,
            body: self.before.first().map_or(0, |(_, part)| part.bytes.len()) as u16,
            hook: match request.placement.hooks.as_slice() {
                [one] => u16::from(one.offset),
                _ => NO_CHAIN,
            },
            jump_original: request.jump_original,
            short_original: request.short_original.unwrap_or_default(),
            has_short: u8::from(request.short_original.is_some()),
        };
        self.code.bytes[self.entry - HEADER_LEN..self.entry].copy_from_slice(&header.bytes());
    }

    fn site(&self) -> u64 {
        self.request.placement.site.wrapping_add(self.request.bias)
    }

    fn skip_red_zone(&mut self) {
        if !self.hook().is_red_zone_free {
            self.code.add_rsp(-i32::from(RED_ZONE));
            self.step(|now| now.rsp_add += RED_ZONE);
        }
    }

    fn leave_red_zone(&mut self) {
        if !self.hook().is_red_zone_free {
            self.code.add_rsp(i32::from(RED_ZONE));
            self.step(|now| now.rsp_add -= RED_ZONE);
        }
    }

    /// Saves a register that is needed as scratch, unless nobody reads it again.
    fn push(&mut self, reg: Reg) {
        if !self.is_dead(reg) {
            self.push_always(reg);
        }
    }

    fn push_always(&mut self, reg: Reg) {
        self.code.push(reg);
        self.step(|now| {
            now.rsp_add += 8;
            now.saved.iter_mut().for_each(|s| s.slot += 8);
            now.saved.push(SavedReg { number: reg.0, slot: 0 });
        });
    }

    fn pop(&mut self, reg: Reg) {
        if !self.is_dead(reg) {
            self.pop_always(reg);
        }
    }

    fn pop_always(&mut self, reg: Reg) {
        self.code.pop(reg);
        self.step(|now| {
            now.rsp_add -= 8;
            now.saved.pop();
            now.saved.iter_mut().for_each(|s| s.slot -= 8);
        });
    }

    fn is_dead(&self, reg: Reg) -> bool {
        self.hook().dead_regs.contains(reg.0)
    }

    /// Saves the flags; rax is free after it.
    fn push_flags(&mut self) {
        self.code.flags_to_ax();
        self.code.push(RAX);
        self.step(|now| {
            now.rsp_add += 8;
            now.saved.iter_mut().for_each(|s| s.slot += 8);
            now.flags = Some(0);
        });
    }

    fn pop_flags(&mut self) {
        // The flags go on being loaded from the value now in rax, below the stack pointer: nothing that
        // a stopped thread's restorer could rely on. So these three instructions are run, not rolled.
        self.steps.push((self.code.pos() + 1, None));
        self.code.pop(RAX);
        self.code.flags_from_ax();
        self.step(|now| {
            now.rsp_add -= 8;
            now.saved.iter_mut().for_each(|s| s.slot -= 8);
            now.flags = None;
        });
    }

    /// The count under rseq: no flag is written, the store commits.
    ///
    /// In: nothing. Clobbers: rax, rcx, both saved. Stack: 16 bytes below the red zone.
    fn count_restartable(&mut self, cell: u32, threads: Threads) -> Result<(), Unreachable> {
        self.skip_red_zone();
        self.push(RAX);
        self.push(RCX);
        let slow = self.check_thread(threads, SLOW)?;
        let (start, end) = self.add(Form::Count, 0, Some(threads), cell, slow)?;
        self.counted_from_here();
        let counted = self.now.clone();
        self.pop(RCX);
        self.pop(RAX);
        self.leave_red_zone();
        self.descriptor(0, start, end, SLOW);
        self.code.bytes[SLOW - 4..SLOW].copy_from_slice(&RSEQ_SIGNATURE.to_le_bytes());
        self.slow(SLOW, cell, end, counted)
    }

    /// Takes the slow way if fs leads to something else than a thread's block: a thread that a program made by itself.
    /// Writes no flag. Returns where the slow way can be taken from later on.
    ///
    /// Clobbers: rax, rcx.
    fn check_thread(&mut self, threads: Threads, slow: usize) -> Result<usize, Unreachable> {
        self.code.load_fs(RAX, 0);
        self.code.not(RAX);
        self.code.load_fs(RCX, NOT_SELF);
        self.code.lea_difference(RCX, RAX);
        self.code.short(0xe3, slow); // jrcxz: tests without a flag
        self.code.load_fs(RCX, threads.self_offset);
        self.code.lea_difference(RCX, RAX);
        let jump = self.code.pos() + 2;
        self.code.short(0xe3, jump + crate::JUMP_LEN);
        self.code.jump_to(self.request.at + slow as u64)?;
        Ok(jump)
    }

    /// The count of threads without rseq: a locked add to the copy of the CPU that we were on.
    ///
    /// Clobbers: rax, rcx, both saved, and the flags, saved unless dead. Stack: up to 32 bytes.
    fn count_locked(&mut self, cell: u32) -> Result<(), Unreachable> {
        self.skip_red_zone();
        self.push(RAX);
        self.push(RCX);
        if !self.hook().flags_dead {
            self.push_flags();
        }
        let (_, end) = self.add(Form::Count, 0, None, cell, SLOW)?;
        self.counted_from_here();
        let counted = self.now.clone();
        if !self.hook().flags_dead {
            self.pop_flags();
        }
        self.pop(RCX);
        self.pop(RAX);
        self.leave_red_zone();
        self.slow(SLOW, cell, end, counted)
    }

    /// Places one of percpu's adds here, with this section's descriptor if threads have one, and the slow way at `slow` in
    /// the block. Returns where its section starts, and where it ends.
    fn add(
        &mut self,
        form: Form,
        section: usize,
        threads: Option<Threads>,
        cell: u32,
        slow: usize,
    ) -> Result<(usize, usize), Unreachable> {
        let request = self.request;
        let way = match threads {
            Some(threads) => {
                Way::Restartable { area: threads.rseq_offset, descriptor: request.at + section as u64 * 32 }
            }
            None => Way::Locked { has_rdpid: request.ways.has_rdpid },
        };
        let from = self.code.pos();
        let places = Places {
            at: request.at + from as u64,
            table: request.table + table::CPU0 as u64,
            slow: request.at + slow as u64,
        };
        let far = |TooFar { from, to }| Unreachable { from, to };
        let add = emit(form, way, cell, &places).map_err(far)?;
        self.code.put(add.bytes());
        Ok((from + add.start, self.code.pos()))
    }

    /// The out-of-line part at `slow`: the cell into rcx, the region's routine, back behind the count.
    fn slow(&mut self, slow: usize, cell: u32, back: usize, counted: Rollback) -> Result<(), Unreachable> {
        let mut code = Code::new(self.request.at + slow as u64);
        code.set_32(RCX, cell);
        code.call_to(self.request.slow)?;
        let after_call = slow + code.pos();
        code.jump_to(self.request.at + back as u64)?;
        self.code.bytes[slow..slow + code.bytes.len()].copy_from_slice(&code.bytes);
        let before = Rollback { counted: false, ..counted.clone() };
        self.steps.extend([
            (slow, Some(before)),
            (after_call, Some(counted)),
            (slow + code.bytes.len(), None),
        ]);
        self.steps.sort_by_key(|(from, _)| *from);
        Ok(())
    }

    /// The descriptor that tells the kernel where the count is, and where to go instead.
    fn descriptor(&mut self, section: usize, start: usize, end: usize, abort: usize) {
        let at = self.request.at;
        let words = [0, at + start as u64, (end - start) as u64, at + abort as u64];
        for (i, word) in words.iter().enumerate() {
            let i = i + section * 4;
            self.code.bytes[i * 8..i * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
