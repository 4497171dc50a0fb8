//! Why nothing is watched.
//!
//! For:     the command line, which adds what to type next.
//! State:   the facts.
//! Context: control.
//! Keeps:   nothing.
//! Checked: testkit `watching`.

use crate::facts::error::Broken;
use crate::find::process;
use image::{ImageError, lookup::LookupError};
use std::fmt;
use sys::Errno;

/// Why the watchpoints were not set.
#[derive(Debug)]
#[non_exhaustive]
pub enum WatchError {
    /// The specification cannot be read.
    Spec {
        /// As typed.
        text: String,
        /// What is wrong.
        why: &'static str,
    },
    /// The process or a file of it cannot be read.
    Image(ImageError),
    /// No such file in the process.
    Lookup(LookupError),
    /// No such variable.
    NoSymbol {
        /// Asked for.
        name: String,
        /// In this file.
        path: String,
        /// Names that are close.
        near: Vec<String>,
    },
    /// Several variables of this name.
    Ambiguous {
        /// The name.
        name: String,
        /// Their addresses in the image.
        addrs: Vec<u64>,
    },
    /// It ends behind the variable.
    TooLong {
        /// The variable.
        name: String,
        /// Its size.
        size_bytes: u64,
    },
    /// The address is not a multiple of the length.
    NotAligned {
        /// The watch.
        name: String,
        /// Where.
        addr: u64,
        /// How long.
        len: u32,
    },
    /// Nothing is there.
    NotMapped {
        /// The watch.
        name: String,
        /// Where.
        addr: u64,
    },
    /// All debug registers are taken.
    NoRegister {
        /// The watch that got none.
        name: String,
        /// How many a CPU has.
        registers: u32,
        /// Who has them, as far as can be known.
        holders: Vec<String>,
    },
    /// The kernel does not give perf events here.
    NotAllowed {
        /// Its answer.
        errno: Errno,
        /// /proc/sys/kernel/perf_event_paranoid.
        paranoid: String,
        /// A seccomp filter is on our own process, as in a container.
        has_filter: bool,
    },
    /// The machine has no debug registers that could be had.
    NoHardware {
        /// The kernel's answer.
        errno: Errno,
    },
    /// Neither kernel nor processor has this event here.
    NoEvent {
        /// The kernel's answer.
        errno: Errno,
    },
    /// The kernel does not take programs here, by which values and stacks are recorded.
    NoRecords {
        /// Its answer.
        errno: Errno,
    },
    /// Its page cannot be protected: the reason.
    NoPage {
        /// The watch.
        name: String,
        /// Where.
        addr: u64,
        /// Why not.
        why: &'static str,
    },
    /// The process cannot be stopped or entered.
    Broken(Broken),
}

impl WatchError {
    /// The kernel refuses perf events, with what there is to be known of it.
    pub(super) fn not_allowed(errno: Errno) -> WatchError {
        let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
        let has_filter =
            process::Status::of(sys::getpid() as i32).ok().flatten().is_some_and(|s| s.seccomp != 0);
        WatchError::NotAllowed { errno, paranoid: paranoid.trim().to_owned(), has_filter }
    }
}

impl From<Broken> for WatchError {
    fn from(broken: Broken) -> Self {
        WatchError::Broken(broken)
    }
}

impl fmt::Display for WatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spec { text, why } => write!(f, "'{text}' is no watchpoint: {why}"),
            Self::Image(error) => write!(f, "{error}"),
            Self::Lookup(error) => write!(f, "{error}"),
            Self::NoSymbol { name, path, near } if near.is_empty() => {
                write!(f, "no variable '{name}' in {path}")
            }
            Self::NoSymbol { name, path, near } => {
                write!(f, "no variable '{name}' in {path}; near: {}", near.join(", "))
            }
            Self::Ambiguous { name, addrs } => {
                write!(f, "{} variables are called '{name}', at", addrs.len())?;
                addrs.iter().try_for_each(|a| write!(f, " {a:#x}"))
            }
            Self::TooLong { name, size_bytes } => write!(f, "'{name}' has {size_bytes} bytes only"),
            Self::NotAligned { name, addr, len } => {
                write!(f, "{name} lies at {addr:#x}, which is no multiple of {len}")
            }
            Self::NotMapped { name, addr } => write!(f, "{name}: nothing is mapped at {addr:#x}"),
            Self::NoRegister { name, registers, .. } => {
                write!(f, "no debug register for {name}: all {registers} are taken")
            }
            Self::NotAllowed { errno, .. } => write!(f, "the kernel refuses perf events: {errno}"),
            Self::NoHardware { errno } => write!(f, "there are no debug registers here: {errno}"),
            Self::NoEvent { errno } => write!(f, "this machine has no such event: {errno}"),
            Self::NoRecords { errno } => {
                write!(f, "the kernel refuses to record values at debug registers: {errno}")
            }
            Self::NoPage { name, addr, why } => {
                write!(f, "cannot protect the page of {name} at {addr:#x}: {why}")
            }
            Self::Broken(broken) => write!(f, "{broken}"),
        }
    }
}

impl std::error::Error for WatchError {}
