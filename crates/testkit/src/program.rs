//! The target programs and how each is built. A table.
//!
//! For:     `Target::build`.
//! State:   none.
//! Context: control.
//! Keeps:   G1 two different builds never share a file name.
//! Checked: program::tests (G1), tests/targets.rs builds every one.

use std::ffi::OsString;
use std::path::Path;

/// A target program; what it does is said at the head of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Functions called a known number of times, in C: `targets/counted.c`.
    Counted,
    /// The same in Go.
    CountedGo,
    /// The same in Rust.
    CountedRust,
    /// Exceptions through probed functions, in C++.
    Throws,
    /// Every way to leave a function: `targets/returns.c`.
    Returns,
    /// Loads a library, calls it, unloads it.
    Loader,
    /// Threads blocked in every kind of system call.
    Blocked,
    /// Own handlers for SIGTRAP, SIGSEGV and a 1 kHz timer.
    Handlers,
    /// Sees whether it was entered and left as it should: `targets/entered.c`.
    Entered,
    /// A seccomp filter that kills on all but seven system calls.
    Sandboxed,
    /// Forks, vforks, threads that come and go, exec.
    Forker,
    /// 64 threads that call one function all the time.
    Storm,
    /// Threads that write variables a known number of times.
    Watched,
    /// USDT marks, one of them behind a semaphore.
    Marked,
    /// 64 threads that call 50,000 functions.
    Many,
    /// Many threads that call tiny neighbouring functions and check every result.
    Crowd,
    /// Runs another program with one system call refused.
    Refusing,
    /// Runs another program that may not gain executable memory.
    Sealed,
    /// Functions that notice any change of registers, flags and red zone, and odd threads: `targets/exact.c`.
    Exact,
    /// The same, whose code shows that it makes threads by itself.
    ExactPlain,
    /// The same, whose code shows that it may take the time stamp counter away.
    ExactTrap,
    /// Writes over whatever a nanoprobe maps into it.
    Scribbler,
    /// Maps what looks like the memory of a nanoprobe that was killed.
    Forger,
    /// One function, called in ways whose stacks are known.
    Stacked,
    /// A function that is called by code which the program has made, and told of.
    Made,
    /// A function whose name is replaced in a copy of the file.
    Named,
    /// Goroutines that are stopped by signals at any instruction, in Go.
    Preempted,
    /// Execs that fail or lead to itself, and signals to its own process group.
    Restless,
    /// A server whose forked workers do the work.
    Prefork,
    /// First threads, names, children and stacks that make a process hard to enter and to leave.
    Parting,
    /// Functions where no jump fits, left in every way: `targets/tight.c`.
    Tight,
    /// The same calls in every run, in one thread: `targets/same.c`.
    Same,
    /// A cheap function called all the time, and its control beside it: `targets/beside.c`.
    Beside,
}

/// How a C program is linked. Go, Rust and C++ programs have their own way and ignore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Dynamic, position independent: Debian's default.
    Pie,
    /// Dynamic at a fixed address.
    NoPie,
    /// Static glibc at a fixed address.
    Static,
    /// Static glibc, position independent.
    StaticPie,
    /// Static musl.
    Musl,
}

impl Link {
    /// Every way of linking.
    pub const ALL: [Self; 5] = [Self::Pie, Self::NoPie, Self::Static, Self::StaticPie, Self::Musl];
}

/// A compiler and the Debian package that has it.
pub(crate) struct Compiler {
    pub(crate) tool: &'static str,
    pub(crate) package: &'static str,
}

impl Program {
    /// Every program.
    pub const ALL: [Self; 33] = [
        Self::Made,
        Self::Tight,
        Self::Scribbler,
        Self::Forger,
        Self::Named,
        Self::Stacked,
        Self::Counted,
        Self::CountedGo,
        Self::CountedRust,
        Self::Throws,
        Self::Returns,
        Self::Loader,
        Self::Blocked,
        Self::Handlers,
        Self::Entered,
        Self::Sandboxed,
        Self::Forker,
        Self::Storm,
        Self::Watched,
        Self::Marked,
        Self::Many,
        Self::Crowd,
        Self::Refusing,
        Self::Sealed,
        Self::Exact,
        Self::ExactPlain,
        Self::ExactTrap,
        Self::Preempted,
        Self::Restless,
        Self::Prefork,
        Self::Parting,
        Self::Same,
        Self::Beside,
    ];

