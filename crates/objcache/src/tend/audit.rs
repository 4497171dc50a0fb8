//! Counting every object.
//!
//! For:     tests, torture and the leak check.
//! State:   none.
//! Context: control, while nobody takes or gives.
//! Keeps:   U1 an audit that passes has met each free object once, and no live one on a list.
//! Checked: `torture mem --broken lost-list`.

use super::{Tender, count};
use crate::stack::{Batch, Stack};
use core::sync::atomic::Ordering::Relaxed;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;

/// Where a cache's objects are. Exact while nobody takes or gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Census {
    /// Cut from chunks and not returned: all there are.
    pub out: u64,
    /// On the lists of CPUs, free.
    pub on_cpus: u64,
    /// In depots.
    pub in_depots: u64,
    /// Freed by threads without rseq.
    pub loose: u64,
    /// Retired: on CPUs, in stacks, queued.
    pub retired: u64,
    /// Under a grace period.
    pub waiting: u64,
    /// Trimmed, or leaving for the system.
    pub leaving: u64,
    /// Objects wanted and not got so far.
    pub failed: u64,
    /// Frees of objects that were not live so far.
    pub misuse: u64,
    /// Bytes in chunks, those of trays too.
    pub bytes: u64,
}

impl Census {
    /// Objects that somebody has.
    pub fn live(&self) -> i64 {
        let free = self.on_cpus + self.in_depots + self.loose + self.retired + self.waiting + self.leaving;
        self.out as i64 - free as i64
    }
}

impl Tender {
    /// Counts, without touching any list.
    pub fn census(&self) -> Census {
        let mut sum = Census { out: self.setup.chunks.out, ..Census::default() };
        sum.bytes = self.setup.chunks.bytes() as u64;
        for cpu in self.cpus() {
            let cell = self.setup.view.cell(cpu);
            sum.on_cpus += cell.free.len() as u64;
            sum.in_depots += cell.depot_len.load(Relaxed).max(0) as u64;
            sum.loose += cell.loose_len.load(Relaxed).max(0) as u64;
            sum.retired += cell.rcu.len() as u64 + cell.retired_len.load(Relaxed).max(0) as u64;
            sum.failed += cell.failed.load(Relaxed);
            sum.misuse += cell.misuse.load(Relaxed);
        }
        sum.retired += count(self.life.queued.iter().map(|(_, batch)| batch));
        sum.waiting = count(self.life.waiting.iter().map(|(_, batch)| batch));
        sum.leaving = count(&self.trimmed) + count(&self.leaving);
        sum
    }

    /// Walks every list and meets each object once; what it found wrong otherwise.
    ///
    /// Nobody may take or give meanwhile.
    pub fn audit(&mut self) -> Result<Census, String> {
        let census = self.census();
        let met = RefCell::new(HashSet::new());
        let meet = |what: &str, i: u32| -> Result<(), String> {
            // SAFETY: an object on a list of this cache.
            let link = unsafe { self.setup.view.items().link(i) };
            if link.home().is_some() {
                return Err(format!("{what}: object {i} is live"));
            }
            let is_new = met.borrow_mut().insert(i);
            if is_new { Ok(()) } else { Err(format!("{what}: object {i} is on two lists")) }
        };
        let trays = Cell::new(0);
        let walk = |what: &str, list: Batch| -> Result<(), String> {
            let mut found = Ok(());
            trays.set(trays.get() + u32::from(list.is_tray()));
            let each = |i| {
                if found.is_ok() {
                    found = meet(what, i);
                }
            };
            // SAFETY: nobody takes or gives (contract of `audit`).
            let is_whole = unsafe { list.for_each(self.setup.view.items(), each) };
            found?;
            if is_whole { Ok(()) } else { Err(format!("{what}: not {} objects", list.len())) }
        };
        for cpu in 0..self.lanes.len() as u32 {
            let cell = self.setup.view.cell(cpu);
            for (what, list) in [("free", &cell.free), ("rcu", &cell.rcu)] {
                // One by one: what lies on a CPU is not linked.
                list.iter().try_for_each(|i| meet(what, i))?;
            }
            let stacks = [
                ("depot", &cell.depot),
                ("loose", &cell.loose),
                ("retired", &cell.retired),
                ("blank", &cell.blank),
            ];
            for (what, stack) in stacks {
                self.batches(stack).into_iter().try_for_each(|batch| walk(what, batch))?;
            }
        }
        self.life.queued.iter().try_for_each(|(_, batch)| walk("queued", *batch))?;
        self.life.waiting.iter().try_for_each(|(_, batch)| walk("waiting", *batch))?;
        self.trimmed.iter().try_for_each(|batch| walk("trimmed", *batch))?;
        self.leaving.iter().try_for_each(|batch| walk("leaving", *batch))?;
        let counted = census.out as i64 - census.live();
        let total = met.borrow().len() as i64;
        if total != counted {
            return Err(format!("{total} free objects on lists whose lengths add up to {counted}"));
        }
        if trays.get() != self.trays {
            return Err(format!("{} trays on stacks, {} made", trays.get(), self.trays));
        }
        Ok(census)
    }

    /// The batches of a stack: taken out and put back in the same order.
    fn batches(&self, stack: &Stack) -> Vec<Batch> {
        let (items, mut all) = (self.setup.view.items(), Vec::new());
        // SAFETY: stacks of a cell hold batches of this cache.
        unsafe { stack.take_all(items, |batch| all.push(batch)) };
        for batch in all.iter().rev() {
            // SAFETY: taken above.
            unsafe { stack.push(items, *batch) };
        }
        all
    }
}
