//! A program that runs at a hit.
//!
//! For:     consumers that are programs: the code that crate `jit` made, which stands in the region.
//! State:   a [`Hit`] on the thread's stack, or in a workspace of the arena.
//! Context: hit, between the reader's two counts.
//! Keeps:   P1 each hit adds one to one of the consumer's cells: it ran, or why not.
//!          P2 a workspace has one run at a time, and is never waited for.
//!          P3 the saved registers have what the program reads of them before it is called.
//!          P4 the stack pointer stays on the thread's own stack: a signal that comes meanwhile is handled there.
//! Checked: testkit `programs`; `bench trig-uprobe-prog-empty` (hits = calls); `torture live` (P2).

use crate::arch;
use crate::around::{consumer_of, program_of};
use crate::cell::{Adder, Locked, Rseq, shared_copy};
use crate::handler::PtRegs;
use crate::inside::{self, Entered};
use core::mem::{MaybeUninit, offset_of};
use core::sync::atomic::{AtomicU64, Ordering};
use map::Way;
use wire::{
    Bounds, ConsumerDesc, Hit, ProgramDesc, SiteDesc, WORKSPACES_EACH, WORKSPACES_OWN, Workspace, fault,
    needs, program_cell,
};

/// So many workspaces are looked at before a hit gives up.
const LOOK_AT_MOST: u64 = 64;

