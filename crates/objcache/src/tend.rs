//! The slow side of a cache: what the worker does.
//!
//! For:     `worker`, and threads that may wait (`alloc_blocking`, `drain`, `audit`).
//! State:   batches on their way: queued and waiting for a grace period, trimmed and leaving.
//! Context: control. Never waits for a grace period: it looks.
//! Keeps:   W1 a retired object comes back to a depot after a grace period that began after it was retired.
//!          W2 an object returns to its chunk after a grace period of the domain and one of tasks-trace.
//!          W4 while more waits for a grace period than may, nothing new is cut: memory is bounded, and who wants more
//!          than comes back gets none.
//!          W3 depots are kept between the watermarks, which rise while objects are wanted and not got.
//! Checked: tests/life.rs, `torture mem` (`--broken early-reuse`, `lost-list`, `forgotten-barrier`).
//! Source:  kernel `kernel/bpf/memalloc.c` for the life cycle. Departs: batches wait in lists of the worker,
//!          grace periods are polled by cookie in the place of callbacks, so nothing needs a barrier.

mod audit;
mod fold;
mod trays;

pub use audit::Census;

use crate::chunk::Chunks;
use crate::life::Life;
use crate::stack::{Batch, Stack};
use crate::{Error, Grace, View, Watermarks};
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};
use rcu::Cookie;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long nothing must be wanting before the watermarks fall again.
const CALM: Duration = Duration::from_secs(1);

/// For how long a depot must have more than its high watermark before it is trimmed.
///
/// Without it 7 of 100 objects that came back after a grace period were cut anew: a burst was trimmed, and wanted
/// again before the next one (`bench htab-mem`, overwrite, free_rcu; 2026-11-21, Intel, 2 CPUs).
const SURPLUS: Duration = Duration::from_millis(100);

/// The most bytes that raised watermarks may keep per CPU.
const MOST_BYTES: u32 = 1 << 20;

/// A way to break a cache on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// `free_rcu` does not wait.
    EarlyReuse,
    /// Now and then a batch is dropped.
    LostList,
    /// Memory returns to the system without waiting.
    ForgottenBarrier,
}

/// What the worker has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Objects put into depots from chunks.
    pub refilled: u64,
    /// Objects taken back from those that were about to leave.
    pub reused: u64,
    /// Objects taken out of depots that had too many.
    pub trimmed: u64,
    /// Objects that came back after a grace period.
    pub matured: u64,
    /// Objects returned to their chunks.
    pub returned: u64,
    /// Grace periods asked for.
    pub periods: u64,
    /// Those asked for again with haste, because more waited.
    pub hurried: u64,
    /// Refills that took no new memory because too much waited for a grace period.
    pub held: u64,
    /// Times that the lists of all CPUs were closed and collected.
    pub folds: u64,
    /// The highest factor by which the watermarks of a CPU were raised.
    pub raised: u32,
}

/// How soon there may be something to do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Next {
    /// Nothing is under way.
    Nothing,
    /// A grace period is.
    Waiting,
    /// A depot is low.
    Wanted,
}

/// One CPU, as the worker sees it.
struct Lane {
    /// The watermarks are this many times as high.
    boost: u32,
    /// Failures seen so far.
    failed: u64,
    last_failure: Instant,
    /// The fewest objects that its depot had since the last trim.
    least: i32,
}

/// What a tender is made with.
pub struct Setup {
    pub view: View<'static>,
    pub chunks: Chunks,
    pub rcu: Arc<dyn Grace>,
    pub reserve: u32,
    /// There are never fewer objects than this.
    pub stock: u32,
    /// Bytes of retired objects beyond which nothing is cut.
    pub most_waiting: u64,
    pub is_fenceable: bool,
    pub on_leave: Option<fn(*mut u8)>,
    pub hurry: bool,
    pub broken: Option<Broken>,
}

pub struct Tender {
    pub setup: Setup,
    marks: Watermarks,
    lanes: Vec<Lane>,
    /// Retired batches, with the CPU that they go back to.
    life: Life<(u32, Batch)>,
    last_trim: Instant,
    trimmed: Vec<Batch>,
    leaving: Vec<Batch>,
    leave: Option<(Cookie, Cookie)>,
    last_fold: Instant,
    /// Trays made so far.
    trays: u32,
    pub stats: Stats,
    pub closing: Option<crate::destroy::Closing>,
}

fn count<'a>(batches: impl IntoIterator<Item = &'a Batch>) -> u64 {
    batches.into_iter().map(|b| u64::from(b.len())).sum()
}

impl Tender {
    pub fn new(setup: Setup) -> Tender {
        let head = setup.view.head();
        let marks = Watermarks { low: head.low, high: head.high, batch: head.batch };
        let now = Instant::now();
        let lane = || Lane { boost: 1, failed: 0, last_failure: now, least: 0 };
        Tender {
            lanes: (0..head.copies).map(|_| lane()).collect(),
            setup,
            marks,
            life: Life::default(),
            last_trim: now,
            trimmed: Vec::new(),
            leaving: Vec::new(),
            leave: None,
            last_fold: now,
            trays: 0,
            stats: Stats::default(),
            closing: None,
        }
    }

