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

/// Where things stand in an element of a table, and bits of them.
pub mod element {
    /// Its version: odd while it is changed, 0 of one that never was a key's.
    pub const VERSION: usize = 4;
    /// How it is used.
    pub const USED: usize = 12;
    /// The key, in words; where values do not lie apart, the value behind it.
    pub const DATA: usize = 16;
    /// In the version: it is being changed.
    pub const CHANGES: u32 = 1;
    /// In the version: the key is gone, and would come back to this element.
    pub const ASLEEP: u32 = 2;
    /// In the word of use: it is in the map.
    pub const IS_LIVE: u32 = 2;
}

/// What a helper answers of a key that is not there: -ENOENT.
pub const NOT_THERE: i64 = -2;

/// How a key leads to its chain: its length, and with each word the sum so far, exclusive or the word, exclusive or
/// [`SALT`](chain::SALT), times [`SPREAD`](chain::SPREAD), the product's halves by exclusive or; of the last sum the halves so too. The
/// lowest bits are the chain's number.
pub mod chain {
    /// See above.
    pub const SALT: u64 = 0x8bb8_4b93_962e_acc9;
    /// See above.
    pub const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    /// From one chain to the next.
    pub const UNIT: usize = 8;
    /// In one: the first element's index from 1 on; or what is no index.
    pub const HEAD: usize = 4;
}

/// What code that is compiled for a table has to know, to look for a key where its thread has found one before, or where its chain
/// begins.
///
/// None of it changes while a program may run. Places of the table are counted from the arena's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NearTable {
    /// Where the word is that the thread remembers by, in its [`crate::Inside`]: the element's index from 1 on is its lower half, and may
    /// be any number.
    pub near: u32,
    /// The first chain.
    pub chains: u32,
    /// How many there are: a power of two.
    pub buckets: u32,
    /// The first element.
    pub elements: u32,
    /// From one element to the next.
    pub unit: u32,
    /// How many there are.
    pub limit: u32,
    /// The elements of the first so many indexes stay with their keys.
    pub stay: u32,
    /// Bytes of a key: half a word, or whole ones.
    pub key_len: u32,
    /// What a key has.
    pub value: NearValue,
}

/// What a key has in a [`NearTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NearValue {
    /// A value beside the key, so far from the beginning of its element.
    Plain {
        /// See above.
        at: u32,
        /// Its length in bytes, if it is a word's or that of half of one.
        word: Option<u32>,
    },
    /// Words of each CPU's.
    Aggregate {
        /// Those of the first key and the first CPU.
        at: u32,
        /// From one key's to the next.
        unit: u32,
        /// From one CPU's to the next.
        stride: u64,
        /// How many CPUs have some.
        cpus: u32,
        /// What a value does to them.
        how: NearAdd,
    },
}

/// What a value does to a key's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NearAdd {
    /// The first counts it.
    Count,
    /// It is added to the first.
    Sum,
    /// The one is counted on that it belongs to: of so many, by powers of two that are cut in 1 << `bits`.
    Hist {
        /// See above.
        bits: u8,
        /// How many words there are.
        words: u32,
    },
}

impl NearAdd {
    /// A histogram's as one word; 0 where the first word is added to.
    pub const fn to_word(self) -> u64 {
        match self {
            NearAdd::Count | NearAdd::Sum => 0,
            NearAdd::Hist { bits, words } => (words as u64) << 8 | (bits as u64 + 1),
        }
    }

    /// The bits and the number of words of a histogram's word.
    pub const fn hist_of(word: u64) -> Option<(u8, u32)> {
        match word as u8 {
            0 => None,
            bits => Some((bits - 1, (word >> 8) as u32)),
        }
    }
}

const _: () = assert!(size_of::<MapsHead>() <= HANDLES);
const _: () = assert!(HelperError::ALL.len() <= ERRORS_MAX);