    /// Files under `targets/`, the ones to compile first.
    pub(crate) fn sources(self) -> &'static [&'static str] {
        match self {
            Self::Scribbler => &["scribbler.c"],
            Self::Forger => &["forger.c"],
            Self::Named => &["named.c"],
            Self::Stacked => &["stacked.c"],
            Self::Made => &["made.c"],
            Self::Counted => &["counted.c", "counted_x86_64.S", "counted.h"],
            Self::CountedGo => &["counted.go"],
            Self::CountedRust => &["counted.rs"],
            Self::Throws => &["throws.cc"],
            Self::Returns => &["returns.c"],
            Self::Loader => &["loader.c"],
            Self::Blocked => &["blocked.c"],
            Self::Handlers => &["handlers.c"],
            Self::Entered => &["entered.c"],
            Self::Sandboxed => &["sandboxed.c"],
            Self::Forker => &["forker.c"],
            Self::Tight => &["tight.c", "tight_x86_64.S"],
            Self::Storm => &["storm.c"],
            Self::Watched => &["watched.c"],
            Self::Marked => &["marked.c", "mark.h"],
            Self::Many => &["many.c", "many_x86_64.S"],
            Self::Crowd => &["crowd.c", "crowd_x86_64.S"],
            Self::Refusing => &["refusing.c"],
            Self::Sealed => &["sealed.c"],
            Self::Exact | Self::ExactPlain | Self::ExactTrap => &["exact.c", "exact_x86_64.S"],
            Self::Preempted => &["preempted.go"],
            Self::Restless => &["restless.c"],
            Self::Prefork => &["prefork.c"],
            Self::Parting => &["parting.c"],
            Self::Same => &["same.c", "mark.h"],
            Self::Beside => &["beside.c"],
        }
    }

    /// The name of the built file.
    pub(crate) fn file_name(self, link: Link) -> String {
        match (self, link) {
            (Self::CountedGo, _) => "counted-go".into(),
            (Self::Preempted, _) => "preempted-go".into(),
            (Self::CountedRust, _) => "counted-rust".into(),
            (Self::Throws, _) => "throws".into(),
            (_, link) => format!("{self:?}-{link:?}").to_lowercase(),
        }
    }

    pub(crate) fn compiler(self, link: Link) -> Compiler {
        let (tool, package) = match (self, link) {
            (Self::CountedGo | Self::Preempted, _) => ("go", "golang"),
            (Self::CountedRust, _) => ("rustc", "none, but rustup"),
            (Self::Throws, _) => ("g++", "g++"),
            (_, Link::Musl) => ("musl-gcc", "musl-tools"),
            _ => ("gcc", "gcc"),
        };
        Compiler { tool, package }
    }

    /// The compiler's arguments, for sources in `from` and an output file `to`.
    pub(crate) fn arguments(self, link: Link, from: &Path, to: &Path) -> Vec<OsString> {
        let flags: &[&str] = match (self, link) {
            (Self::CountedGo | Self::Preempted, _) => &["build", "-o"],
            (Self::CountedRust, _) => &["--edition=2024", "-O", "-Cdebuginfo=1", "-o"],
            (_, Link::Pie) => &["-O2", "-g", "-pthread", "-pie", "-fPIE", "-o"],
            (_, Link::NoPie) => &["-O2", "-g", "-pthread", "-no-pie", "-fno-pie", "-o"],
            (_, Link::Static | Link::Musl) => &["-O2", "-g", "-pthread", "-static", "-o"],
            (_, Link::StaticPie) => &["-O2", "-g", "-pthread", "-static-pie", "-fPIE", "-o"],
        };
        let own: &[&str] = match self {
            Self::ExactPlain => &["-DPLAIN"],
            Self::ExactTrap => &["-DASKS"],
            _ => &[],
        };
        let sources = self.sources().iter().filter(|s| !s.ends_with(".h"));
        own.iter()
            .chain(flags)
            .map(OsString::from)
            .chain([to.into()])
            .chain(sources.map(|s| from.join(s).into()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_of_linking_has_a_file_of_its_own() {
        let mut names: Vec<_> = Link::ALL.iter().map(|link| Program::Counted.file_name(*link)).collect();
        names.extend([Program::CountedGo, Program::CountedRust].map(|p| p.file_name(Link::Pie)));
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
