//! Accounts in constant time, with a lock for each task.
//!
//! For:     real use.
//! State:   histograms: of tasks on all CPUs, of tasks on each CPU, of CPUs; a table of breakpoints by task.
//! Context: target. Breakpoints of tasks go on side by side; one bound to a CPU alone stops them all.
//! Keeps:   C1 (see accounts).
//!          P1 a task is in the histogram of all CPUs while all its breakpoints are on all CPUs, else in each
//!          CPU's, with its number there.
//!          P2 maxima over tasks are read under the write lock only; numbers of CPUs change under it only.
//! Checked: `tests/agree.rs`, four threads included.
//! Source:  kernel `kernel/events/hw_breakpoint.c` (v7.0). Departs: mutexes in stripes by the task's number,
//!          the histogram of all CPUs in shards, because every task's operation adds to it.

use super::histogram::Histograms;
use super::index::{Entry, Hash};
use super::{Engine, Token};
use crate::broken::broken;
use crate::rwsem::{Read, RwSem, Write};
use crate::{ALL_CPUS, Machine, Refused, Request};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Mutexes for tasks. Two tasks share one in a thousand cases.
const STRIPES: usize = 1024;

#[repr(align(64))]
struct Stripe(Mutex<()>);

pub(super) struct Split {
    machine: Machine,
    stripes: Box<[Stripe]>,
    sem: RwSem,
    table: Hash,
    /// Breakpoints bound to each CPU alone, by pool and CPU.
    pinned: [Box<[AtomicU32]>; 2],
    /// How many CPUs have so many of those, by pool.
    pinned_all: Histograms,
    /// Tasks that have a breakpoint bound to a CPU, by pool and CPU.
    tasks: [Histograms; 2],
    /// Tasks that have none such, by pool.
    tasks_all: Histograms,
    #[cfg(feature = "broken")]
    broken: Option<crate::Broken>,
}

/// What is held during an operation.
enum Held<'a> {
    Task { _read: Read<'a>, _task: Option<MutexGuard<'a, ()>> },
    Cpu { _write: Write<'a> },
}

impl Split {
    pub(super) fn new(machine: Machine) -> Split {
        let (cpus, slots) = (machine.cpus as usize, machine.most_slots());
        let counts = || (0..cpus).map(|_| AtomicU32::new(0)).collect();
        Split {
            machine,
            stripes: (0..STRIPES).map(|_| Stripe(Mutex::new(()))).collect(),
            sem: RwSem::new(),
            table: Hash::default(),
            pinned: [counts(), counts()],
            pinned_all: Histograms::plain(2, slots),
            tasks: [Histograms::plain(cpus, slots), Histograms::plain(cpus, slots)],
            tasks_all: Histograms::sharded(2, slots),
            #[cfg(feature = "broken")]
            broken: None,
        }
    }

    /// With something left out.
    #[cfg(feature = "broken")]
    pub(super) fn broken(machine: Machine, how: crate::Broken) -> Split {
        Split { broken: Some(how), ..Split::new(machine) }
    }

    fn lock(&self, request: Request, may_wait: bool) -> Option<Held<'_>> {
        let Some(task) = request.place.task() else {
            if broken!(self, SharedCpuLock) {
                return Some(Held::Task { _read: self.sem.read(), _task: None });
            }
            let write = if may_wait { self.sem.write() } else { self.sem.try_write()? };
            return Some(Held::Cpu { _write: write });
        };
        let spread = (task.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        let mutex = &self.stripes[spread % STRIPES].0;
        if broken!(self, NoTaskLock) {
            return Some(Held::Task { _read: self.sem.read(), _task: None });
        }
        let held = match may_wait {
            true => mutex.lock().unwrap_or_else(PoisonError::into_inner),
            false => mutex.try_lock().ok()?,
        };
        let read = if may_wait { self.sem.read() } else { self.sem.try_read()? };
        Some(Held::Task { _read: read, _task: Some(held) })
    }

    /// The caller holds the locks of the request's place.
    fn used_locked(&self, request: Request) -> u32 {
        let pool = self.machine.pool(request.kind);
        let pinned = |cpu: u32| self.pinned[pool][cpu as usize].load(Relaxed);
        let Some(entry) = Entry::of(&self.machine, request) else {
            let cpu = request.place.cpu();
            return pinned(cpu) + self.tasks[pool].max_of(cpu as usize, &self.tasks_all, pool);
        };
        if entry.cpu == ALL_CPUS
            && let Some(count) = self.table.count(entry.task, entry.pool, ALL_CPUS)
        {
            return count + self.pinned_all.max(pool);
        }
        let mut most = 0;
        let on = request.place.on(self.machine.cpus);
        self.table.each(entry.task, entry.pool, on, |cpu, count| most = most.max(pinned(cpu) + count));
        most
    }

