//! From retired to mature: batches that wait for a grace period.
//!
//! For:     the worker.
//! State:   batches that came since the period began, batches that it began with, and its cookie.
//! Context: control. Never waits for a grace period: it looks.
//! Keeps:   L1 a batch is mature after a grace period that began after it was added.
//! Checked: model `life` (mutants early-reuse, late-batch, OBJ-1, OBJ-3), `torture mem --broken early-reuse`.
//! Source:  kernel `kernel/bpf/memalloc.c`: one batch in flight, the rest waits.

use crate::Grace;
use rcu::Cookie;

/// What waits, `B` by `B`.
pub struct Life<B> {
    /// Not yet under a grace period.
    pub queued: Vec<B>,
    /// Under the grace period of `period`.
    pub waiting: Vec<B>,
    period: Option<Cookie>,
    is_hurried: bool,
    /// Grace periods asked for, and those asked for again with haste.
    pub periods: u64,
    pub hurried: u64,
}

impl<B> Default for Life<B> {
    fn default() -> Self {
        Life {
            queued: Vec::new(),
            waiting: Vec::new(),
            period: None,
            is_hurried: false,
            periods: 0,
            hurried: 0,
        }
    }
}

impl<B> Life<B> {
    /// True while a grace period is waited for.
    pub fn is_waiting(&self) -> bool {
        self.period.is_some()
    }

    /// True if nothing waits, now or next.
    pub fn is_settled(&self) -> bool {
        self.period.is_none() && self.queued.is_empty()
    }

    /// Starts a grace period for what is queued, or ends the one that is over: what it began with is mature.
    ///
    /// With `hurry` one that more waits behind is asked for with haste: the sooner it ends, the less memory is
    /// bound. `early` breaks it on purpose.
    pub fn step(&mut self, rcu: &(impl Grace + ?Sized), hurry: bool, early: bool) -> Vec<B> {
        let mut mature = Vec::new();
        if let Some(cookie) = self.period {
            if cfg!(mutant = "late-batch") {
                self.waiting.append(&mut self.queued);
            }
            if rcu.is_over(cookie) || early || cfg!(mutant = "early-reuse") {
                self.period = None;
                mature = core::mem::take(&mut self.waiting);
            } else if hurry && !self.is_hurried && !self.queued.is_empty() {
                rcu.start(true);
                self.is_hurried = true;
                self.hurried += 1;
            }
        }
        if self.period.is_none() && !self.queued.is_empty() {
            self.waiting.append(&mut self.queued);
            self.period = Some(rcu.start(false));
            self.is_hurried = false;
            self.periods += 1;
        }
        mature
    }

    /// Everything, mature or not; nothing waits any more.
    pub fn take_all(&mut self) -> Vec<B> {
        self.period = None;
        let mut all = core::mem::take(&mut self.queued);
        all.append(&mut self.waiting);
        all
    }
}