    /// Does what there is to do; how soon there may be more.
    pub fn pass(&mut self) -> Next {
        if self.closing.is_some() {
            return if self.close_step() { Next::Wanted } else { Next::Nothing };
        }
        self.fold_if_due();
        self.make_trays();
        self.collect();
        self.period_step();
        let is_wanted = self.level();
        self.leave_step();
        match self.life.is_waiting() || self.leave.is_some() {
            _ if is_wanted => Next::Wanted,
            true => Next::Waiting,
            false => Next::Nothing,
        }
    }

    /// True if no object waits for a grace period to be taken again.
    pub fn is_settled(&self) -> bool {
        self.life.is_settled()
    }

    fn cpus(&self) -> std::ops::Range<u32> {
        0..self.lanes.len() as u32
    }

    /// Takes what CPUs have retired.
    pub fn collect(&mut self) {
        for cpu in self.cpus() {
            let (cell, items) = (self.setup.view.cell(cpu), self.setup.view.items());
            if cell.retired_len.load(Relaxed) == 0 {
                continue;
            }
            let queued = &mut self.life.queued;
            let mut taken = 0;
            // SAFETY: the stack holds batches of this cache.
            unsafe {
                cell.retired.take_all(items, |batch| {
                    taken += batch.len() as i32;
                    queued.push((cpu, batch));
                });
            }
            cell.retired_len.fetch_sub(taken, Relaxed);
        }
    }

    /// Takes retired batches one step on; those whose grace period is over go to the depots of their homes.
    pub fn period_step(&mut self) {
        let early = self.setup.broken == Some(Broken::EarlyReuse);
        let mature = self.life.step(&*self.setup.rcu, self.setup.hurry, early);
        for (cpu, batch) in mature {
            self.stats.matured += u64::from(batch.len());
            self.deposit(cpu, batch);
        }
        (self.stats.periods, self.stats.hurried) = (self.life.periods, self.life.hurried);
    }

    /// Puts a batch into a depot.
    fn deposit(&mut self, cpu: u32, batch: Batch) {
        if self.setup.broken == Some(Broken::LostList) && self.stats.matured % 512 > 480 {
            return;
        }
        let cell = self.setup.view.cell(cpu);
        // SAFETY: the batch is the worker's own.
        unsafe { cell.depot.push(self.setup.view.items(), batch) };
        cell.depot_len.fetch_add(batch.len() as i32, Relaxed);
    }

    /// Brings every depot between its watermarks; true if one was low.
    fn level(&mut self) -> bool {
        let mut is_wanted = false;
        let is_due = self.last_trim.elapsed() > SURPLUS;
        if is_due {
            self.last_trim = Instant::now();
        }
        for cpu in self.cpus() {
            is_wanted |= self.adapt(cpu);
            let boost = self.lanes[cpu as usize].boost as i32;
            let reserve = self.setup.reserve.div_ceil(self.lanes.len() as u32) as i32;
            let low = (self.marks.low as i32 * boost).max(reserve);
            // What was made beforehand may all lie in one depot, and stays.
            let high = (self.marks.high as i32 * boost).max(reserve * 2).max(self.setup.stock as i32);
            let cell = self.setup.view.cell(cpu);
            let has = cell.depot_len.load(Relaxed) + cell.loose_len.load(Relaxed);
            if has < low {
                is_wanted = true;
                let want = (low - has).max(self.marks.batch as i32);
                self.refill(cpu, want as u32);
            }
            let lane = &mut self.lanes[cpu as usize];
            lane.least = lane.least.min(has);
            if is_due {
                // What came all at once after a grace period and is gone soon is no surplus.
                let least = core::mem::replace(&mut lane.least, has);
                if least > high {
                    let keep = ((low + high) / 2).max(self.setup.stock as i32);
                    self.trim(cpu, least - keep);
                }
            }
        }
        is_wanted
    }

    /// Raises a CPU's watermarks while it fails to get objects, lowers them when it is calm.
    fn adapt(&mut self, cpu: u32) -> bool {
        let most = (MOST_BYTES / (self.marks.high * self.setup.view.head().unit)).max(1);
        let failed = self.setup.view.cell(cpu).failed.load(Relaxed);
        let lane = &mut self.lanes[cpu as usize];
        let has_failed = failed != core::mem::replace(&mut lane.failed, failed);
        if has_failed {
            lane.last_failure = Instant::now();
            lane.boost = (lane.boost * 2).min(most);
            self.stats.raised = self.stats.raised.max(lane.boost);
        } else if lane.boost > 1 && lane.last_failure.elapsed() > CALM {
            lane.last_failure = Instant::now();
            lane.boost /= 2;
        }
        has_failed
    }

