//! Walks of the running thread's stack, the handler that counts by it, and what may be read.
//!
//! For:     `count --stack`; the helper that programs ask for a stack.
//! State:   the stacks that were seen, working memory, the consumer's cells and those of the stacks; all in the arena.
//! Context: hit, between the reader's two counts; signal included: a hit that interrupts another has working memory of its own.
//! Keeps:   S1 a hit adds once to the consumer's cells: its stack has a number, or it has not, by why. So often as it has one, the
//!             number's own cell is added to.
//!          S2 nothing is read but what is the running thread's stack for sure: the page that the trampoline has just written to; the
//!             first thread's stack to its end; what a thread's libc has written down as its stack, to the thread's block; a goroutine's.
//!          What a walk remembers says so only by its distance from the stack pointer, which is compared with the bounds again.
//!          S3 a forked child, which shares the arena and has other stacks, walks none.
//! Checked: testkit `stacks`; crate `unwind`'s tests for the walk.
//!
//! Why S2 holds: a thread's own stack stays mapped while it runs on it, above its stack pointer. That the pointer is in the stack
//! that is written down is looked at in each hit, and again where a walk leaves a signal's frame. On any other stack (a
//! signal's, a coroutine's) there is the one page, and the walk ends there, which is counted.

mod memo;

use crate::cell::{Adder, shared_copy};
use crate::handler::PtRegs;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};
use map::{Mixed, Stacks};
use memo::{Key, Record};
use unwind::{KEPT_IN_PT_REGS, Reg, Registers, Stop, Tables, Way, walk};
use wire::{
    ConsumerDesc, STACK_FRAMES, SiteDesc, WALK_AT_ENTRY, WALK_FIRST_MEMO, WALK_FIRST_SPACE, WALK_FIRST_WAY,
    WALK_IN_GO, WALK_MEMOS, WALK_SPACE, WALK_SPACES, WALK_TABLES, WALK_WAYS, WalkDesc, WalkMemo, WalkWay,
    walk_cell,
};

/// How many spaces are asked for.
const TRIES: usize = 8;
/// No stack is longer.
const STACK_MAX: u64 = 1 << 36;
const PAGE: u64 = 4096;

/// The whole of a naked handler that walks: saves r15 to r12 and rbp where [`KEPT_IN_PT_REGS`] has them, beside what the trampoline has saved, and
/// goes on with the arguments as they are.
macro_rules! save_kept_and_go {
    ($handler:path) => {
        core::arch::naked_asm!(
            "mov [rdi], r15",
            "mov [rdi + 8], r14",
            "mov [rdi + 16], r13",
            "mov [rdi + 24], r12",
            "mov [rdi + 32], rbp",
            "jmp {handler}",
            handler = sym $handler,
        )
    };
}
pub(crate) use save_kept_and_go;

/// Handler: counts by stack. Saves the registers that calls keep beside those that the trampoline has saved.
///
/// # Safety
/// As for [`Adder::add`]; the consumer must own [`walk_cell::CELLS`] cells, and `consumer.walk` must be the address of a live
/// [`WalkDesc`] with all that it leads to. rbx and r10 must be saved, and the registers that calls keep be the program's. In
/// Go r14 must hold the goroutine.
#[unsafe(naked)]
pub unsafe extern "C" fn count_stack<A: Adder>(
    regs: &PtRegs,
    site: &SiteDesc,
    consumer: &ConsumerDesc,
    copy: u64,
) {
    save_kept_and_go!(count::<A>)
}

