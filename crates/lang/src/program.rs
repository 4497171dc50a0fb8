//! A lowered script: what the lowering makes and whoever runs programs takes.
//!
//! For:     the lowering, the machine in the controller, later the target and the kernel.
//! State:   none.
//! Context: control.
//! Keeps:   P1 a program names nothing but map indices, helper numbers and its context: no address of any process.
//!          P2 whatever has to be printed leaves a program as one record in one ring, in the order of the program.
//! Checked: `tests/scripts.rs` (every program is accepted by `bpf::Program`), `tests/generated.rs`.

use crate::MapKind;
use crate::types::{Agg, CTypes, Type};
use std::rc::Rc;

/// A whole script.
#[derive(Debug)]
pub struct Script {
    /// One for each attach point, in the order of the script.
    pub probes: Vec<Probe>,
    /// Maps of the script; number `n` is map [`FIRST_MAP`]` + n` in a program.
    pub maps: Vec<MapDecl>,
    /// The value of map [`CONSTANTS`].
    pub constants: Vec<u8>,
    /// Bytes of the value of map [`SCRATCH`].
    pub scratch: usize,
    /// What records mean, by the word that each begins with.
    pub records: Vec<Record>,
    /// Formats of times, by the second word of a value of type [`Type::Timestamp`].
    pub time_formats: Vec<Vec<u8>>,
    /// What the numbers in types stand for.
    pub ctypes: CTypes,
}

/// Map number of the constants: an array of one read-only value.
pub const CONSTANTS: i32 = 0;
/// Map number of scratch memory: an array of one value that nobody else uses during a run of a program.
pub const SCRATCH: i32 = 1;
/// Map number of the ring that records leave by.
pub const RING: i32 = 2;
/// Map number of the script's first map.
pub const FIRST_MAP: i32 = 3;

/// A program and where it runs.
#[derive(Debug)]
pub struct Probe {
    /// Its full name, as the builtin `probe` gives it.
    pub name: String,
    /// Which event.
    pub event: Event,
    /// What is done. r1 is the context; r0 at the end is what `return` gave.
    pub program: bpf::Program,
}

/// When a program runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Before all others.
    Begin,
    /// After all others.
    End,
    /// Every so many nanoseconds.
    Interval(u64),
    /// When the controller gets this signal.
    Signal(i32),
    /// With `--test`.
    Test(String),
    /// With `--bench`.
    Bench(String),
    /// In a target: not run by the controller.
    Target(String),
}

/// A map of the script.
#[derive(Clone, Debug)]
pub struct MapDecl {
    /// With `@`.
    pub name: String,
    /// How elements are kept.
    pub kind: MapKind,
    /// What a key is; `None` for a scalar, whose one key is eight bytes of zeros.
    pub key: Option<Type>,
    /// Bytes of a key.
    pub key_size: usize,
    /// What a value is. An aggregation's words ([`words`]) are for each CPU, and only helpers touch them.
    pub value: Type,
    /// Bytes of a plain value. Integers of one and two bytes take eight, so that `@x++` is one atomic instruction.
    pub value_size: usize,
    /// Elements that fit.
    pub max_entries: usize,
}

/// The key of a map without keys.
pub const SCALAR_KEY: [u8; 8] = [0; 8];

/// How many words of eight bytes each CPU has for a key:
///
/// | of | words |
/// | --- | --- |
/// | count, sum | the number |
/// | min, max | the number, and 1 once there is one |
/// | avg, stats | count, sum |
/// | hist | negative values, then `1 << bits` buckets a power of two |
/// | lhist | below `min`, each step, from `max` on |
/// | tseries | for each interval, at the epoch modulo their number: epoch + 1, value, count, time of the last |
pub fn words(agg: Agg) -> usize {
    match agg {
        Agg::Count | Agg::Sum { .. } => 1,
        Agg::Min { .. } | Agg::Max { .. } | Agg::Avg { .. } | Agg::Stats { .. } => 2,
        Agg::Hist { bits } => (65 << bits.min(5)) + 1,
        Agg::Lhist { min, max, step } => {
            let buckets = (i128::from(max) - i128::from(min)) / i128::from(step.max(1));
            usize::try_from(buckets.max(0)).unwrap_or(0) + 2
        }
        Agg::Tseries { num, .. } => 4 * num as usize,
    }
}

