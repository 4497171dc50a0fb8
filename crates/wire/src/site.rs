//! What the agent knows of a site and of its consumers.
//!
//! For:     the general hit path: a site's trampoline passes its [`SiteDesc`] to the agent.
//! State:   in the arena; the controller writes, hits read.
//! Context: hit, control.
//! Keeps:   S1 `first` points to a complete consumer, or is 0 (published with release order).
//!          S2 a run is complete before anything leads to it, and does not change while something does.
//! Checked: session's tests, `bench trig-uprobe-nop trig-uprobe-multi8` (hits = calls).

use crate::HELPERS_LEN;
use core::sync::atomic::AtomicU64;

/// One armed site, as its trampoline passes it to the agent.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct SiteDesc {
    /// Address of the first [`ConsumerDesc`] in the target, 0 for none.
    pub first: AtomicU64,
    /// Address in the target of CPU 0's entry of the table page.
    pub table: u64,
    /// Where a thread's rseq area lies from its pointer; of no use without rseq.
    pub rseq_offset: i64,
    /// What lies between the saved registers and the program's stack pointer: words of the trampoline's, and a red zone if it
    /// has one.
    pub red_zone: u64,
    /// The probed address.
    pub addr: u64,
    /// Address in the target of the copy for hits in forked children.
    pub children: u64,
    /// Address in the target of the table of open calls, a `map::Frames`.
    pub frames: u64,
    /// Nanoseconds for each tick of the time stamp counter, times 2^32.
    pub ns_per_tick: u64,
    /// Address in the target of CPU 0's ring of events, a `map::Ring`.
    pub rings: u64,
    /// Where a thread's number lies from its pointer, 0 if that is not known.
    pub tid_offset: u64,
    /// Not 0: a thread's pointer can be read by `rdfsbase`. Of use without rseq.
    pub has_fsgsbase: u64,
    /// Not 0: the arithmetic flags are in the word behind the saved registers.
    pub has_flags: u64,
    /// Number of the process in its own pid namespace, as its programs tell it. Written with `family` behind it, as one word.
    pub process: u32,
    /// 0: programs have their maps alone. Else the number of this process, or of its program, among those that share the maps: by
    /// locked instructions nobody adds to a CPU's copy then, which others add to by sequences; and it stands in a stack's number.
    pub family: u32,
    /// Not 0: a function begins here, or is left: its return address is on top of the stack.
    pub is_edge: u64,
    /// Address of the function that is left here; elsewhere the probed address.
    pub function: u64,
    /// By the time stamp counter: what is known of calls that began before is not believed, for their ends may have been missed.
    pub since: u64,
}

// Two lines of the cache: a hit reads from both.
const _: () = assert!(size_of::<SiteDesc>() == 128);

/// What a handler gets in the place of a copy's address where the thread pointer leads to no thread's block: nothing that
/// is found through it is there.
pub const COPY_UNKNOWN: u64 = 0;
/// The same in a thread whose block is known, if the hit has no CPU's copy: it was interrupted, or has no rseq.
pub const COPY_NONE: u64 = 1;

/// One consumer of a site, or the first of a run: of consumers with the same handler, side by side in memory, that
/// one call of the handler serves.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ConsumerDesc {
    /// Address in the target of the next consumer behind the run, 0 for none.
    pub next: AtomicU64,
    /// Address of the handler in the target.
    pub handler: u64,
    /// Byte offset of the consumer's first cell in a copy.
    pub cell: u32,
    /// Handler's own: for a histogram, the byte offset of the argument in the saved registers and its unused bits ([`ARG_SHIFT`]); for calls, the
    /// function's number.
    pub arg: u32,
    /// Address in the target of the arena's [`crate::Doorbell`].
    pub doorbell: u64,
    /// Consumers from here to the run's end, this one included: at least 1.
    pub run: u64,
    /// Address in the target of the [`crate::ProgramDesc`] of a program in this region.
    pub program: u64,
    /// What a program gets as its cookie.
    pub cookie: u64,
    /// Address in the target of the arena's [`crate::WalkDesc`], 0 if there is none.
    pub walk: u64,
}

/// The handlers that the agent has.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandlerKind {
    /// Adds one to its cell.
    Count = 0,
    /// Adds one to the cell of the argument's power of two: cell 0 for 0, cell n for `[2^(n-1), 2^n)`.
    Log2Histogram = 1,
    /// Opens a call.
    Enter = 2,
    /// Closes a call and adds its duration to the function's cells.
    Leave = 3,
    /// The same in Go.
    EnterGo = 4,
    /// The same in Go.
    LeaveGo = 5,
    /// Waits until the controller has seen the hit.
    Ring = 6,
    /// Reports a call's beginning.
    TraceEnter = 7,
    /// Reports a call's end.
    TraceLeave = 8,
    /// Says which thread is about to exec, and waits until the controller knows.
    RingBeforeExec = 9,
    /// Runs a program on the thread's stack.
    Program = 10,
    /// Runs a program that needs a workspace.
    ProgramInSpace = 11,
    /// Counts by stack.
    CountStack = 12,
    /// Reports a call's beginning with the stack that led to it.
    TraceEnterStack = 13,
    /// As a histogram, for a run of them of one argument.
    Log2Histograms = 14,
    /// As a count, for a run of them.
    Counts = 15,
}

/// The part of a histogram's [`ConsumerDesc::arg`] that is the byte offset.
pub const ARG_OFFSET: u32 = 0xffff;
/// How far above it stands how many upper bits of the register are not the argument's: 0, 32, 48 or 56.
pub const ARG_SHIFT: u32 = 16;

/// In [`ConsumerDesc::arg`] of the tracing handlers, above the function's number: it is Go code.
pub const TRACE_GO: u32 = 1 << 31;
/// And: it is left by a jump to another function, so that what is returned is not known yet. Stands in [`crate::Event::what`] too.
pub const TRACE_JUMP: u32 = 1 << 30;
/// The tracing handlers' cell for lost events; the one before it counts those that were written.
pub const TRACE_LOST: u32 = 1;

/// How many handlers there are.
pub const HANDLERS_LEN: usize = 16;

/// Entry points of one build of the handlers.
#[repr(C)]
#[derive(Debug)]
pub struct AgentTable {
    /// `extern "C" fn(&pt_regs, &SiteDesc, &ConsumerDesc, copy: u64)`, by [`HandlerKind`].
    pub handlers: [u64; HANDLERS_LEN],
    /// What programs call, by [`crate::Helper`].
    pub helpers: [u64; HELPERS_LEN],
}

/// What the agent exports, found by the symbol `NANOPROBE_EXPORTS`.
#[repr(C)]
#[derive(Debug)]
pub struct AgentExports {
    /// [`crate::VERSION`] the agent was built with.
    pub version: u64,
    /// For processes whose threads have rseq.
    pub rseq: AgentTable,
    /// For processes whose threads have not.
    pub locked: AgentTable,
}