    /// Adds objects to a depot: first those that were about to leave, which have seen enough already.
    pub fn refill(&mut self, cpu: u32, want: u32) -> u32 {
        let (mut got, mut is_held) = (0, None);
        while got < want {
            if let Some(batch) = self.trimmed.pop().or_else(|| self.leaving.pop()) {
                self.stats.reused += u64::from(batch.len());
                got += batch.len();
                self.deposit(cpu, batch);
                continue;
            }
            if *is_held.get_or_insert_with(|| self.has_too_much_waiting()) {
                self.stats.held += 1;
                break;
            }
            let batch = self.setup.chunks.cut(self.marks.batch);
            if batch.is_empty() {
                break;
            }
            self.stats.refilled += u64::from(batch.len());
            got += batch.len();
            self.deposit(cpu, batch);
        }
        got
    }

    /// True if retired objects take more memory than they may: new ones would be retired as fast as they are made.
    pub fn has_too_much_waiting(&self) -> bool {
        let queued = |cpu| self.setup.view.cell(cpu).retired_len.load(Relaxed).max(0) as u64;
        let waiting = self.life.queued.iter().chain(&self.life.waiting).map(|(_, batch)| batch);
        let objects = count(waiting) + self.cpus().map(queued).sum::<u64>();
        objects * u64::from(self.setup.view.head().unit) > self.setup.most_waiting
    }

    /// Makes what there is to be beforehand, spread over the depots.
    ///
    /// # Errors
    /// The arena has no room for it.
    pub fn stock_up(&mut self) -> Result<(), Error> {
        let cpus = self.lanes.len() as u64;
        let wanted = u64::from(self.setup.stock);
        for cpu in 0..cpus {
            let target = wanted * (cpu + 1) / cpus;
            let missing = target.saturating_sub(self.setup.chunks.out);
            if missing > 0 && u64::from(self.refill(cpu as u32, missing as u32)) < missing {
                // What was cut goes back, so it counts as free.
                let wanted = wanted as usize * self.setup.view.head().unit as usize;
                return Err(Error::ArenaFull { wanted, free: self.setup.chunks.bytes() });
            }
        }
        Ok(())
    }

    /// Takes about so many objects out of a depot.
    fn trim(&mut self, cpu: u32, mut surplus: i32) {
        let cell = self.setup.view.cell(cpu);
        let (items, mut out) = (self.setup.view.items(), Vec::new());
        let mut pop_from = |stack: &Stack, len: &AtomicI32, surplus: &mut i32| {
            while *surplus > 0 {
                // SAFETY: the stack holds batches of this cache.
                let Some(batch) = (unsafe { stack.pop(items) }) else { break };
                len.fetch_sub(batch.len() as i32, Relaxed);
                *surplus -= batch.len() as i32;
                out.push(batch);
            }
        };
        pop_from(&cell.loose, &cell.loose_len, &mut surplus);
        pop_from(&cell.depot, &cell.depot_len, &mut surplus);
        self.stats.trimmed += count(&out);
        self.trimmed.append(&mut out);
    }

    /// Starts both grace periods for what was trimmed, or returns what has seen them to its chunks.
    fn leave_step(&mut self) {
        if let Some(cookies) = self.leave {
            if !self.both_over(cookies) {
                return;
            }
            self.leave = None;
            let batches = core::mem::take(&mut self.leaving);
            self.put_back(batches);
        }
        if !self.trimmed.is_empty() {
            self.leaving.append(&mut self.trimmed);
            self.leave = Some(self.start_both());
        }
    }

    pub fn start_both(&self) -> (Cookie, Cookie) {
        (self.setup.rcu.start(false), rcu::tasks::on_fast::domain().start(false))
    }

    pub fn both_over(&self, cookies: (Cookie, Cookie)) -> bool {
        let forgotten = self.setup.broken == Some(Broken::ForgottenBarrier);
        forgotten || self.setup.rcu.is_over(cookies.0) && rcu::tasks::on_fast::domain().is_over(cookies.1)
    }

    pub fn put_back(&mut self, batches: Vec<Batch>) {
        let (view, on_leave) = (self.setup.view, self.setup.on_leave);
        for batch in batches {
            self.stats.returned += u64::from(batch.len());
            self.setup.chunks.put_back(batch, |i| {
                if let (Some(on_leave), Some(index)) = (on_leave, crate::Index::from_raw(i)) {
                    on_leave(view.payload(index).as_ptr());
                }
            });
            self.keep_tray(batch);
        }
    }

    /// Takes every batch that the worker holds.
    pub fn take_held(&mut self) -> Vec<Batch> {
        let mut all = core::mem::take(&mut self.trimmed);
        all.append(&mut self.leaving);
        all.extend(self.life.take_all().into_iter().map(|(_, batch)| batch));
        self.leave = None;
        all
    }
}
