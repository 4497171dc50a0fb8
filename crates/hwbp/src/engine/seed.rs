//! Counts for each CPU under one mutex: Linux before the series, and after its first patch.
//!
//! For:     measuring what the series gained.
//! State:   for each CPU the pinned breakpoints and a histogram of tasks; an index of all with a task.
//! Context: target. Every operation takes the one mutex and looks at every CPU of its place.
//! Keeps:   C1 (see accounts).
//! Checked: `tests/agree.rs`.
//! Source:  kernel `kernel/events/hw_breakpoint.c` before v6.1.

use super::index::{Entry, Index};
use super::{Engine, Token};
use crate::{Machine, Refused, Request};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One CPU's counts for one pool.
#[derive(Clone)]
struct Cpu {
    pinned: u32,
    /// How many tasks have one more breakpoint here than the index says.
    tasks: Vec<u32>,
}

struct State<I> {
    machine: Machine,
    /// By pool, then CPU.
    cpus: [Vec<Cpu>; 2],
    index: I,
}

pub(super) struct Seed<I>(Mutex<State<I>>);

impl<I: Index> Seed<I> {
    pub(super) fn new(machine: Machine) -> Self {
        let cpu = Cpu { pinned: 0, tasks: vec![0; machine.most_slots()] };
        let cpus = vec![cpu; machine.cpus as usize];
        Seed(Mutex::new(State { machine, cpus: [cpus.clone(), cpus], index: I::default() }))
    }

    fn lock(&self, may_wait: bool) -> Option<MutexGuard<'_, State<I>>> {
        match may_wait {
            true => Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)),
            false => self.0.try_lock().ok(),
        }
    }
}

impl<I: Index> State<I> {
    fn used(&self, request: Request) -> u32 {
        let pool = self.machine.pool(request.kind);
        let cpus = &self.cpus[pool];
        let on = request.place.on(self.machine.cpus);
        let mut most = 0;
        match request.place.task() {
            Some(task) => self.index.each_cpu(task, pool as u32, on, |cpu, count| {
                most = most.max(cpus[cpu as usize].pinned + count);
            }),
            None => {
                for cpu in &cpus[on.start as usize..on.end as usize] {
                    let busiest = cpu.tasks.iter().rposition(|n| *n > 0).map_or(0, |i| i as u32 + 1);
                    most = most.max(cpu.pinned + busiest);
                }
            }
        }
        most
    }

    fn reserve(&mut self, request: Request) -> Result<Token, Refused> {
        let slots = self.machine.slots(request.kind);
        if self.used(request) >= slots {
            return Err(Refused::NoSlot { place: request.place, slots });
        }
        let Some(entry) = Entry::of(&self.machine, request) else {
            self.pin(request, true);
            return Ok(Token::None);
        };
        self.toggle(request, entry, 1);
        self.index.insert(entry)
    }

    fn release(&mut self, request: Request, token: Token) {
        match Entry::of(&self.machine, request) {
            None => self.pin(request, false),
            Some(entry) => {
                self.index.remove(token);
                self.toggle(request, entry, -1);
            }
        }
    }

    fn pin(&mut self, request: Request, is_on: bool) {
        let cpus = &mut self.cpus[self.machine.pool(request.kind)];
        for cpu in request.place.on(self.machine.cpus) {
            let pinned = &mut cpus[cpu as usize].pinned;
            *pinned = if is_on { *pinned + 1 } else { *pinned - 1 };
        }
    }

    /// Moves the task up or down in the histograms. Its breakpoint is not in the index now.
    fn toggle(&mut self, request: Request, entry: Entry, by: i32) {
        let cpus = &mut self.cpus[entry.pool as usize];
        let on = request.place.on(self.machine.cpus);
        self.index.each_cpu(entry.task, entry.pool, on, |cpu, without| {
            let tasks = &mut cpus[cpu as usize].tasks;
            let (from, to) = if by > 0 { (without, without + 1) } else { (without + 1, without) };
            if from > 0 {
                tasks[from as usize - 1] -= 1;
            }
            if to > 0 {
                tasks[to as usize - 1] += 1;
            }
        });
    }
}

impl<I: Index> Engine for Seed<I> {
    fn reserve(&self, request: Request, may_wait: bool) -> Result<Token, Refused> {
        self.lock(may_wait).ok_or(Refused::Locked)?.reserve(request)
    }

    fn release(&self, request: Request, token: Token, may_wait: bool) -> Result<(), Token> {
        match self.lock(may_wait) {
            Some(mut state) => {
                state.release(request, token);
                Ok(())
            }
            None => Err(token),
        }
    }

    fn exchange(&self, old: Request, token: Token, new: Request) -> (Token, Option<Refused>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.release(old, token);
        match state.reserve(new) {
            Ok(token) => (token, None),
            // It fitted a moment ago, under the same lock.
            Err(refused) => (state.reserve(old).unwrap_or(Token::None), Some(refused)),
        }
    }

    fn used(&self, request: Request) -> u32 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).used(request)
    }

    fn is_used(&self) -> bool {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.cpus.iter().flatten().any(|cpu| cpu.pinned > 0 || cpu.tasks.iter().any(|n| *n > 0))
    }
}
