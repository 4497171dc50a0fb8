//! What a hit needs to know to walk the stack of its thread.
//!
//! For:     consumers that count by stack, or report one.
//! State:   in the arena: a description, working memory of hits, then the unwind tables (crate `unwind`).
//! Context: the controller writes, hits read; hits write `missed` and the working memory.
//! Keeps:   W1 the description is whole before anything leads to it.
//!          W2 a space belongs to the hit that has set its first word from 0, until it sets it back; what is remembered in it too.
//! Checked: testkit `stacks`.

use core::sync::atomic::AtomicU64;

/// The most frames of a stack, as many as the kernel's.
pub const STACK_FRAMES: usize = 127;
/// Different stacks that a session can tell apart; a power of two.
pub const STACKS_MAX: u32 = 1 << 14;
/// Working memories; a power of two.
pub const WALK_SPACES: usize = 64;
/// Walks that are remembered in each; a power of two.
pub const WALK_MEMOS: usize = 16;
/// Words that a remembered walk may hang on.
pub const WALK_CHECKS: usize = 168;
/// Where what is remembered begins in a space: behind a word that says whose it is, and frames.
pub const WALK_FIRST_MEMO: usize = (1 + STACK_FRAMES) * 8;
/// Ways that are remembered in each; a power of two.
pub const WALK_WAYS: usize = 256;
/// Where these begin in a space.
pub const WALK_FIRST_WAY: usize = WALK_FIRST_MEMO + WALK_MEMOS * size_of::<WalkMemo>();
/// Bytes of a space.
pub const WALK_SPACE: usize = WALK_FIRST_WAY + WALK_WAYS * size_of::<WalkWay>();
/// Where the tables begin.
pub const WALK_TABLES: usize = 4096 + WALK_SPACES * WALK_SPACE;
/// Where the spaces begin.
pub const WALK_FIRST_SPACE: usize = 4096;

/// How stacks of a process are walked.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct WalkDesc {
    /// The first thread's stack, and the room below into which it alone may grow: from here ...
    pub main_start: AtomicU64,
    /// ... to here.
    pub main_end: AtomicU64,
    /// Where a thread's libc has written where its stack begins and, in the next word, its length: from its pointer. 0 if that
    /// is not known.
    pub block: AtomicU64,
    /// Words of 32 bits for tables.
    pub words: AtomicU64,
    /// Address in the target of the stacks that were seen, a `map::Stacks`.
    pub stacks: AtomicU64,
    /// Byte offset in a copy of the cells of stacks, by number.
    pub cells: AtomicU64,
    /// The most frames.
    pub most: AtomicU64,
    /// An address of code in no module with a table, since the controller has last looked; 0 for none.
    pub missed: AtomicU64,
}

/// How the frame of an address is left: what the tables say of it, once it was looked up.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WalkWay {
    /// The address; 0: nothing is remembered here.
    pub pc: u64,
    /// Which tables were asked.
    pub tables: u32,
    /// What was found, as crate `unwind` has it.
    pub way: u32,
}

/// A walk that was made, what it hangs on, and what was found.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WalkMemo {
    /// Where it began; 0: nothing is remembered here.
    pub pc: u64,
    /// The stack pointer there.
    pub sp: u64,
    /// Where what is known to be the stack ends.
    pub end: u64,
    /// Which tables it went by.
    pub tables: u32,
    /// Frames that were asked for, and in the highest bit whether it began at a function's entry.
    pub most: u32,
    /// The stack's number.
    pub number: u32,
    /// How many frames it has.
    pub len: u32,
    /// Why it ended.
    pub stop: u32,
    /// How many words it hangs on.
    pub words: u32,
    /// A bit for each register that it hangs on.
    pub registers: u64,
    /// What these had.
    pub values: [u64; 8],
    /// Words of the stack: how far above the stack pointer, and what stood there.
    pub checks: [[u64; 2]; WALK_CHECKS],
}

/// Cells of a consumer that walks.
pub mod walk_cell {
    /// Hits whose stack has a number.
    pub const HANDLED: u32 = 0;
    /// Hits whose stack has none: as many different ones were seen as there is room for.
    pub const FULL: u32 = 1;
    /// Hits for which no working memory was free.
    pub const NO_SPACE: u32 = 2;
    /// Hits in forked children, whose stacks are not walked.
    pub const CHILD: u32 = 3;
    /// Cells that a hit adds one to; before those that say how stacks ended.
    pub const OF_HITS: u32 = 4;
    /// Stacks that ended early, by why: the reasons of crate `unwind`, from its third on.
    pub const CUT: u32 = 4;
    /// All of them.
    pub const CELLS: u32 = 8;
}

/// In [`crate::ConsumerDesc::arg`] of a consumer that walks: its first frame is where a function begins or is left.
pub const WALK_AT_ENTRY: u32 = 1;
/// The same: it is Go code.
pub const WALK_IN_GO: u32 = 2;
