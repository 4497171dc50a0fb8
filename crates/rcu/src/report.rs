//! What a domain has to say without being asked.
//!
//! For:     stalls, leaks, broken rules that are found where no error can be returned.
//! State:   one reporter for the process.
//! Context: target; reports come from the thread that drives a grace period or drops a domain.
//! Keeps:   O1 a reporter is never called in a read-side path of an unchecked domain.
//! Checked: `tests/stall.rs`, `tests/cleanup.rs`.

use crate::{Fences, Flavour, FlavourSet, InUse, Misuse};
use core::fmt;
use std::boxed::Box;
use std::string::String;
use std::sync::RwLock;
use std::vec::Vec;

/// A reader that a grace period waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StalledReader {
    /// Its thread.
    pub tid: u32,
    /// The thread's name, empty if it is gone.
    pub thread: String,
    /// How it reads.
    pub flavour: Flavour,
    /// How deep it is nested.
    pub nesting: u32,
    /// Since when, in nanoseconds.
    pub age_ns: u64,
}

/// A grace period that has waited longer than the domain's stall limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stall {
    /// The domain's name.
    pub domain: String,
    /// The number of the grace period.
    pub gp: u64,
    /// How long it has been waiting, in nanoseconds; every reader that it waits for is older.
    pub age_ns: u64,
    /// Readers inside by the counters.
    pub readers: i64,
    /// CPUs on which more readers entered than left, with the surplus.
    pub cpus: Vec<(u32, i64)>,
    /// Seats of threads on which more readers entered than left, and by how many.
    pub seats: Vec<(u32, i64)>,
    /// The readers by thread; on an unchecked domain unknown until one leaves.
    pub named: Vec<StalledReader>,
    /// True if `named` is complete.
    pub is_tracked: bool,
}

/// One report.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Report {
    /// A grace period makes no progress.
    Stall(Stall),
    /// A reader of an unchecked domain that had stalled a grace period has left.
    StalledReaderLeft {
        /// The domain's name.
        domain: String,
        /// Who it was; its age is at least the given one.
        reader: StalledReader,
    },
    /// A domain was dropped while in use, and its memory is kept.
    Leaked {
        /// The domain's name.
        domain: String,
        /// What was still going on.
        in_use: InUse,
    },
    /// A rule was broken where no error can be returned.
    Misuse {
        /// The domain's name.
        domain: String,
        /// The rule and the facts.
        misuse: Misuse,
    },
    /// A callback panicked; the others run on.
    CallbackPanicked {
        /// The domain's name.
        domain: String,
    },
    /// Readers of the domain pay for their own fences.
    NoMembarrier {
        /// The domain's name.
        domain: String,
        /// Why.
        fences: Fences,
    },
    /// membarrier worked when the domain was made and is refused now: its grace periods wait.
    MembarrierLost {
        /// The domain's name.
        domain: String,
    },
    /// The thread that runs callbacks could not be made; the next request tries again.
    NoWorker {
        /// The domain's name.
        domain: String,
    },
    /// Flavours met on one domain that must not.
    MixedFlavours {
        /// The domain's name.
        domain: String,
        /// What was recorded.
        recorded: FlavourSet,
    },
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stall(stall) => write!(f, "{stall}"),
            Self::StalledReaderLeft { domain, reader } => {
                write!(f, "domain {domain}: the reader that stalled it has left: {reader}")
            }
            Self::Leaked { domain, in_use } => {
                write!(f, "domain {domain} dropped while in use, memory kept: {in_use}")
            }
            Self::Misuse { domain, misuse } => write!(f, "domain {domain}: {misuse}"),
            Self::CallbackPanicked { domain } => write!(f, "domain {domain}: a callback panicked"),
            Self::NoMembarrier { domain, fences } => write!(f, "domain {domain}: {fences}"),
            Self::MembarrierLost { domain } => {
                write!(f, "domain {domain}: membarrier is refused now, its grace periods wait")
            }
            Self::NoWorker { domain } => write!(f, "domain {domain}: its worker thread could not be made"),
            Self::MixedFlavours { domain, recorded } => {
                write!(f, "domain {domain}: mixed reader flavours {recorded}")
            }
        }
    }
}

impl fmt::Display for StalledReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tid, thread, flavour, nesting, age_ns } = self;
        write!(f, "thread {tid} ({thread}), {flavour} reader nested {nesting}, for {} ms", age_ns / 1_000_000)
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.age_ns / 1_000_000;
        write!(
            f,
            "domain {}: grace period {:#x} stalled for {ms} ms by {} reader(s)",
            self.domain, self.gp, self.readers
        )?;
        for (cpu, surplus) in &self.cpus {
            write!(f, "; entered on cpu {cpu}: {surplus}")?;
        }
        for (seat, surplus) in &self.seats {
            write!(f, "; entered on seat {seat}: {surplus}")?;
        }
        for reader in &self.named {
            write!(f, "; {reader}")?;
        }
        if !self.is_tracked {
            write!(f, "; threads not tracked on this domain, each is named when it leaves")?;
        }
        Ok(())
    }
}

type Reporter = Box<dyn Fn(&Report) + Send + Sync>;

static REPORTER: RwLock<Option<Reporter>> = RwLock::new(None);

/// Sends all reports of this process to `reporter`, in the place of a line on stderr.
pub fn set_reporter(reporter: impl Fn(&Report) + Send + Sync + 'static) {
    if let Ok(mut slot) = REPORTER.write() {
        *slot = Some(Box::new(reporter));
    }
}

pub(crate) fn report(what: &Report) {
    match REPORTER.read().as_deref() {
        Ok(Some(reporter)) => reporter(what),
        _ => std::eprintln!("rcu: {what}"),
    }
}
