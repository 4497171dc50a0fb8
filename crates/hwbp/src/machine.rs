//! What is accounted: CPUs with debug registers, and breakpoints that want them.
//!
//! For:     the engines and their callers.
//! State:   none.
//! Context: target, control.
//! Keeps:   nothing.
//! Checked: by use.

use core::fmt;

/// What a breakpoint watches for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Reading or writing memory.
    Data,
    /// Executing an instruction.
    Instruction,
}

/// The debug registers of each CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pools {
    /// So many for both kinds together: x86-64 has 4.
    Shared(u32),
    /// So many for each kind by itself.
    Split {
        /// For data.
        data: u32,
        /// For instructions.
        instruction: u32,
    },
}

/// How many CPUs there are, and what each has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Machine {
    /// CPUs, virtual or real, numbered from 0.
    pub cpus: u32,
    /// The debug registers of each.
    pub pools: Pools,
}

impl Machine {
    /// `cpus` CPUs with 4 debug registers each, as x86-64 has them.
    pub fn x86_64(cpus: u32) -> Machine {
        Machine { cpus, pools: Pools::Shared(4) }
    }

    /// The pool that serves a kind, 0 or 1.
    pub(crate) fn pool(&self, kind: Kind) -> usize {
        match (self.pools, kind) {
            (Pools::Split { .. }, Kind::Instruction) => 1,
            _ => 0,
        }
    }

    /// The debug registers that each CPU has for a kind.
    pub fn slots(&self, kind: Kind) -> u32 {
        match (self.pools, kind) {
            (Pools::Shared(slots), _) => slots,
            (Pools::Split { data, .. }, Kind::Data) => data,
            (Pools::Split { instruction, .. }, Kind::Instruction) => instruction,
        }
    }

    /// The larger pool.
    pub(crate) fn most_slots(&self) -> usize {
        self.slots(Kind::Data).max(self.slots(Kind::Instruction)) as usize
    }
}

/// Where a breakpoint can become active.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// Wherever this task runs.
    Task(u64),
    /// When this task runs on this CPU.
    TaskOnCpu(u64, u32),
    /// On this CPU, whatever runs there.
    Cpu(u32),
}

/// Stands for all CPUs where a number is expected.
pub const ALL_CPUS: u32 = u32::MAX;

impl Place {
    /// The task that it belongs to.
    pub fn task(self) -> Option<u64> {
        match self {
            Place::Task(task) | Place::TaskOnCpu(task, _) => Some(task),
            Place::Cpu(_) => None,
        }
    }

    /// The one CPU that it is bound to, or [`ALL_CPUS`].
    pub fn cpu(self) -> u32 {
        match self {
            Place::Task(_) => ALL_CPUS,
            Place::TaskOnCpu(_, cpu) | Place::Cpu(cpu) => cpu,
        }
    }

    /// The CPUs on which it may become active.
    pub(crate) fn on(self, cpus: u32) -> core::ops::Range<u32> {
        match self.cpu() {
            ALL_CPUS => 0..cpus,
            cpu => cpu..cpu + 1,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Task(task) => write!(f, "task {task}"),
            Place::TaskOnCpu(task, cpu) => write!(f, "task {task} on CPU {cpu}"),
            Place::Cpu(cpu) => write!(f, "CPU {cpu}"),
        }
    }
}

/// One breakpoint, as far as accounting sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    /// Where.
    pub place: Place,
    /// What for.
    pub kind: Kind,
}

impl Request {
    /// A data breakpoint.
    pub fn data(place: Place) -> Request {
        Request { place, kind: Kind::Data }
    }
}
