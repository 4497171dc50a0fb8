//! The nine scenarios of the kernel's own test, for any number of slots and CPUs.
//!
//! For:     tests.
//! State:   none.
//! Context: control.
//! Keeps:   S1 before and after a scenario nothing is reserved.
//! Checked: `tests/scenarios.rs` runs them on every engine.
//! Source:  kernel `kernel/events/hw_breakpoint_test.c` (v7.0), by its table of cases.

use crate::{Accounts, Kind, Place, Refused, Request, Reservation};
use core::fmt;

/// What came of a scenario.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Every answer was right.
    Passed,
    /// The machine is too small for it.
    Skipped(&'static str),
    /// An answer was wrong.
    Failed(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Passed => f.write_str("ok"),
            Verdict::Skipped(why) => write!(f, "skipped: {why}"),
            Verdict::Failed(why) => write!(f, "FAILED: {why}"),
        }
    }
}

/// One scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// The kernel's name for it.
    pub name: &'static str,
    least_slots: u32,
    steps: for<'a> fn(&mut Bench<'a>) -> Result<(), String>,
}

impl Scenario {
    /// Runs it on accounts that nobody else uses meanwhile.
    pub fn run(&self, accounts: &Accounts) -> Verdict {
        let machine = accounts.machine();
        if machine.cpus < 2 {
            return Verdict::Skipped("needs 2 CPUs");
        }
        if machine.slots(Kind::Data) < self.least_slots {
            return Verdict::Skipped("needs 3 slots");
        }
        if accounts.is_used() {
            return Verdict::Failed("breakpoints were held before".into());
        }
        let mut bench = Bench { accounts, held: Vec::new() };
        let done = (self.steps)(&mut bench);
        drop(bench);
        match done {
            Err(why) => Verdict::Failed(why),
            Ok(()) if accounts.is_used() => Verdict::Failed("something is held after all was freed".into()),
            Ok(()) => Verdict::Passed,
        }
    }
}

/// The two tasks of the scenarios.
const ME: u64 = 1;
const OTHER: u64 = 2;

const ME_ALL: Place = Place::Task(ME);
const OTHER_ALL: Place = Place::Task(OTHER);
const ME_0: Place = Place::TaskOnCpu(ME, 0);
const OTHER_0: Place = Place::TaskOnCpu(OTHER, 0);
const CPU_0: Place = Place::Cpu(0);
const CPU_1: Place = Place::Cpu(1);

/// Accounts under test, and what is held; reservations by number, freed ones leave a hole.
struct Bench<'a> {
    accounts: &'a Accounts,
    held: Vec<Option<Reservation<'a>>>,
}

impl Bench<'_> {
    /// Must be granted; its number.
    fn get(&mut self, place: Place) -> Result<usize, String> {
        let got = self.accounts.reserve(Request::data(place));
        self.held.push(Some(got.map_err(|e| format!("{place} was refused: {e}"))?));
        Ok(self.held.len() - 1)
    }

    /// Must all be refused for want of a slot.
    fn refused(&self, places: &[Place]) -> Result<(), String> {
        for place in places {
            match self.accounts.reserve(Request::data(*place)) {
                Err(Refused::NoSlot { .. }) => {}
                Err(other) => return Err(format!("{place} was refused as: {other}")),
                Ok(_) => return Err(format!("{place} was granted")),
            }
        }
        Ok(())
    }

    /// Takes all slots but `leave`.
    fn fill(&mut self, place: Place, leave: u32) -> Result<Vec<usize>, String> {
        let slots = self.accounts.machine().slots(Kind::Data);
        (leave..slots).map(|_| self.get(place)).collect()
    }

    fn free(&mut self, number: usize) {
        self.held[number] = None;
    }
}

