//! The names that can be given (table).
//!
//! For:     options, `-l`, the run.
//! State:   none.
//! Context: control.
//! Keeps:   nothing.
//! Checked: options' tests.

use super::functions::Function;
use session::Verb;

/// One benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Benchmark {
    /// As in the sources' lines, without `trig-`.
    pub name: &'static str,
    /// What a producer calls.
    pub function: Function,
    /// What is in the function.
    pub probe: Option<Verb>,
    /// One line for `-l`.
    pub about: &'static str,
}

const fn row(name: &'static str, function: Function, probe: Option<Verb>, about: &'static str) -> Benchmark {
    Benchmark { name, function, probe, about }
}

/// All of them.
pub const ALL: [Benchmark; 7] = [
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
    row("uprobe-count", Function::Nop, Some(Verb::Count), "counter compiled into the trampoline, 1-byte nop"),
];

/// The benchmark with this name, `trig-` before it or not.
pub fn named(name: &str) -> Option<Benchmark> {
    let bare = name.strip_prefix("trig-").unwrap_or(name);
    ALL.into_iter().find(|b| b.name == bare)
}
