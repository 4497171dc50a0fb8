//! What a program is compiled for.
//!
//! For:     whoever loads one.
//! State:   none.
//! Context: control.
//! Keeps:   nothing is trusted that is not said here.
//! Checked: tests/engines.rs runs every case at every level and effort.

use bpf::Wide;
use wire::maps::NearTable;

/// How far a program is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Level {
    /// It is ours: each access is made as it stands. Its writer answers for them.
    Own,
    /// Each access is compared with the bounds of the run, and each atomic one must be aligned: else the run ends with a
    /// fault.
    #[default]
    Checked,
}

/// How hard the compiler tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Effort {
    /// One instruction after the other: what tests run beside the other, which folds most small programs away.
    None,
    /// The best code that it knows.
    #[default]
    Speed,
}

/// Where a program's stack is: what r10 points to the end of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Stack {
    /// Of a program of our own, on the thread's stack, as much as it uses; of a checked one as [`Stack::Given`].
    #[default]
    Own,
    /// Where the run says, [`STACK_LEN`](crate::STACK_LEN) bytes.
    Given,
}

/// What a wide immediate stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Meaning {
    /// This number.
    Constant(u64),
    /// The address so far behind the arena's base, wherever a process maps it.
    Arena(u32),
    /// The address so far behind the beginning of the run's scratch memory.
    Scratch(u32),
}

/// What a program is compiled for.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// How far it is believed.
    pub level: Level,
    /// Where its stack is.
    pub stack: Stack,
    /// How hard is tried.
    pub effort: Effort,
    /// How many of r1 to r5 whoever calls it gives. The others are 0, whatever stands there.
    pub given: usize,
    /// The numbers of the helpers that it may call.
    pub helpers: &'a [u32],
    /// What a wide immediate stands for that is not a plain number; `None` refuses the program.
    pub meaning: &'a dyn Fn(Wide) -> Option<Meaning>,
    /// What a wide immediate stands for that is a table whose keys of a word a program of our own may look for by itself, where its
    /// thread found one before. The run's hit must be one, and the helpers that [`wire::Helper::is_for_programs`] leaves out be there.
    pub near: &'a dyn Fn(Wide) -> Option<NearTable>,
    /// A mistake to make, for tests of tests.
    #[cfg(feature = "broken")]
    pub broken: Option<crate::Broken>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options {
            level: Level::default(),
            stack: Stack::default(),
            effort: Effort::default(),
            given: 5,
            helpers: &[],
            meaning: &|_| None,
            near: &|_| None,
            #[cfg(feature = "broken")]
            broken: None,
        }
    }
}

impl std::fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Options { level, stack, effort, given, helpers, .. } = self;
        write!(f, "Options {{ {level:?}, {stack:?}, {effort:?}, given: {given}, helpers: {helpers:?} }}")
    }
}