    fn reserve_locked(&self, request: Request) -> Result<Token, Refused> {
        let slots = self.machine.slots(request.kind);
        if self.used_locked(request) >= slots {
            return Err(Refused::NoSlot { place: request.place, slots });
        }
        if [broken!(self, NoTaskLock), broken!(self, SharedCpuLock)].contains(&true) {
            // On a busy machine too somebody else shall come in between.
            std::thread::yield_now();
        }
        let Some(entry) = Entry::of(&self.machine, request) else {
            self.pin(request, true);
            return Ok(Token::None);
        };
        // The table last: it must not count the new one while the histograms move.
        self.toggle(entry, true);
        self.table.insert_shared(entry).inspect_err(|_| self.toggle(entry, false))
    }

    fn release_locked(&self, request: Request, token: Token) {
        match Entry::of(&self.machine, request) {
            None => self.pin(request, false),
            Some(entry) => {
                // The table first, for the same reason.
                self.table.remove_shared(token);
                self.toggle(entry, false);
            }
        }
    }

    /// Under the write lock.
    fn pin(&self, request: Request, is_on: bool) {
        let pool = self.machine.pool(request.kind);
        let pinned = &self.pinned[pool][request.place.cpu() as usize];
        let from = pinned.load(Relaxed);
        let to = if is_on { from + 1 } else { from - 1 };
        pinned.store(to, Relaxed);
        self.pinned_all.step(pool, from, to);
    }

    /// Moves a task in the histograms; its breakpoint is not in the table now.
    fn toggle(&self, entry: Entry, is_on: bool) {
        let pool = entry.pool as usize;
        let (tasks, all) = (&self.tasks[pool], &self.tasks_all);
        let up = |n: u32| if is_on { (n, n + 1) } else { (n + 1, n) };
        match self.table.count(entry.task, entry.pool, ALL_CPUS) {
            Some(n) if entry.cpu == ALL_CPUS => {
                let (from, to) = up(n);
                all.step(pool, from, to);
            }
            Some(n) if is_on => {
                // The first that is bound to a CPU: the task moves from the one histogram to each CPU's.
                if !broken!(self, NoMove) {
                    (0..self.machine.cpus).for_each(|cpu| tasks.step(cpu as usize, 0, n));
                }
                tasks.step(entry.cpu as usize, n, n + 1);
                all.step(pool, n, 0);
            }
            Some(n) => {
                // The last that was: back to the one.
                tasks.step(entry.cpu as usize, n + 1, n);
                (0..self.machine.cpus).for_each(|cpu| tasks.step(cpu as usize, n, 0));
                all.step(pool, 0, n);
            }
            None => {
                let on = if entry.cpu == ALL_CPUS { 0..self.machine.cpus } else { entry.cpu..entry.cpu + 1 };
                self.table.each(entry.task, entry.pool, on, |cpu, n| {
                    let (from, to) = up(n);
                    tasks.step(cpu as usize, from, to);
                });
            }
        }
    }
}

impl Engine for Split {
    fn reserve(&self, request: Request, may_wait: bool) -> Result<Token, Refused> {
        let _held = self.lock(request, may_wait).ok_or(Refused::Locked)?;
        self.reserve_locked(request)
    }

    fn release(&self, request: Request, token: Token, may_wait: bool) -> Result<(), Token> {
        let Some(_held) = self.lock(request, may_wait) else { return Err(token) };
        self.release_locked(request, token);
        Ok(())
    }

    fn exchange(&self, old: Request, token: Token, new: Request) -> (Token, Option<Refused>) {
        let _held = self.lock(old, true);
        self.release_locked(old, token);
        match self.reserve_locked(new) {
            Ok(token) => (token, None),
            // It fitted a moment ago, and no one else could take it: the locks are the same.
            Err(refused) => (self.reserve_locked(old).unwrap_or(Token::None), Some(refused)),
        }
    }

    fn used(&self, request: Request) -> u32 {
        let _held = self.lock(request, true);
        self.used_locked(request)
    }

    fn is_used(&self) -> bool {
        let _held = self.sem.write();
        let is_pinned = self.pinned.iter().flatten().any(|n| n.load(Relaxed) > 0);
        let histograms = [&self.pinned_all, &self.tasks[0], &self.tasks[1], &self.tasks_all];
        is_pinned || histograms.iter().any(|h| !h.is_empty())
    }
}
