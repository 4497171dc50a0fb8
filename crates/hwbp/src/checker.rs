//! The definition itself, computed from scratch for every question.
//!
//! For:     tests and torture: what the engines must answer.
//! State:   the breakpoints that are held, nothing derived.
//! Context: control. O(breakpoints x CPUs x tasks) a question.
//! Keeps:   K1 it shares no code with the engines.
//! Checked: `tests/scenarios.rs` runs the nine scenarios on it too.

use crate::{Machine, Place, Request};

/// Breakpoints that are held, and the rule.
#[derive(Clone, Debug)]
pub struct Checker {
    machine: Machine,
    held: Vec<Request>,
}

impl Checker {
    /// Nothing held.
    pub fn new(machine: Machine) -> Checker {
        Checker { machine, held: Vec::new() }
    }

    /// Whether a request may be granted now.
    pub fn would_grant(&self, request: Request) -> bool {
        self.used(request) < self.machine.slots(request.kind)
    }

    /// Notes a breakpoint as held, granted or not.
    pub fn add(&mut self, request: Request) {
        self.held.push(request);
    }

    /// Forgets one such breakpoint; false if there is none.
    pub fn remove(&mut self, request: Request) -> bool {
        let at = self.held.iter().position(|held| *held == request);
        at.map(|at| self.held.swap_remove(at)).is_some()
    }

    /// What is held.
    pub fn held(&self) -> &[Request] {
        &self.held
    }

    /// Debug registers taken on the fullest CPU where the breakpoint could become active.
    pub fn used(&self, request: Request) -> u32 {
        let cpus = match request.place {
            Place::Task(_) => 0..self.machine.cpus,
            Place::TaskOnCpu(_, cpu) | Place::Cpu(cpu) => cpu..cpu + 1,
        };
        cpus.map(|cpu| self.used_on(cpu, request)).max().unwrap_or(0)
    }

    /// A CPU on which more is held than it has, if there is any.
    pub fn overcommitted(&self) -> Option<u32> {
        (0..self.machine.cpus).find(|cpu| {
            let kinds = [crate::Kind::Data, crate::Kind::Instruction];
            kinds.into_iter().any(|kind| {
                let request = Request { place: Place::Cpu(*cpu), kind };
                self.used_on(*cpu, request) > self.machine.slots(kind)
            })
        })
    }

    fn used_on(&self, cpu: u32, request: Request) -> u32 {
        let same_pool = |held: &&Request| self.machine.pool(held.kind) == self.machine.pool(request.kind);
        let held = || self.held.iter().filter(same_pool);
        let pinned = held().filter(|h| h.place == Place::Cpu(cpu)).count();
        let of_task = |task: u64| {
            let is_here = |h: &&Request| match h.place {
                Place::Task(t) => t == task,
                Place::TaskOnCpu(t, c) => t == task && c == cpu,
                Place::Cpu(_) => false,
            };
            held().filter(is_here).count()
        };
        let tasks = match request.place.task() {
            // Tasks exclude each other on a CPU, so only its own count.
            Some(task) => of_task(task),
            None => held().filter_map(|h| h.place.task()).map(of_task).max().unwrap_or(0),
        };
        (pinned + tasks) as u32
    }
}