/// What a record of the ring means: its first word (eight bytes) is its number, the arguments follow as a tuple.
#[derive(Clone, Debug)]
pub struct Record {
    /// What is to be done.
    pub what: What,
    /// What follows the first word.
    pub args: Vec<Type>,
    /// Where it was written, for messages.
    pub place: Rc<Place>,
}

/// Where something was written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Place {
    /// `stdin:1:9-12`.
    pub at: String,
    /// The file, `stdin`.
    pub file: String,
    /// The line.
    pub line: u32,
    /// The first column.
    pub column: u32,
    /// The source line and a line that marks the place under it.
    pub context: Vec<String>,
}

/// What the reader of a record does.
#[derive(Clone, Debug)]
pub enum What {
    /// Prints the arguments with a format.
    Printf(Rc<Vec<u8>>),
    /// The same as an error (true) or a warning.
    Message {
        /// An error, not a warning.
        is_error: bool,
        /// The format.
        format: Rc<Vec<u8>>,
    },
    /// Writes the arguments with a format to the kernel's trace.
    Debug(Rc<Vec<u8>>),
    /// Prints one value.
    Print,
    /// Prints a map; arguments: how many of the largest (0: all), divisor.
    PrintMap(usize),
    /// Prints one element of a map of aggregates; argument: the key.
    PrintElement(usize),
    /// Empties a map.
    Clear(usize),
    /// Makes all values of a map zero.
    Zero(usize),
    /// Prints the time of day with a format.
    Time(Rc<Vec<u8>>),
    /// Prints a file; the format and arguments give its name.
    Cat(Rc<Vec<u8>>),
    /// Runs a command; the format and arguments give it.
    System(Rc<Vec<u8>>),
    /// Prints strings with a separator between them.
    Join(Rc<Vec<u8>>),
    /// Ends tracing; argument: the exit code.
    Exit,
    /// An error of the program itself; arguments as said by [`Trouble`].
    Trouble(Trouble),
}

/// Errors of running programs. Each is counted by cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// A division by 0, whose result is 1.
    Division,
    /// A map took no further key.
    MapFull,
    /// A key that was to be deleted is not there.
    NoKey,
    /// A key that was looked up is not there (told with `-k`).
    Lookup,
    /// A read of a target's memory failed; argument: the error.
    Read {
        /// The helper.
        helper: &'static str,
    },
    /// `cpid` without a child.
    NoChild,
}

/// Helpers by number. Below [`help::OWN`] they are BPF's own, with BPF's contract.
///
/// Pointers lie in the stack, in scratch, in the constants or in a map's value; lengths are in bytes; results are 0 or a
/// negative errno unless said otherwise.
pub mod help {
    /// (map, key) -> value's address or 0.
    pub const MAP_LOOKUP: u32 = 1;
    /// (map, key, value, flags) -> 0, -E2BIG if the map is full.
    pub const MAP_UPDATE: u32 = 2;
    /// (map, key) -> 0, -ENOENT.
    pub const MAP_DELETE: u32 = 3;
    /// () -> nanoseconds of the monotonic clock.
    pub const KTIME_GET_NS: u32 = 5;
    /// () -> 32 random bits.
    pub const PRANDOM_U32: u32 = 7;
    /// () -> number of the CPU.
    pub const SMP_PROCESSOR_ID: u32 = 8;
    /// () -> process << 32 | thread.
    pub const PID_TGID: u32 = 14;
    /// () -> group << 32 | user.
    pub const UID_GID: u32 = 15;
    /// (to, length) -> 0; the name of the thread with a NUL.
    pub const COMM: u32 = 16;
    /// () -> number of the NUMA node.
    pub const NUMA_NODE_ID: u32 = 42;
    /// (to, length, from): memory of the target, or the program's own (`&$x`); on failure `to` is zeros.
    pub const PROBE_READ_USER: u32 = 112;
    /// (to, length, from): the program's own memory; a copy of any length.
    pub const PROBE_READ_OWN: u32 = 113;
    /// () -> nanoseconds of the clock that goes on in suspend.
    pub const KTIME_GET_BOOT_NS: u32 = 125;
    /// (ring, from, length, flags) -> 0.
    pub const RINGBUF_OUTPUT: u32 = 130;
    /// () -> nanoseconds of atomic time.
    pub const KTIME_GET_TAI_NS: u32 = 208;

