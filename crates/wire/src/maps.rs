//! The head of a program's maps: what helpers in a target know of them and of the world.
//!
//! For:     helpers in the agent; the controller, which writes it.
//! State:   in front of the maps, in the arena. The controller has values of its own and believes none of these.
//! Context: hit, control.
//! Keeps:   M1 what stands here is written before anything leads to it and does not change, but for the clock. It is true of every
//!             process that has these maps: what is of one process stands in its own [`crate::ProgramDesc`].
//!          M2 a span's numbers are of one writing: its `version` is odd while they are changed, and read before and after.
//! Checked: map's tests/programs/maps.rs, runtime's tests.

use core::sync::atomic::AtomicU64;

/// Where a map's handle stands that has number 0: eight bytes each, which hold the offset of the map from the head.
pub const HANDLES: usize = 512;

/// Errors of helpers that one CPU counts.
pub const ERRORS_MAX: usize = 16;

/// Bytes from one CPU's counts of errors to the next.
pub const ERRORS_STRIDE: usize = 128;

/// Why a helper did not do what it was asked.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HelperError {
    /// A map took no further key.
    MapFull = 0,
    /// Somebody else, perhaps the code that was interrupted, was changing the same place of a map.
    MapBusy = 1,
    /// An argument is no map, or a piece of memory that is not the program's.
    BadArgument = 2,
    /// Memory of the target that is not there.
    ReadFault = 3,
    /// It takes a system call, for which a seccomp filter could end the process.
    ReadRefused = 4,
    /// A record found its ring full.
    RingFull = 5,
    /// A record that fits no ring.
    RecordTooLong = 6,
    /// A helper that there is not in a target.
    NoHelper = 7,
    /// A system call that failed.
    Call = 8,
    /// No number for a stack: more different ones were seen than there is room for.
    StackFull = 9,
    /// The same: too many threads were walking theirs.
    StackBusy = 10,
    /// The same: a forked child's stack is not walked.
    StackOfChild = 11,
    /// A stack that ends early: the next word is not known to be the thread's stack.
    StackNotKnown = 12,
    /// The same: code without unwind information and without a frame pointer.
    StackNoFrame = 13,
    /// The same: unwind information that is missing or not understood.
    StackUnknown = 14,
    /// The same: the next frame would not lie above.
    StackNotUp = 15,
}

impl HelperError {
    /// All of them.
    pub const ALL: [HelperError; 16] = [
        HelperError::MapFull,
        HelperError::MapBusy,
        HelperError::BadArgument,
        HelperError::ReadFault,
        HelperError::ReadRefused,
        HelperError::RingFull,
        HelperError::RecordTooLong,
        HelperError::NoHelper,
        HelperError::Call,
        HelperError::StackFull,
        HelperError::StackBusy,
        HelperError::StackOfChild,
        HelperError::StackNotKnown,
        HelperError::StackNoFrame,
        HelperError::StackUnknown,
        HelperError::StackNotUp,
    ];
}

/// How memory of the target is read that may not be there.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadWay {
    /// Not at all, and helpers make no system call: a seccomp filter could end the process for one.
    Refused = 0,
    /// process_vm_readv(2) of the process by itself.
    VmReadv = 1,
}

/// What a helper knows.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct MapsHead {
    /// How many handles there are.
    pub handles: u64,
    /// Where the constants lie, from the head, and how many bytes.
    pub constants: u64,
    /// Their length.
    pub constants_len: u64,
    /// From here on there are values.
    pub data: u64,
    /// Bytes of all of it.
    pub len: u64,
    /// CPU 0's ring of records, a `map::Ring`.
    pub rings: u64,
    /// From one ring to the next.
    pub ring_stride: u64,
    /// Bytes of a ring.
    pub ring_bytes: u64,
    /// Counts of errors by [`HelperError`], [`ERRORS_STRIDE`] for each CPU.
    pub errors: u64,
    /// How many CPUs there can be.
    pub cpus: u64,
    /// When tracing began, by the clock that goes on in suspend.
    pub began: u64,
    /// The process that was started with the tracing, or 0.
    pub child: u64,
    /// The process's control group.
    pub cgroup: u64,
    /// The process as the first pid namespace numbers it; 0 if that cannot be told.
    pub outer_pid: u64,
    /// The clocks.
    pub clock: Clock,
}

/// Clocks by the time stamp counter, for processes whose programs may read it ([`needs::COUNTER`](crate::needs::COUNTER)).
///
/// What the spans say is one line over all ticks, which never falls: one begins where the other ends, or later, and not lower.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct Clock {
    /// The one that is current, and the one before or behind it.
    pub spans: [Span; 2],
    /// How far the clock is ahead that goes on in suspend, modulo 2^64.
    pub boot: AtomicU64,
    /// How far atomic time is ahead.
    pub tai: AtomicU64,
}

/// The monotonic clock for some ticks of the counter.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Span {
    /// Odd while the others are changed; 0: none was ever written.
    pub version: AtomicU64,
    /// The first tick.
    pub from: AtomicU64,
    /// Behind the last: from here on this says no more than that the clock is not behind what it was then.
    pub until: AtomicU64,
    /// Nanoseconds at the first.
    pub ns: AtomicU64,
    /// Nanoseconds for each tick, times 2^32.
    pub ns_per_tick: AtomicU64,
}

const _: () = assert!(size_of::<MapsHead>() <= HANDLES);
const _: () = assert!(HelperError::ALL.len() <= ERRORS_MAX);
