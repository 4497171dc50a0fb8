//! Collecting the lists that only their CPUs may touch.
//!
//! For:     retired objects on a CPU that retires no more; `drain`; `audit`.
//! State:   the bound in the cache's head.
//! Context: control. One membarrier, some 10 us.
//! Keeps:   F1 while the lists are collected, no sequence of this process is inside one of them.
//! Checked: `objects_of_a_cpu_that_went_idle_come_back` in tests/life.rs, `torture mem`.

use super::Tender;
use crate::cell::SLOTS;
use crate::stack::Batch;
use core::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use percpu::List;
use std::time::{Duration, Instant};
use sys::membarrier_cmd::PRIVATE_EXPEDITED_RSEQ;

/// How long objects retired on a quiet CPU may wait to be noticed.
const STALE: Duration = Duration::from_millis(10);

impl Tender {
    /// Collects the lists of retired objects if some have been lying there.
    pub fn fold_if_due(&mut self) {
        let is_due = self.last_fold.elapsed() > STALE
            && self.cpus().any(|cpu| !self.setup.view.cell(cpu).rcu.is_empty());
        if is_due {
            self.fold(false);
        }
    }

    /// Collects the lists of retired objects, with `all` the free ones too; false if this process cannot be
    /// fenced.
    pub fn fold(&mut self, all: bool) -> bool {
        self.last_fold = Instant::now();
        if !self.setup.is_fenceable {
            return false;
        }
        let head = self.setup.view.head();
        // [OBJ-4] Closed before the fence: a sequence that starts after it finds the lists closed, one that
        // was under way is restarted by it. SeqCst: the store must be visible before the call.
        // Pairs with [OBJ-5].
        head.bound.store(0, SeqCst);
        let fenced = sys::membarrier(PRIVATE_EXPEDITED_RSEQ).is_ok();
        if fenced {
            self.stats.folds += 1;
            self.take_lists(all);
        }
        // [OBJ-5] What was done to the lists is visible to who finds them open. Pairs with [OBJ-4].
        head.bound.store(head.copies, Release);
        fenced
    }

    /// Takes the lists of every CPU; nobody may be inside one.
    pub fn take_lists(&mut self, all: bool) {
        let items = self.setup.view.items();
        let take = |list: &List<SLOTS>| {
            // SAFETY: what is on a CPU's list nobody else has, and the list is emptied.
            let batch = list.iter().fold(Batch::default(), |batch, i| unsafe { batch.with(items, i) });
            // SAFETY: the bound is 0 and the process was fenced (the callers' duty), so no sequence is inside.
            unsafe { list.clear() };
            (!batch.is_empty()).then_some(batch)
        };
        for cpu in self.cpus() {
            let cell = self.setup.view.cell(cpu);
            self.life.queued.extend(take(&cell.rcu).map(|batch| (cpu, batch)));
            if let Some(batch) = all.then(|| take(&cell.free)).flatten() {
                // SAFETY: the batch was the CPU's, and is the worker's now.
                unsafe { cell.depot.push(items, batch) };
                cell.depot_len.fetch_add(batch.len() as i32, Relaxed);
            }
        }
    }
}