/// A way into [`run`].
macro_rules! entry {
    ($(#[$of:meta])* $name:ident, $run:expr) => {
        arch::program_entry!(
            $(#[$of])*
            ///
            /// # Safety
            /// As for [`Adder::add`], with the consumer's [`program_cell::COUNT`] cells; `consumer.program` must be the address of
            /// a [`ProgramDesc`] whose program stands in this region, compiled for the context that a hit has; the arena must hold
            /// the workspaces that it names.
            $name,
            $run
        );
    };
}

entry!(
    /// Handler: runs the consumer's program on the thread's stack, in a process whose threads have rseq.
    program_rseq, run::<Rseq>
);
entry!(
    /// Handler: runs the consumer's program in a workspace, in a process whose threads have rseq.
    program_in_space_rseq, run_whole::<Rseq, true>
);
entry!(
    /// Handler: as [`program_rseq`] in a process without rseq.
    program_locked, run_whole::<Locked, false>
);
entry!(
    /// Handler: as [`program_in_space_rseq`] in a process without rseq.
    program_in_space_locked, run_whole::<Locked, true>
);

/// What nearly every hit takes: nothing is called but the program, and nothing is held in a register meanwhile, so none is saved.
///
/// # Safety
/// As for [`program_rseq`].
unsafe extern "C" fn run<A: Adder>(regs: &mut PtRegs, site: &SiteDesc, consumer: &ConsumerDesc, copy: u64) {
    // SAFETY: the consumer's description lives in the arena as long as a list leads to the consumer (contract).
    let desc = unsafe { &*(consumer.program as *const ProgramDesc) };
    // Orders nothing: each bit is true by itself.
    let is_plain = desc.needs.load(Ordering::Relaxed) & (needs::FRAME | needs::FUEL) == 0;
    let entered = match copy > wire::COPY_NONE && is_plain {
        // SAFETY: passed on from the caller.
        true => unsafe { inside::enter_again::<A>(desc, site, copy) },
        false => None,
    };
    let Some(inside) = entered else {
        // SAFETY: passed on from the caller.
        return unsafe { run_whole::<A, false>(regs, site, consumer, copy) };
    };
    let mut room = MaybeUninit::<Hit>::uninit();
    let hit = room.as_mut_ptr();
    // SAFETY: ours, and room for a run.
    unsafe { fill(hit, regs, &At { site, consumer, desc, copy }, inside) };
    // SAFETY: passed on from the caller.
    unsafe { call(desc, hit) };
    // SAFETY: the run that came back; what `fill` wrote is read, and nothing else.
    let run = unsafe { &*hit };
    // SAFETY: made of one.
    let site = unsafe { &*(run.site as *const SiteDesc) };
    // SAFETY: made of one.
    let consumer = unsafe { consumer_of(run) };
    // SAFETY: made of one.
    let desc = unsafe { program_of(run) };
    // SAFETY: passed on from the caller.
    unsafe { end::<A>(&At { site, consumer, desc, copy: run.copy }, run.inside, program_cell::RAN) };
}

/// Any hit.
///
/// # Safety
/// As for [`program_rseq`].
#[inline(never)]
unsafe extern "C" fn run_whole<A: Adder, const IN_SPACE: bool>(
    regs: &mut PtRegs,
    site: &SiteDesc,
    consumer: &ConsumerDesc,
    copy: u64,
) {
    // SAFETY: the consumer's description lives in the arena as long as a list leads to the consumer (contract).
    let desc = unsafe { &*(consumer.program as *const ProgramDesc) };
    let at = At { site, consumer, desc, copy };
    let mut room = MaybeUninit::<Hit>::uninit();
    // SAFETY: passed on from the caller; the room is ours.
    match unsafe { begin::<A, IN_SPACE>(regs, &at, room.as_mut_ptr()) } {
        Ok(hit) => {
            // SAFETY: passed on from the caller.
            unsafe { call(desc, hit) };
            // SAFETY: the run that came back.
            let run = unsafe { &*hit };
            // What is read of it is read now: a workspace may be another's from here on.
            let (inside, became) = (run.inside, became(desc, run));
            if IN_SPACE {
                // SAFETY: ours still; afterwards nobody uses it by this address.
                let owner = unsafe { &(*space_of(hit)).owner };
                // [PROG-1] Orders all that this run did in it before the word that gives it to others. Pairs with [PROG-2], [PROG-3].
                owner.store(0, Ordering::Release);
            }
            // SAFETY: passed on from the caller.
            unsafe { end::<A>(&at, inside, became) };
        }
        // SAFETY: passed on from the caller.
        Err(skipped) => unsafe { tell::<A>(&at, skipped) },
    }
}

/// Notes that a run is over, and counts it.
///
/// # Safety
/// As for [`program_rseq`]; the program must have come back from a run of this place.
#[inline(always)]
unsafe fn end<A: Adder>(at: &At<'_>, inside: u64, became: u32) {
    // SAFETY: as `enter` gave it, to this run.
    unsafe { inside::leave(inside, at.desc) };
    // SAFETY: passed on from the caller.
    unsafe { tell::<A>(at, became) };
}

/// The cell of what a run met. Of one that cannot end early nobody has written that.
#[inline(always)]
fn became(desc: &ProgramDesc, run: &Hit) -> u32 {
    // Orders nothing: of these bits none changes.
    if desc.needs.load(Ordering::Relaxed) & needs::FUEL == 0 || run.fault == 0 {
        return program_cell::RAN;
    }
    note(desc, run.fault, run.detail)
}

/// What a run is led to by.
struct At<'a> {
    site: &'a SiteDesc,
    consumer: &'a ConsumerDesc,
    desc: &'a ProgramDesc,
    copy: u64,
}

/// Adds one to one of the consumer's cells.
///
/// # Safety
/// As for [`program_rseq`].
#[inline(always)]
unsafe fn tell<A: Adder>(at: &At<'_>, became: u32) {
    // SAFETY: passed on from the caller; the cell is one of the consumer's.
    unsafe { A::add(at.copy, at.site, at.consumer.cell + 8 * became, 1) };
}

/// A run, with what it needs, or the cell of why there is none.
///
/// # Safety
/// As for [`program_rseq`]; `room` must be the caller's, and is the run of a program that needs no workspace.
#[inline(always)]
unsafe fn begin<A: Adder, const IN_SPACE: bool>(
    regs: &mut PtRegs,
    at: &At<'_>,
    room: *mut Hit,
) -> Result<*mut Hit, u32> {
    // Orders nothing: each bit is true by itself.
    let needs = at.desc.needs.load(Ordering::Relaxed);
    // SAFETY: passed on from the caller.
    if at.copy <= wire::COPY_NONE && needs & needs::CHILDREN == 0 && unsafe { shared_copy(at.site) }.is_none()
    {
        return Err(program_cell::CHILD);
    }
    if needs & needs::FRAME != 0 {
        arch::fill_in(regs, at.site);
    }
    // SAFETY: passed on from the caller.
    let inside = match unsafe { inside::enter::<A>(at.desc, at.site, at.copy) } {
        Entered::Nested => return Err(program_cell::NESTED),
        Entered::Seen(place) => core::ptr::from_ref(place) as u64,
        Entered::Unseen => 0,
    };
    let hit = if IN_SPACE {
        // SAFETY: passed on from the caller.
        let Some(space) = (unsafe { claim::<A>(at) }) else {
            // SAFETY: as `enter` gave it.
            unsafe { inside::leave(inside, at.desc) };
            return Err(program_cell::NO_WORKSPACE);
        };
        // SAFETY: ours until it is given back (P2); in bounds.
        unsafe { (&raw mut (*space).hit).cast() }
    } else {
        room
    };
    // SAFETY: ours, and room for a run.
    unsafe { fill(hit, regs, at, inside) };
    // SAFETY: ours.
    let run = unsafe { &mut *hit };
    if needs & needs::FUEL != 0 {
        (run.fuel, run.fault, run.calls_left) = (at.desc.fuel, 0, CALLS);
    }
    if IN_SPACE {
        let space = space_of(hit);
        run.calls_left = CALLS;
        run.stack = space as u64 + offset_of!(Workspace, stack) as u64;
        run.scratch = space as u64 + size_of::<Workspace>() as u64;
        if needs & needs::CHECKED != 0 {
            // SAFETY: ours.
            unsafe { bind(space, run, at.desc.scratch_len) };
        }
    }
    Ok(hit)
}

/// Fills in what each run has. What is not written is not read: a detail without a fault, what the program does not need.
///
/// # Safety
/// `hit` must be the caller's, and room for a run.
#[inline(always)]
unsafe fn fill(hit: *mut Hit, regs: &mut PtRegs, at: &At<'_>, inside: u64) {
    // SAFETY: the caller's (contract).
    let run = unsafe { &mut *hit };
    run.regs = core::ptr::from_mut(regs) as u64;
    run.site = core::ptr::from_ref(at.site) as u64;
    run.consumer = core::ptr::from_ref(at.consumer) as u64;
    run.copy = at.copy;
    run.inside = inside;
}

/// The workspace that a run lies in.
#[inline(always)]
fn space_of(hit: *mut Hit) -> *mut Workspace {
    hit.cast::<u8>().wrapping_sub(offset_of!(Workspace, hit)).cast()
}

/// Functions that may be inside the first.
const CALLS: u64 = 7;

/// Leaves for the controller what a run met.
#[cold]
fn note(desc: &ProgramDesc, met: u64, detail: u64) -> u32 {
    // Two words of which each is some run's: for a message, and orders nothing.
    desc.last_fault[0].store(met, Ordering::Relaxed);
    desc.last_fault[1].store(detail, Ordering::Relaxed);
    if fault::kind(met) == fault::FUEL_OUT { program_cell::FUEL } else { program_cell::FAULT }
}

/// Calls the program's code: r1 the saved registers, the run, the arena.
///
/// # Safety
/// As for [`program_rseq`]; `hit` must be a run that is filled in for this program.
#[inline(always)]
unsafe fn call(desc: &ProgramDesc, hit: *mut Hit) {
    // SAFETY: the run's own field (contract).
    let regs = unsafe { (*hit).regs };
    // SAFETY: the code passed jit's gate; what it accesses is its writer's to answer for, or held to the run's bounds (contract).
    unsafe { arch::call_program(desc.entry, regs, hit, desc.arena) };
}

/// A workspace that nobody is in: one of this CPU's own, or one that all may have; `None` after a few.
///
/// # Safety
/// As for [`program_rseq`]; the program must be one that names workspaces which are there.
#[inline(always)]
unsafe fn claim<A: Adder>(at: &At<'_>) -> Option<*mut Workspace> {
    let way = A::way(at.copy, at.site);
    let cpu = u64::from(way.cpu());
    if cpu * (WORKSPACES_EACH as u64) < at.desc.workspaces_count {
        for number in 0..WORKSPACES_OWN as u64 {
            // SAFETY: one of those of this CPU (contract).
            let (space, owner) = unsafe { numbered(at.desc, cpu * WORKSPACES_EACH as u64 + number) };
            // A CPU's own are claimed by sequences of that CPU alone, or all by locked instructions where there is no rseq;
            // who gives one back stores 0 where 1 is, which no sequence changes.
            // [PROG-2] Orders all that the run before did in the workspace before ours. Pairs with [PROG-1].
            let is_ours = owner.load(Ordering::Acquire) == 0 && way.store_if(cpu as u32, owner, 0, 1);
            if is_ours {
                return Some(space);
            }
        }
    }
    // SAFETY: passed on from the caller.
    unsafe { claim_shared(at.desc, cpu) }
}

/// One of those that are claimed by locked instructions.
///
/// # Safety
/// As for [`claim`].
#[cold]
#[inline(never)]
unsafe fn claim_shared(desc: &ProgramDesc, cpu: u64) -> Option<*mut Workspace> {
    const SHARED: u64 = (WORKSPACES_EACH - WORKSPACES_OWN) as u64;
    let cpus = desc.workspaces_count / WORKSPACES_EACH as u64;
    let first = if cpu < cpus { cpu } else { 0 };
    for n in 0..(cpus * SHARED).min(LOOK_AT_MOST) {
        let (of, number) = ((first + n / SHARED) % cpus, WORKSPACES_OWN as u64 + n % SHARED);
        // SAFETY: one of those that are there (contract).
        let (space, owner) = unsafe { numbered(desc, of * WORKSPACES_EACH as u64 + number) };
        // [PROG-3] As [PROG-2]. Pairs with [PROG-1].
        let is_free = owner.load(Ordering::Relaxed) == 0
            && owner.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if is_free {
            return Some(space);
        }
    }
    None
}

/// # Safety
/// There must be so many workspaces.
#[inline(always)]
unsafe fn numbered<'a>(desc: &ProgramDesc, number: u64) -> (*mut Workspace, &'a AtomicU64) {
    let space = (desc.workspaces + number * desc.workspace_len) as *mut Workspace;
    // SAFETY: it is there (contract); the word is accessed as an atomic alone.
    (space, unsafe { &(*space).owner })
}