/// All of them (table).
pub const SCENARIOS: [Scenario; 9] = [
    Scenario { name: "one_cpu", least_slots: 1, steps: one_cpu },
    Scenario { name: "many_cpus", least_slots: 1, steps: many_cpus },
    Scenario { name: "one_task_on_all_cpus", least_slots: 1, steps: one_task_on_all_cpus },
    Scenario { name: "two_tasks_on_all_cpus", least_slots: 1, steps: two_tasks_on_all_cpus },
    Scenario { name: "one_task_on_one_cpu", least_slots: 1, steps: one_task_on_one_cpu },
    Scenario { name: "one_task_mixed", least_slots: 3, steps: one_task_mixed },
    Scenario { name: "two_tasks_on_one_cpu", least_slots: 1, steps: two_tasks_on_one_cpu },
    Scenario { name: "two_tasks_on_one_all_cpus", least_slots: 1, steps: two_tasks_on_one_all_cpus },
    Scenario { name: "task_on_all_and_one_cpu", least_slots: 3, steps: task_on_all_and_one_cpu },
];

fn one_cpu(b: &mut Bench<'_>) -> Result<(), String> {
    b.fill(CPU_0, 0)?;
    b.refused(&[ME_ALL, CPU_0])
}

fn many_cpus(b: &mut Bench<'_>) -> Result<(), String> {
    for cpu in 0..b.accounts.machine().cpus {
        b.fill(Place::Cpu(cpu), 0)?;
        b.refused(&[Place::Cpu(cpu)])?;
        if b.held.len() >= 512 {
            break;
        }
    }
    Ok(())
}

fn one_task_on_all_cpus(b: &mut Bench<'_>) -> Result<(), String> {
    let mine = b.fill(ME_ALL, 0)?;
    b.refused(&[ME_ALL, ME_0, CPU_0])?;
    b.free(mine[0]);
    b.get(CPU_0).map(drop)
}

fn two_tasks_on_all_cpus(b: &mut Bench<'_>) -> Result<(), String> {
    let mine = b.fill(ME_ALL, 0)?;
    b.fill(OTHER_ALL, 0)?;
    b.refused(&[ME_ALL, OTHER_ALL, ME_0, OTHER_0, CPU_0])?;
    b.free(mine[0]);
    b.refused(&[CPU_0])
}

fn one_task_on_one_cpu(b: &mut Bench<'_>) -> Result<(), String> {
    let mine = b.fill(ME_0, 0)?;
    b.refused(&[ME_ALL, ME_0, CPU_0])?;
    b.free(mine[0]);
    b.get(CPU_0).map(drop)
}

fn one_task_mixed(b: &mut Bench<'_>) -> Result<(), String> {
    let bound = b.get(ME_0)?;
    let others = b.fill(ME_ALL, 1)?;
    b.refused(&[ME_ALL, ME_0, CPU_0])?;
    // Without the bound one the task no longer depends on the CPU.
    b.free(bound);
    b.free(others[0]);
    b.get(CPU_0)?;
    b.get(CPU_0)?;
    b.refused(&[CPU_0])
}

fn two_tasks_on_one_cpu(b: &mut Bench<'_>) -> Result<(), String> {
    b.fill(ME_0, 0)?;
    b.fill(OTHER_0, 0)?;
    b.refused(&[ME_ALL, OTHER_ALL, ME_0, OTHER_0, CPU_0])?;
    b.fill(CPU_1, 0).map(drop)
}

fn two_tasks_on_one_all_cpus(b: &mut Bench<'_>) -> Result<(), String> {
    b.fill(ME_0, 0)?;
    b.fill(OTHER_ALL, 0)?;
    b.refused(&[ME_ALL, OTHER_ALL, ME_0, OTHER_0, CPU_0, CPU_1])
}

fn task_on_all_and_one_cpu(b: &mut Bench<'_>) -> Result<(), String> {
    b.fill(ME_ALL, 2)?;
    let bound = b.get(ME_0)?;
    b.get(ME_ALL)?;
    b.refused(&[ME_ALL, ME_0, CPU_0])?;
    // CPU 1 has one slot left, CPU 0 none.
    let pinned = b.get(CPU_1)?;
    b.refused(&[CPU_1])?;
    b.free(bound);
    b.refused(&[ME_ALL])?;
    b.free(pinned);
    b.get(ME_ALL)?;
    b.refused(&[ME_ALL, ME_0, CPU_0, CPU_1])
}
