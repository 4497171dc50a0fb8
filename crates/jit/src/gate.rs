//! Nothing leaves the compiler that was not decoded and found harmless.
//!
//! For:     the compiler; whoever wants to know what a program's code does before it is placed.
//! State:   none.
//! Context: control.
//! Keeps:   G1 every instruction that can be reached is one of a list of general ones: no vector or segment register, no
//!             system call, trap, port or privileged instruction, no computed jump or call, no string instruction.
//!          G2 jumps stay in their function, calls lead to the start of one or are listed; nothing falls out of a function.
//!          G3 no byte is reached as two different instructions; constants lie behind the last instruction, and are only read.
//!          G4 the stack pointer comes back: at each return it is what it was at the call, on every way the same; so does the
//!             link register, where there is one.
//!          G5 the arena's register is never written, nor one that is the platform's.
//! Checked: tests of each walk (`arch`) break each; every program of every test of this crate goes through it.

use crate::{Relocation, arch};
use insn::RegSet;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

/// What code that has passed does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// General registers that may be different afterwards, of those that a C function may change and a trampoline saves only
    /// where someone does: of x86-64 all, of A64 none.
    pub clobbers: RegSet,
    /// Bytes of the caller's stack that it needs, a return address that a call leaves there among them; what helpers need comes on top.
    pub stack: u32,
    /// Instructions, of all functions.
    pub instructions: u32,
}

/// What is wrong with an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Found {
    /// No instruction, or the function ends inside it.
    NoInstruction,
    /// None of those that a program needs.
    NotGeneral,
    /// A register that is not general, or a segment prefix.
    Register,
    /// A jump or a call to an address that is computed, or not listed, or outside.
    Way,
    /// Control runs out of the function.
    NoEnd,
    /// Its bytes are part of another instruction too.
    Overlap,
    /// It writes relative to itself, or reads what is no constant behind the code.
    Constant,
    /// The stack pointer is changed in a way that is not followed, or differs between two ways.
    Stack,
    /// The arena's register is written, or the platform's.
    Arena,
}

/// Code that is not let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// Where.
    pub at: usize,
    /// Why.
    pub found: Found,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.found {
            Found::NoInstruction => "is no instruction",
            Found::NotGeneral => "is an instruction that no program needs",
            Found::Register => "uses a register that is not general",
            Found::Way => "leads to a place that is not listed",
            Found::NoEnd => "lets control run out of its function",
            Found::Overlap => "shares bytes with another instruction",
            Found::Constant => "reaches for what is no constant behind the code",
            Found::Stack => "moves the stack pointer in a way that is not followed",
            Found::Arena => "writes a register that is to stay as it is",
        };
        write!(f, "offset {:#x} {what}", self.at)
    }
}

impl std::error::Error for Unfit {}

/// Functions inside each other that need stack of the caller's.
const DEPTH_MAX: usize = bpf::FRAMES_MAX;

/// What a function has, followed along all its ways.
#[derive(Debug, Default)]
pub(crate) struct Walked {
    /// As of [`Passed::clobbers`].
    pub clobbers: u16,
    pub instructions: u32,
    /// Bytes of stack, calls of its own program's functions apart.
    pub deepest: u32,
    /// The functions that it calls, and the stack that is in use there.
    pub calls: BTreeMap<usize, u32>,
}

/// What a walk is given: the code, where functions begin, where calls stand that are listed.
pub(crate) struct Ground<'a> {
    pub bytes: &'a [u8],
    pub starts: &'a BTreeSet<usize>,
    pub listed: &'a BTreeSet<usize>,
}

/// Looks at the code of functions in these ranges, whose calls of helpers are listed.
///
/// # Errors
/// The first instruction that is not let through.
pub(crate) fn pass(bytes: &[u8], functions: &[Range<usize>], calls: &[Relocation]) -> Result<Passed, Unfit> {
    let starts: BTreeSet<usize> = functions.iter().map(|range| range.start).collect();
    let listed: BTreeSet<usize> = calls.iter().map(|call| call.at as usize).collect();
    let ground = Ground { bytes, starts: &starts, listed: &listed };
    let (mut clobbers, mut instructions) = (0, 0);
    let mut frames = BTreeMap::new();
    for range in functions {
        let walked = arch::gate::walk(&ground, range.clone())?;
        clobbers |= walked.clobbers;
        instructions += walked.instructions;
        frames.insert(range.start, (walked.deepest, walked.calls));
    }
    let entry = functions.first().map_or(0, |range| range.start);
    let stack = deepest(&frames, entry);
    Ok(Passed { clobbers: RegSet::from(clobbers), stack, instructions })
}

/// Each function's depth, and its calls of others with the depth at each.
type Frames = BTreeMap<usize, (u32, BTreeMap<usize, u32>)>;

/// The most stack that is needed from a function on, with no more than so many inside each other.
fn deepest(frames: &Frames, entry: usize) -> u32 {
    let mut need: BTreeMap<usize, u32> = frames.iter().map(|(at, (own, _))| (*at, *own)).collect();
    for _ in 1..DEPTH_MAX {
        let below = |calls: &BTreeMap<usize, u32>| {
            calls.iter().map(|(to, depth)| depth + need.get(to).copied().unwrap_or(0)).max().unwrap_or(0)
        };
        need = frames.iter().map(|(at, (own, calls))| (*at, (*own).max(below(calls)))).collect();
    }
    need.get(&entry).copied().unwrap_or(0)
}