    /// Where the numbers begin that BPF has not.
    pub const OWN: u32 = 0x4e50_0000;
    /// (map, key) -> address of the value, which was made of zeros if there was none; 0 if the map is full.
    pub const LOOKUP_OR_INIT: u32 = OWN;
    /// (map, key, value, time in ns) -> 0, -E2BIG. Takes a value into an aggregate, exactly, whatever the CPU does meanwhile.
    pub const AGGREGATE: u32 = OWN + 1;
    /// (map, key) -> one number over all CPUs: count, sum, smallest, largest, average. 0 without an element.
    pub const AGGREGATED: u32 = OWN + 2;
    /// (map, cursor, key, value) -> 1 and the next element copied, or 0 at the end. The cursor is eight bytes, 0 at first. An
    /// element that is there all the time is met once; of an aggregate the value is what [`AGGREGATED`] gives.
    pub const MAP_NEXT: u32 = OWN + 3;
    /// (map) -> number of elements.
    pub const MAP_LEN: u32 = OWN + 4;
    /// (a, length of a, b, length of b) -> 0 if the strings are equal, else -1 or 1. A NUL ends a string.
    pub const STR_COMPARE: u32 = OWN + 5;
    /// (a, b, n) -> the same for n bytes, which NULs do not end.
    pub const MEM_COMPARE: u32 = OWN + 6;
    /// (hay, its length, needle, its length) -> where the needle is first, -1 if nowhere.
    pub const STR_FIND: u32 = OWN + 7;
    /// (a, length) -> bytes before the NUL.
    pub const STR_LEN: u32 = OWN + 8;
    /// (to, length): zeros.
    pub const MEM_ZERO: u32 = OWN + 9;
    /// (kind, to, length) -> something about the current thread; see [`About`](super::About).
    pub const ABOUT: u32 = OWN + 10;
    /// (to, length, from, length of from) -> 0: the string `from` behind the string `to`, as far as there is room.
    pub const STR_APPEND: u32 = OWN + 11;
    /// (kind, number, to, length): text for an errno, a signal, a system call.
    pub const NAME_OF: u32 = OWN + 12;
    /// (to, frames, is by unwind tables): 24 bytes about the target's stack: number of the stack in a table, number of
    /// frames, process.
    pub const USER_STACK: u32 = OWN + 13;
    /// (process, to, length): the name of a process.
    pub const COMM_OF: u32 = OWN + 14;
    /// () -> the process that was started with the tracing, 0 without one.
    pub const CHILD: u32 = OWN + 15;
    /// (address, from, length) -> 0; writes a target's memory. Only with `--unsafe`.
    pub const WRITE_USER: u32 = OWN + 16;
    /// (signal, to the thread only) -> 0. Only with `--unsafe`.
    pub const SEND_SIGNAL: u32 = OWN + 17;
    /// (to, length): zeros behind the first NUL.
    pub const STR_TIDY: u32 = OWN + 18;
    /// (to, length, from) -> 0 or a negative errno: text of a target, or of the program's own memory. `to` is zeros before; it
    /// has no NUL afterwards only if there was more text.
    pub const PROBE_READ_TEXT: u32 = OWN + 19;
}

/// What [`help::ABOUT`] is asked; texts go to memory, numbers are the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum About {
    /// The parent's process number.
    Ppid,
    /// The parent's name.
    Pcomm,
    /// The first thread's number.
    LeaderTid,
    /// The first thread's name.
    LeaderComm,
    /// The control group's number.
    Cgroup,
    /// Process and thread as the first pid namespace numbers them, packed as [`help::PID_TGID`] does.
    InitPidTgid,
    /// Ticks since boot.
    Jiffies,
    /// When tracing began, by [`help::KTIME_GET_BOOT_NS`].
    Began,
}

/// What [`help::NAME_OF`] names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Named {
    /// An errno.
    Error,
    /// A signal.
    Signal,
    /// A system call of this machine.
    Syscall,
}

/// Most bytes of arguments that fit a record.
pub const RECORD_MAX: usize = 1 << 16;
