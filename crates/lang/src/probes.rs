//! Attach points: which event a probe waits for.
//!
//! For:     the parser, which makes them of the text before a predicate; who attaches and prints `probe`.
//! State:   none.
//! Context: control.
//! Keeps:   1. Text that is no known form is an error that names the provider or the missing part.
//!          2. Kernel providers are parsed and kept as [`Spec::Kernel`]; what can run them is not decided here.
//! Checked: tests/language.rs.

use crate::site::Site;
use crate::source::Span;
use std::sync::Arc;

/// One attach point.
#[derive(Clone, Debug)]
pub struct AttachPoint {
    /// Its place.
    pub span: Span,
    /// The name before `=`, if one was given.
    pub label: Option<String>,
    /// As the builtin `probe` prints it, with the provider's long name: `uprobe:/bin/bash:readline`.
    pub text: String,
    /// Its first part.
    pub provider: Provider,
    /// What it waits for.
    pub spec: Spec,
    /// Where that is in traced code; none before the checker has asked.
    pub sites: Arc<[Site]>,
}

/// The first part of an attach point.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum Provider {
    Begin,
    End,
    Test,
    Bench,
    SelfSignal,
    Interval,
    Profile,
    Software,
    Hardware,
    Uprobe,
    Uretprobe,
    Usdt,
    Watchpoint,
    Kprobe,
    Kretprobe,
    Fentry,
    Fexit,
    Tracepoint,
    Rawtracepoint,
    Iter,
}

/// What an attach point waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Spec {
    /// Before all others are attached.
    Begin,
    /// After all others are detached.
    End,
    /// `test:name`
    Test(String),
    /// `bench:name`
    Bench(String),
    /// `self:signal:SIGUSR1`
    Signal(String),
    /// `interval`, `profile`: nanoseconds between two events.
    Period(u64),
    /// `software`, `hardware`: the event, and after how many of them; `None` if not said.
    Event(String, Option<u64>),
    /// `uprobe`, `uretprobe`.
    Uprobe {
        /// File, library name or glob.
        path: String,
        /// Where in it.
        at: Location,
    },
    /// `usdt`.
    Usdt {
        /// File, library name or glob; empty with `-p`.
        path: String,
        /// The mark's provider; `None` if not said.
        namespace: Option<String>,
        /// The mark's name or glob.
        name: String,
    },
    /// `watchpoint`.
    Watchpoint {
        /// Where; a name of our own form `BIN:symbol` if it is no number.
        at: WatchAt,
        /// 1, 2, 4 or 8 bytes.
        len: u8,
        /// On reads.
        read: bool,
        /// On writes.
        write: bool,
        /// On execution.
        execute: bool,
    },
    /// A probe of the kernel: all parts after the provider.
    Kernel(Vec<String>),
}

/// What is watched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WatchAt {
    /// An address.
    Address(u64),
    /// A variable of a file.
    Symbol {
        /// The file.
        path: String,
        /// The variable.
        name: String,
    },
}

/// Where in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Location {
    /// `func`, `func+off`, a glob; `cpp`: a demangled name.
    Function {
        /// The name or glob.
        name: String,
        /// Bytes after its start.
        offset: u64,
        /// With `cpp:`.
        cpp: bool,
    },
    /// An address in the file.
    Address(u64),
    /// `@file:line[:column]`
    Line {
        /// The source file.
        file: String,
        /// The line.
        line: u32,
        /// The column.
        column: Option<u32>,
    },
}
