//! Three ways to keep the same accounts.
//!
//! For:     `Accounts`.
//! State:   none.
//! Context: target, control.
//! Keeps:   nothing here.
//! Checked: `tests/agree.rs`.

mod histogram;
mod index;
mod seed;
mod split;

use crate::{Machine, Refused, Request};

/// Which engine keeps the accounts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EngineKind {
    /// One list of all breakpoints under one mutex: Linux before the series. For measuring.
    List,
    /// The list replaced by a hash table keyed by task: the first patch of the series. For measuring.
    Hash,
    /// Histograms, a mutex for each task and a read-write lock that readers do not share: the series' end.
    Histogram,
}

impl EngineKind {
    /// All of them, in the order of history.
    pub const ALL: [EngineKind; 3] = [EngineKind::List, EngineKind::Hash, EngineKind::Histogram];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            EngineKind::List => "list",
            EngineKind::Hash => "hash",
            EngineKind::Histogram => "histogram",
        }
    }
}

/// What an engine needs to find a breakpoint again.
#[derive(Debug)]
pub(crate) enum Token {
    /// A breakpoint that is in no index: it has no task.
    None,
    /// Its place in the list.
    Listed(u32),
    /// Its entry in the table.
    Hashed(coll::Handle),
}

/// Requests were checked before: the CPU and the kind exist.
pub(crate) trait Engine: Send + Sync {
    fn reserve(&self, request: Request, may_wait: bool) -> Result<Token, Refused>;
    /// Gives the token back if a lock is held and the caller may not wait.
    fn release(&self, request: Request, token: Token, may_wait: bool) -> Result<(), Token>;
    /// Releases the old and reserves the new, or reserves the old again and says why, as one step.
    fn exchange(&self, old: Request, token: Token, new: Request) -> (Token, Option<Refused>);
    fn used(&self, request: Request) -> u32;
    fn is_used(&self) -> bool;
}

/// An engine that is broken in one way, if that concerns it.
#[cfg(feature = "broken")]
pub(crate) fn make_broken(kind: EngineKind, machine: Machine, how: crate::Broken) -> Box<dyn Engine> {
    match kind {
        EngineKind::Histogram => Box::new(split::Split::broken(machine, how)),
        other => make(other, machine),
    }
}

pub(crate) fn make(kind: EngineKind, machine: Machine) -> Box<dyn Engine> {
    match kind {
        EngineKind::List => Box::new(seed::Seed::<index::List>::new(machine)),
        EngineKind::Hash => Box::new(seed::Seed::<index::Hash>::new(machine)),
        EngineKind::Histogram => Box::new(split::Split::new(machine)),
    }
}