/// # Safety
/// As for [`count_stack`], with all these registers saved.
unsafe extern "C" fn count<A: Adder>(regs: &PtRegs, site: &SiteDesc, consumer: &ConsumerDesc, copy: u64) {
    // SAFETY: a description in the arena, which lives as long as this code (contract).
    let desc = unsafe { &*(consumer.walk as *const WalkDesc) };
    let walker = Walker::<A> { regs, site, flags: consumer.arg, copy, desc, adder: PhantomData };
    // SAFETY: passed on from the caller.
    let (number, stop) = unsafe { walker.number(STACK_FRAMES) };
    let cell = match number {
        Ok((number, _)) => {
            // SAFETY: passed on from the caller; each number has a cell.
            unsafe { A::add(copy, site, desc.cells.load(Relaxed) as u32 + 8 * number, 1) };
            walk_cell::HANDLED
        }
        Err(cell) => cell,
    };
    // SAFETY: passed on from the caller; the cell is one of the consumer's.
    unsafe { A::add(copy, site, consumer.cell + 8 * cell, 1) };
    if !matches!(stop, Stop::Outermost | Stop::Depth) {
        let why = walk_cell::CUT + (stop as u32 - Stop::NotStack as u32);
        // SAFETY: the same.
        unsafe { A::add(copy, site, consumer.cell + 8 * why, 1) };
    }
}

/// One hit, whose stack is walked.
pub(crate) struct Walker<'a, A> {
    /// The saved registers, with those that calls keep.
    pub regs: &'a PtRegs,
    /// Where it is.
    pub site: &'a SiteDesc,
    /// [`WALK_AT_ENTRY`], [`WALK_IN_GO`].
    pub flags: u32,
    /// What the trampoline passed.
    pub copy: u64,
    /// What is known of the process's stacks.
    pub desc: &'a WalkDesc,
    /// The build.
    pub adder: PhantomData<A>,
}

impl<A: Adder> Walker<'_, A> {
    /// The number of the stack as far as so many frames, and how many there are; or the cell that says why it has none; and
    /// how it ended.
    ///
    /// # Safety
    /// As for [`count_stack`], of the hit that runs.
    #[inline(always)]
    pub unsafe fn number(&self, most: usize) -> (Result<(u32, usize), u32>, Stop) {
        // SAFETY: passed on from the caller.
        if unsafe { shared_copy(self.site) }.is_none() {
            return (Err(walk_cell::CHILD), Stop::Outermost);
        }
        let sp = self.regs.stack_pointer(self.site);
        // SAFETY: the description stands before its spaces (contract).
        let Some(space) = (unsafe { Space::claim(self.desc, sp) }) else {
            return (Err(walk_cell::NO_SPACE), Stop::Outermost);
        };
        let (tables, (start, end)) = (self.tables(), self.stack(sp));
        let most = (self.desc.most.load(Relaxed) as usize).min(STACK_FRAMES).min(most);
        let is_entry = self.flags & WALK_AT_ENTRY != 0;
        let key = Key { pc: self.site.addr, sp, end, tables: tables.generation(), most, is_entry };
        // SAFETY: the space is ours.
        let memo = unsafe { space.memo(key.place()) };
        if let Some((number, len, stop)) = key.recall(memo, self.regs) {
            space.leave();
            return (Ok((number, len)), stop);
        }
        // SAFETY: the same.
        let ways = unsafe { space.ways() };
        let mut own = Own { hit: self, start, end, record: Record::of(memo, sp), ways };
        let mut mixed = Mixed::NONE;
        let (len, stop) = self.walk(sp, tables, &mut own, most, |number, pc| {
            // SAFETY: below `STACK_FRAMES`, for as many of which there is room.
            let to = unsafe { space.frames.add(number) };
            // SAFETY: the same; the space is ours.
            unsafe { to.write(pc) };
            mixed = mixed.and(pc);
        });
        // SAFETY: so many were written, and nobody else has the space.
        let frames = unsafe { core::slice::from_raw_parts(space.frames, len) };
        let stacks = NonNull::new(self.desc.stacks.load(Relaxed) as *mut u8);
        // SAFETY: the arena has the map there for as long as a trampoline can be run (contract).
        let stacks = stacks.map(|at| unsafe { Stacks::attach(at, 0) });
        let number = stacks.and_then(|stacks| stacks.id_of_mixed(frames, mixed).ok()).ok_or(walk_cell::FULL);
        if let Ok(number) = number {
            own.record.keep(&key, number, len, stop);
        }
        space.leave();
        (number.map(|number| (number, len)), stop)
    }

    #[inline(always)]
    fn tables(&self) -> Tables<'_> {
        let first = core::ptr::from_ref(self.desc).cast::<u8>().wrapping_add(WALK_TABLES).cast::<AtomicU32>();
        // SAFETY: so many words stand behind the spaces (contract of the handler, whose description this is), used as atomics alone.
        let area = unsafe { core::slice::from_raw_parts(first, self.desc.words.load(Relaxed) as usize) };
        Tables::of(area)
    }

    /// Gives the frames with their numbers; how many, and why no more.
    #[inline(always)]
    fn walk(
        &self,
        sp: u64,
        tables: Tables<'_>,
        own: &mut Own<'_, A>,
        most: usize,
        take: impl FnMut(usize, u64),
    ) -> (usize, Stop) {
        let mut registers = Registers::new(self.site.addr, sp);
        for (reg, at) in KEPT_IN_PT_REGS {
            registers = registers.with(reg, self.regs.at(at.into()));
        }
        let is_entry = self.flags & WALK_AT_ENTRY != 0;
        walk(tables, registers, own, is_entry, most, take)
    }

    /// What of the running thread's stack is above this pointer, which is one that it has now, or had when a signal came.
    #[inline(always)]
    fn stack(&self, sp: u64) -> (u64, u64) {
        let (start, end) = (self.desc.main_start.load(Relaxed), self.desc.main_end.load(Relaxed));
        if start <= sp && sp < end {
            return (sp, end);
        }
        if self.flags & WALK_IN_GO != 0 {
            let g = self.regs.at(8) as *const [u64; 2];
            // SAFETY: the goroutine is alive while it runs, and begins with its stack's bounds (contract of the handler).
            let [start, end] = unsafe { g.read() };
            if start <= sp && sp < end {
                return (sp, end);
            }
        }
        let block = self.desc.block.load(Relaxed);
        if block != 0 && A::is_known(self.copy, self.site) {
            // SAFETY: the thread has a block (asked above), which begins with its own address.
            let own = unsafe { word_of_thread(0) };
            // SAFETY: in it its libc keeps this word and the next.
            let start = unsafe { word_of_thread(block) };
            // SAFETY: the same.
            let len = unsafe { word_of_thread(block + 8) };
            let end = start.wrapping_add(len);
            if start <= sp && sp < own && own <= end && len < STACK_MAX {
                return (sp, own);
            }
        }
        // The page below whose end something was pushed: all of it is mapped.
        (sp, (sp.wrapping_sub(1) & !(PAGE - 1)).wrapping_add(PAGE))
    }
}