/// Says what a program that is checked may touch: its stack, the saved registers to read, its scratch memory.
///
/// # Safety
/// The workspace must be the caller's.
#[inline(never)]
unsafe fn bind(space: *mut Workspace, hit: &Hit, scratch_len: u64) {
    let pieces = [
        (hit.stack, wire::STACK_LEN as u64, true),
        (hit.regs, size_of::<PtRegs>() as u64, false),
        (hit.scratch, scratch_len, true),
        (0, 0, false),
    ];
    // SAFETY: the caller's (contract).
    let bounds = unsafe { &mut (*space).hit.bounds };
    for (to, (start, len, is_writable)) in bounds.iter_mut().zip(pieces) {
        let Bounds { start, reads, writes } = Bounds::new(start, len, is_writable);
        let words = reads.into_iter().chain(writes);
        let places = to.reads.iter_mut().chain(&mut to.writes);
        for (place, word) in
            core::iter::once(&mut to.start).chain(places).zip([start].into_iter().chain(words))
        {
            // SAFETY: a field of ours. Word by word and volatile: a call of memcpy is not to be made of it.
            unsafe { core::ptr::from_mut(place).write_volatile(word) };
        }
    }
}

const _: () = assert!(size_of::<Bounds>() == 9 * 8 && wire::BOUNDS_MAX == 4);
