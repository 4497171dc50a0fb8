//! Why a program is not compiled.
//!
//! For:     [`Compiler::compile`](crate::Compiler::compile).
//! State:   none.
//! Context: control.
//! Keeps:   each names what was found, and where.
//! Checked: tests/engines.rs; tests/hostile.rs.

use crate::Unfit;
use bpf::Wide;
use std::fmt;

/// What a program has that is not compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// More instructions than are compiled.
    TooLong {
        /// How many it has.
        insns: usize,
    },
    /// A call of a helper that it may not call.
    NoHelper {
        /// Its number.
        number: i64,
    },
    /// A wide immediate that means nothing here.
    NoMeaning(Wide),
    /// The code generator gave up; that is a defect of ours.
    Generator(String),
    /// What was generated is not let through; that is a defect of ours.
    Gate(Unfit),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::TooLong { insns } => {
                write!(f, "{insns} instructions; at most {} are compiled", crate::INSNS_MAX)
            }
            Refusal::NoHelper { number } => write!(f, "there is no helper {number}"),
            Refusal::NoMeaning(wide) => write!(f, "{wide:?} means nothing here"),
            Refusal::Generator(why) => write!(f, "the code generator gave up: {why}"),
            Refusal::Gate(unfit) => write!(f, "the gate refuses what was generated: {unfit}"),
        }
    }
}

impl std::error::Error for Refusal {}

/// A refusal, and the instruction that it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The instruction's number.
    pub at: usize,
    /// Why.
    pub why: Refusal,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instruction {}: {}", self.at, self.why)
    }
}

impl std::error::Error for Refused {}