/// The word at this offset from the thread's pointer.
///
/// # Safety
/// It must be readable.
#[inline(always)]
unsafe fn word_of_thread(offset: u64) -> u64 {
    let word;
    // In: the offset. Out: the word. Touches no flags and no stack.
    // SAFETY: readable (contract).
    unsafe {
        core::arch::asm!(
            "mov {word}, fs:[{at}]",
            at = in(reg) offset,
            word = out(reg) word,
            options(nostack, readonly, preserves_flags),
        );
    }
    word
}

/// The running thread's stack, from where the walk is to its end.
struct Own<'a, A> {
    hit: &'a Walker<'a, A>,
    start: u64,
    end: u64,
    record: Record<'a>,
    ways: &'a mut [WalkWay; WALK_WAYS],
}

impl<A: Adder> Own<'_, A> {
    /// Where the way of an address is remembered, if it is.
    #[inline(always)]
    fn place(&mut self, pc: u64) -> &mut WalkWay {
        // As many bits as there are places: the index is always one.
        const BITS: u32 = WALK_WAYS.ilog2();
        let at = pc.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BITS);
        &mut self.ways[at as usize % WALK_WAYS]
    }
}

impl<A: Adder> unwind::Stack for Own<'_, A> {
    #[inline(always)]
    fn word(&mut self, addr: u64) -> Option<u64> {
        let last = self.end.checked_sub(8)?;
        if addr < self.start || addr > last {
            return None;
        }
        let at = addr as *const u64;
        // SAFETY: inside the thread's stack (S2), above where it runs.
        Some(unsafe { at.read_unaligned() })
    }

    #[inline(always)]
    fn two_words(&mut self, addr: u64) -> Option<[u64; 2]> {
        let last = self.end.checked_sub(16)?;
        if addr < self.start || addr > last {
            return None;
        }
        let at = addr as *const [u64; 2];
        // SAFETY: both inside the thread's stack (S2), above where it runs.
        Some(unsafe { at.read_unaligned() })
    }

    #[inline(always)]
    fn switch(&mut self, sp: u64) {
        (self.start, self.end) = self.hit.stack(sp);
        // What is behind a signal's frame is in another place each time.
        self.record.give_up();
    }

    #[inline(always)]
    fn way(&mut self, pc: u64, tables: u32) -> Option<Way> {
        let known = self.place(pc);
        (known.pc == pc && known.tables == tables).then_some(Way(known.way))
    }

    #[inline(always)]
    fn keep_way(&mut self, pc: u64, tables: u32, way: Way) {
        *self.place(pc) = WalkWay { pc, tables, way: way.0 };
    }

    #[inline(always)]
    fn hangs_on(&mut self, addr: u64, value: u64) {
        self.record.word(addr, value);
    }

    #[inline(always)]
    fn hangs_on_two(&mut self, first: [u64; 2], second: [u64; 2]) {
        self.record.two_words(first, second);
    }

    #[inline(always)]
    fn hangs_on_register(&mut self, reg: Reg, value: u64) {
        self.record.register(reg, value);
    }

    #[inline(always)]
    fn unknown(&mut self, pc: u64) {
        let missed = &self.hit.desc.missed;
        // Once only, until the controller has looked: code that is made at run time has no table ever.
        if missed.load(Relaxed) == 0 {
            missed.store(pc, Relaxed);
        }
    }
}

