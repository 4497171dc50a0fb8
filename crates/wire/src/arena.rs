//! The shared mapping: what stands where.
//!
//! For:     controller and agent finding each other's data.
//! State:   written by the controller before the first site is armed, then only read.
//! Context: hit, control.
//! Keeps:   A1 the layout is the same in both builds (`repr(C)`, fixed sizes).
//! Checked: `layout_is_the_same_on_both_sides`.

use core::sync::atomic::AtomicU32;

/// First word of an arena.
pub const ARENA_MAGIC: u64 = u64::from_le_bytes(*b"nprobeA1");
/// Raised with every change of layout.
pub const VERSION: u32 = 8;
/// Name of the memfd behind an arena, as seen in /proc/PID/maps.
pub const ARENA_NAME: &str = "nanoprobe";

/// Copy for locked adds by threads that cannot use a CPU's copy.
pub const COPY_SHARED: usize = 0;
/// Copy for hits in forked children.
pub const COPY_CHILDREN: usize = 1;
/// Copy of CPU 0; CPU n has copy `COPY_CPU0 + n`.
pub const COPY_CPU0: usize = 2;

/// Byte offsets of cells that every copy begins with.
pub mod cell {
    /// Readers that entered by the general path.
    pub const READERS_ENTERED: u32 = 0;
    /// Readers that left.
    pub const READERS_LEFT: u32 = 8;
    /// Calls whose frame was taken by a newer one.
    pub const FRAMES_REPLACED: u32 = 16;
    /// Calls that found no frame.
    pub const FRAMES_NO_ROOM: u32 = 24;
    /// First cell that a plan may give out; cells before it are the runtime's own.
    pub const FIRST_FREE: u32 = 128;
}

/// Start of the arena.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ArenaHeader {
    /// [`ARENA_MAGIC`].
    pub magic: u64,
    /// [`VERSION`].
    pub version: u32,
    /// Number of copies, `COPY_CPU0` + CPUs.
    pub copies: u32,
    /// Offset of copy 0 from the arena's start, in bytes.
    pub copies_offset: u64,
    /// Distance between copies, in bytes.
    pub copy_stride: u64,
    /// Process that made this arena.
    pub controller_pid: i32,
    /// Process it was made for.
    pub target_pid: i32,
    /// When the controller started, in clock ticks since boot: with its pid this names it for ever.
    pub controller_start: u64,
    /// The controller's pid namespace, by inode.
    pub pid_namespace: u64,
    /// Length of the arena in bytes.
    pub len: u64,
    /// Where the threads' rseq areas lie from the thread pointer; `NO_RSEQ` if counts are locked adds.
    pub rseq_offset: i64,
    /// How many of `regions` there are.
    pub regions_len: u64,
    /// Everything else of ours in the target.
    pub regions: [RegionDesc; REGIONS_MAX],
}

/// One region: a table page and the code behind it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionDesc {
    /// Address of the table page, where the region starts.
    pub table: u64,
    /// Address of the code.
    pub code: u64,
    /// Address of the first trampoline's block; blocks stand at multiples of 64.
    pub blocks: u64,
    /// End of the region.
    pub end: u64,
}

/// By which a thread of the target waits for the controller; at [`DOORBELL`] in the arena.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Doorbell {
    /// How often a thread has rung.
    pub rung: AtomicU32,
    /// How many of these the controller has answered; [`Doorbell::CLOSED`]: nobody will answer any more.
    pub answered: AtomicU32,
    /// Who rang before an exec: the n-th ring's thread, in its own pid namespace, at n modulo their number. 0: not yet
    /// written, or taken by the controller.
    pub callers: [AtomicU32; 14],
}

impl Doorbell {
    /// Who rings goes on at once.
    pub const CLOSED: u32 = u32::MAX;

    /// Where the thread of this ring says who it is.
    pub fn caller(&self, ring: u32) -> &AtomicU32 {
        &self.callers[ring as usize % self.callers.len()]
    }
}

/// Where the doorbell is in an arena.
pub const DOORBELL: usize = ARENA_HEAD - 64;

/// Bytes of an arena before what is in it: whole pages.
pub const ARENA_HEAD: usize = 3 * 4096;

/// Neighbourhoods of modules that one session can have, and runs of pages where punned jumps lead.
pub const REGIONS_MAX: usize = 256;
/// [`ArenaHeader::rseq_offset`] without rseq.
pub const NO_RSEQ: i64 = i64::MIN;

const _: () = assert!(size_of::<ArenaHeader>() <= DOORBELL);
const _: () = assert!(DOORBELL + size_of::<Doorbell>() <= ARENA_HEAD);
