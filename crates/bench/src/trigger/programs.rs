//! Programs whose runs are measured.
//!
//! For:     the benchmarks `trig-uprobe-prog-*`.
//! State:   none.
//! Context: control.
//! Keeps:   P1 each is what a front end of ours would make: [`Level::Own`], compiled as the best that there is.
//! Checked: each run compares hits, which are runs and skipped ones, with calls.

use super::error::TriggerError;
use jit::{Compiler, Level, Meaning};
use session::{Program, Programs, Wanted};

/// One program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seed {
    /// Nothing.
    Empty,
    /// A predicate that says no.
    No,
    /// One word of the maps, by a locked instruction.
    Add,
    /// Nothing, in a workspace.
    Space,
    /// Which thread.
    Tid,
}

impl Seed {
    fn text(self) -> &'static str {
        match self {
            Seed::Empty => "mov %r0, 0\nexit",
            Seed::No => "ldxdw %r2, [%r1+112]\njne %r2, 0x12345678, out\ncall 14\nout:\nmov %r0, 0\nexit",
            Seed::Add => "lddw %r2, map_value 0 0\nmov %r3, 1\nlock add [%r2+0], %r3\nmov %r0, 0\nexit",
            Seed::Space => "lddw %r2, map_value 1 0\nstdw [%r2+0], 1\nmov %r0, 0\nexit",
            Seed::Tid => "call 14\nmov %r0, 0\nexit",
        }
    }

    /// None of its hits comes to its program.
    pub fn is_turned_down(self) -> bool {
        self == Seed::No
    }

    fn scratch(self) -> usize {
        if self == Seed::Space { 64 } else { 0 }
    }
}

/// The program as the only one of a session.
pub fn make(seed: Seed) -> Result<Programs, TriggerError> {
    let broken = |why: String| TriggerError::Child(why);
    let insns = bpf::assemble(seed.text()).map_err(|e| broken(format!("{e:?}")))?;
    let program = bpf::Program::new(insns).map_err(|e| broken(e.to_string()))?;
    let mut compiler = Compiler::new().map_err(|e| broken(e.to_string()))?;
    let meaning = |wide| match wide {
        bpf::Wide::MapValueIndex { index: 0, offset } => Some(Meaning::Arena(wire::MAPS as u32 + offset)),
        bpf::Wide::MapValueIndex { index: 1, offset } => Some(Meaning::Scratch(offset)),
        _ => None,
    };
    let wanted = Wanted {
        name: "a benchmark",
        level: Level::Own,
        scratch: seed.scratch(),
        meaning: &meaning,
        ..Wanted::default()
    };
    let program = Program::new(&mut compiler, &program, &wanted).map_err(|e| broken(e.to_string()))?;
    Ok(Programs::new(vec![program], vec![0; 4096]))
}
