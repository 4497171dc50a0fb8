//! The names that can be given (table).
//!
//! For:     options, `-l`, the run.
//! State:   none.
//! Context: control.
//! Keeps:   nothing.
//! Checked: options' tests.

use super::functions::Function;
use super::programs::Seed;
use session::{Flavour, Verb};

/// One benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Benchmark {
    /// As in the sources' lines, without `trig-`.
    pub name: &'static str,
    /// What a producer calls.
    pub function: Function,
    /// What is in the function.
    pub probe: Option<Verb>,
    /// The probe is where the function returns.
    pub is_return: bool,
    /// How many consumers are on the site; more than one are run beside one.
    pub consumers: usize,
    /// Every second of them is a histogram, so that no two in a row have one handler.
    pub is_mixed: bool,
    /// What the consumer runs, instead of what the verb calls.
    pub program: Option<Seed>,
    /// One line for `-l`.
    pub about: &'static str,
}

const fn row(name: &'static str, function: Function, probe: Option<Verb>, about: &'static str) -> Benchmark {
    Benchmark { name, function, probe, is_return: false, consumers: 1, is_mixed: false, program: None, about }
}

const fn at_return(name: &'static str, function: Function, about: &'static str) -> Benchmark {
    Benchmark { is_return: true, ..row(name, function, Some(Verb::CountByHandler), about) }
}

const fn multi(name: &'static str, consumers: usize, about: &'static str) -> Benchmark {
    Benchmark { consumers, ..row(name, Function::Nop, Some(Verb::CountByHandler), about) }
}

const fn program(name: &'static str, seed: Seed, about: &'static str) -> Benchmark {
    Benchmark { program: Some(seed), ..row(name, Function::Nop, Some(Verb::CountByHandler), about) }
}

/// All of them.
pub const ALL: [Benchmark; 22] = [
    row("usermode-count", Function::Nop, None, "calls of the nop function, no probe: the loop's cost"),
    row("syscall-count", Function::Syscall, None, "one cheap system call per loop"),
    row(
        "uprobe-nop",
        Function::Nop,
        Some(Verb::CountByHandler),
        "general path, first instruction a 1-byte nop",
    ),
    row(
        "uprobe-push",
        Function::Push,
        Some(Verb::CountByHandler),
        "general path, first instruction push %rbp",
    ),
    row("uprobe-ret", Function::Ret, Some(Verb::CountByHandler), "general path, function of one ret"),
    row(
        "uprobe-nop5",
        Function::Nop5,
        Some(Verb::CountByHandler),
        "general path, first instruction a 5-byte nop",
    ),
    row(
        "usdt-nop",
        Function::Usdt,
        Some(Verb::CountByHandler),
        "general path, a USDT mark inside a function",
    ),
    at_return("uretprobe-nop", Function::Nop, "return of the same function"),
    at_return("uretprobe-push", Function::Push, "return of the same function"),
    at_return("uretprobe-ret", Function::Ret, "return of the same function"),
    at_return("uretprobe-nop5", Function::Nop5, "return of the same function"),
    row(
        "lat-nop",
        Function::Nop,
        Some(Verb::Latency),
        "a call timed: entry and return, two readings of the clock",
    ),
    row("lat-push", Function::Push, Some(Verb::Latency), "the same for a function with a frame"),
    multi("uprobe-multi2", 2, "two counting consumers on one site, beside one; each counts every call"),
    multi("uprobe-multi8", 8, "eight counting consumers on one site, beside one; each counts every call"),
    Benchmark {
        is_mixed: true,
        ..multi(
            "uprobe-mixed8",
            8,
            "the same, every second of them a histogram: no two in a row have one handler",
        )
    },
    program("uprobe-prog-empty", Seed::Empty, "a program that does nothing"),
    program("uprobe-prog-no", Seed::No, "a program that compares the first argument and is not interested"),
    program("uprobe-prog-add", Seed::Add, "a program that adds one to a word of its maps, locked"),
    program("uprobe-prog-space", Seed::Space, "a program that needs a workspace, and does nothing in it"),
    program("uprobe-prog-tid", Seed::Tid, "a program that asks for its thread's number"),
    row("uprobe-count", Function::Nop, Some(Verb::Count), "counter compiled into the trampoline, 1-byte nop"),
];

impl Benchmark {
    /// Which readers its hits are, in words for the line of a run: none if a count is all that a hit is.
    pub fn readers(&self, flavour: Flavour) -> String {
        if self.probe == Some(Verb::Count) { String::new() } else { format!(", {flavour} readers") }
    }
}

/// The benchmark with this name, `trig-` before it or not.
pub fn named(name: &str) -> Option<Benchmark> {
    let bare = name.strip_prefix("trig-").unwrap_or(name);
    ALL.into_iter().find(|b| b.name == bare)
}
