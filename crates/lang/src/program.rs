//! A lowered script: what the lowering makes and whoever runs programs takes.
//!
//! For:     the lowering, the machine in the controller, later the target and the kernel.
//! State:   none.
//! Context: control.
//! Keeps:   P1 a program names nothing but map indices, helper numbers and its context: no address of any process.
//!          P2 whatever has to be printed leaves a program as one record in one ring, in the order of the program.
//! Checked: `tests/scripts.rs` (every program is accepted by `bpf::Program`), `torture lang`.

use crate::MapKind;
use crate::ast::{Provider, Spec};
use crate::types::{Agg, CTypes, Type};
use std::rc::Rc;
use std::sync::Arc;

/// A whole script.
#[derive(Debug)]
pub struct Script {
    /// One for each attach point, in the order of the script.
    pub probes: Vec<Probe>,
    /// Maps of the script; number `n` is map [`FIRST_MAP`](bpf::helper::FIRST_MAP)` + n` in a program.
    pub maps: Vec<MapDecl>,
    /// The value of map [`CONSTANTS`](bpf::helper::CONSTANTS).
    pub constants: Vec<u8>,
    /// Bytes of the value of map [`SCRATCH`](bpf::helper::SCRATCH).
    pub scratch: usize,
    /// What records mean, by the word that each begins with.
    pub records: Vec<Record>,
    /// Who names addresses of traced processes.
    pub symbols: Option<Named>,
    /// Names of probed places, by cookie.
    pub names: Vec<Arc<str>>,
    /// Formats of times, by the second word of a value of type [`Type::Timestamp`].
    pub time_formats: Vec<Vec<u8>>,
    /// What the numbers in types stand for.
    pub ctypes: CTypes,
}

/// Names of addresses, from whoever knows them.
#[derive(Clone)]
pub struct Named(pub Rc<dyn crate::run::Symbols>);

impl std::fmt::Debug for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Named")
    }
}

/// A program and where it runs.
#[derive(Debug)]
pub struct Probe {
    /// Its full name, as the builtin `probe` gives it.
    pub name: String,
    /// Which event.
    pub event: Event,
    /// What is done. r1 is the context; r0 at the end is what `return` gave.
    pub program: bpf::Program,
    /// Bytes of scratch memory that it uses.
    pub scratch: usize,
    /// What it is, if that takes no program.
    pub native: Option<Native>,
}

/// A probe that does one thing, into a map without keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Native {
    /// It counts its hits.
    Count {
        /// The map, by its place in the script.
        map: usize,
    },
    /// It makes a histogram, of powers of two, of a word of its context.
    Histogram {
        /// The map.
        map: usize,
        /// What the map has.
        agg: Agg,
        /// Byte offset of the word.
        register: u32,
    },
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
    /// In traced processes.
    Target(Target),
    /// In the controller, at each sample of time, of events or of accesses to memory.
    Sampled(Spec),
}

/// Where a program runs in traced processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// What kind of probe.
    pub provider: Provider,
    /// The number of each place, and what the program gets as its cookie there: an index into [`Script::names`].
    pub sites: Vec<(u32, u64)>,
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
    /// What a value is. An aggregation's words ([`map::Agg::words`]) are for each CPU, and only helpers touch them.
    pub value: Type,
    /// Bytes of a plain value. Integers of one and two bytes take eight, so that `@x++` is one atomic instruction.
    pub value_size: usize,
    /// Elements that fit.
    pub max_entries: usize,
    /// Each key is a thread's number, and set and removed by hits of that thread alone.
    pub is_own: bool,
}

/// The key of a map without keys.
pub const SCALAR_KEY: [u8; 8] = [0; 8];

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
    /// An index that an array does not have.
    Bounds,
}