/// Working memory of one hit.
struct Space<'a> {
    owner: &'a AtomicU64,
    frames: *mut u64,
}

impl<'a> Space<'a> {
    /// One that nobody has. Threads begin to look at different places, and find their own still in their cache.
    ///
    /// # Safety
    /// The spaces must stand behind the description.
    #[inline(always)]
    unsafe fn claim(desc: &'a WalkDesc, sp: u64) -> Option<Space<'a>> {
        let first = core::ptr::from_ref(desc).cast::<u8>().wrapping_add(WALK_FIRST_SPACE);
        let wanted = (sp >> 13).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        for n in 0..TRIES {
            let at = first.wrapping_add((wanted as usize + n) % WALK_SPACES * WALK_SPACE).cast_mut();
            // SAFETY: one of the spaces (contract), whose first word is used as an atomic alone.
            let owner = unsafe { &*at.cast::<AtomicU64>() };
            // [WALK-1] Sees nothing of who had it before. Pairs with [WALK-2].
            if owner.compare_exchange(0, 1, Acquire, Relaxed).is_ok() {
                return Some(Space { owner, frames: at.cast::<u64>().wrapping_add(1) });
            }
        }
        None
    }

    /// What is remembered at a place.
    ///
    /// # Safety
    /// The space must be the caller's, who keeps no other of these, until it is left.
    #[inline(always)]
    unsafe fn memo(&self, place: usize) -> &'a mut WalkMemo {
        let first = self.frames.cast::<u8>().wrapping_add(WALK_FIRST_MEMO - 8).cast::<WalkMemo>();
        let at = first.wrapping_add(place % WALK_MEMOS);
        // SAFETY: in the space, behind its frames, and aligned as words are; any words are one; the caller's alone (contract).
        unsafe { &mut *at }
    }

    /// The ways that are remembered.
    ///
    /// # Safety
    /// As for [`memo`](Self::memo).
    #[inline(always)]
    unsafe fn ways(&self) -> &'a mut [WalkWay; WALK_WAYS] {
        let first = self.frames.cast::<u8>().wrapping_add(WALK_FIRST_WAY - 8).cast::<[WalkWay; WALK_WAYS]>();
        // SAFETY: in the space, behind its memos, and aligned as words are; any words are some; the caller's alone (contract).
        unsafe { &mut *first }
    }

    #[inline(always)]
    fn leave(self) {
        // [WALK-2] All that was done in it is over. Pairs with [WALK-1].
        self.owner.store(0, Release);
    }
}
