//! Counters of a registry.
//!
//! For:     tests, torture, status pages.
//! State:   a copy, taken when asked.
//! Context: target.
//! Keeps:   nothing: the values are read one after the other.
//! Checked: by use.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What happened so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// Uprobes made and freed.
    pub made: u64,
    /// See `made`.
    pub freed: u64,
    /// Dying uprobes replaced by a registration of the same place.
    pub revived: u64,
    /// Uprobes left in memory because a breakpoint could not be removed.
    pub leaked: u64,
    /// Breakpoints written.
    pub installed: u64,
    /// Breakpoints taken back.
    pub removed: u64,
    /// Breakpoints taken out of one space because all handlers said so.
    pub unhooked: u64,
    /// Hits that met a uprobe that was freed: none, unless the registry is broken.
    pub freed_hits: u64,
    /// Handlers that panicked: the panic went no further, and the other consumers were called.
    pub panicked: u64,
    /// Consumers retired and not freed yet.
    pub retired: u64,
}

/// The counters behind [`Stats`].
#[derive(Default)]
pub(crate) struct Counts {
    pub made: AtomicU64,
    pub freed: AtomicU64,
    pub revived: AtomicU64,
    pub leaked: AtomicU64,
    pub installed: AtomicU64,
    pub removed: AtomicU64,
    pub unhooked: AtomicU64,
    pub freed_hits: AtomicU64,
    pub panicked: AtomicU64,
}

pub(crate) fn bump(count: &AtomicU64) {
    count.fetch_add(1, Relaxed);
}

impl Counts {
    pub fn read(&self, retired: u64) -> Stats {
        let get = |n: &AtomicU64| n.load(Relaxed);
        Stats {
            made: get(&self.made),
            freed: get(&self.freed),
            revived: get(&self.revived),
            leaked: get(&self.leaked),
            installed: get(&self.installed),
            removed: get(&self.removed),
            unhooked: get(&self.unhooked),
            freed_hits: get(&self.freed_hits),
            panicked: get(&self.panicked),
            retired,
        }
    }
}
