//! How many sites of a file stand on each rung.
//!
//! For:     `explain --all`, and the figures in the docs.
//! State:   counts.
//! Context: control.
//! Keeps:   G1 each site is counted once, as if it were the only probe.
//! Checked: tests/real prints them for real files.

use std::ops::Range;

use crate::arch::x86_64::kernel_misruns;
use crate::arch::{aarch64, native};
use crate::code::{Code, Insn};
use crate::flow::Flow;
use crate::ladder::Ladder;
use crate::place::Asked;
use crate::reason::{Refusal, Rung};

/// Sites by rung.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Rung 1.
    pub nop: u64,
    /// Rung 2.
    pub jump: u64,
    /// Rung 3 within the function.
    pub window: u64,
    /// Rung 3 that ends in padding.
    pub padded_window: u64,
    /// Rung 4.
    pub island: u64,
    /// Rung 5, if the process has room at one of the addresses that the bytes leave to the jump.
    pub punned: u64,
    /// None of these, and rung 6 or 7 is needed.
    pub needs_trap: u64,
    /// No probe may stand there, or only the kernel's, which runs the instruction wrong ([`kernel_misruns`]).
    pub refused: u64,
}

impl Coverage {
    /// All sites.
    pub fn total(&self) -> u64 {
        self.placed() + self.needs_trap + self.refused
    }

    /// Sites on rungs 1 to 5.
    pub fn placed(&self) -> u64 {
        self.nop + self.jump + self.window + self.padded_window + self.island + self.punned
    }

    /// Both counts together.
    pub fn and(self, other: Coverage) -> Coverage {
        Coverage {
            nop: self.nop + other.nop,
            jump: self.jump + other.jump,
            window: self.window + other.window,
            padded_window: self.padded_window + other.padded_window,
            island: self.island + other.island,
            punned: self.punned + other.punned,
            needs_trap: self.needs_trap + other.needs_trap,
            refused: self.refused + other.refused,
        }
    }

    fn add(&mut self, flow: &Flow, code: &Code<'_>, asked: &Asked<'_>) {
        if let Some(guarded) = flow.a64 {
            return aarch64::tally(self, guarded, code, asked);
        }
        let found = Ladder::new(flow, code, asked).and_then(|ladder| ladder.climb());
        *match found {
            Ok(found) => match found.rung {
                Rung::Nop => &mut self.nop,
                Rung::Jump => &mut self.jump,
                Rung::Window if found.window.padding_used > 0 => &mut self.padded_window,
                Rung::Window => &mut self.window,
                Rung::Island => &mut self.island,
                _ => &mut self.punned,
            },
            Err(Refusal::NoRung { .. }) if kernel_misruns(code.from_addr(asked.site)).is_ok() => {
                &mut self.needs_trap
            }
            Err(_) => &mut self.refused,
        } += 1;
    }
}

/// Counts the first instruction of each function.
pub fn coverage_of_entries(flow: &Flow, codes: &[Code<'_>], functions: &[Range<u64>]) -> Coverage {
    let mut coverage = Coverage::default();
    for function in functions {
        if let Some(code) = Code::holding(codes, function.start) {
            coverage.add(flow, code, &alone(function.start, function));
        }
    }
    coverage
}

/// Counts every instruction of each function, as far as it decodes.
pub fn coverage_of_instructions(flow: &Flow, codes: &[Code<'_>], functions: &[Range<u64>]) -> Coverage {
    let mut coverage = Coverage::default();
    for function in functions {
        let Some(code) = Code::holding(codes, function.start) else { continue };
        for at in addresses(flow.a64.is_some(), codes, function) {
            coverage.add(flow, code, &alone(at, function));
        }
    }
    coverage
}

/// Where a function's instructions begin, of A64 or of x86-64.
pub fn addresses(is_a64: bool, codes: &[Code<'_>], function: &Range<u64>) -> Vec<u64> {
    match Code::holding(codes, function.start) {
        Some(code) if is_a64 => (function.start..aarch64::end_of_code(code, function)).step_by(4).collect(),
        _ => instructions(codes, function).map(|insn| insn.addr).collect(),
    }
}

/// The instructions of a function one behind the other from its start, up to its end or the first byte that is none.
pub fn instructions<'a>(codes: &'a [Code<'_>], function: &Range<u64>) -> impl Iterator<Item = Insn> + 'a {
    let (mut at, end) = (function.start, function.end);
    std::iter::from_fn(move || {
        let code = Code::holding(codes, at).filter(|_| at < end)?;
        let insn = native::decode(code.from_addr(at), at)?.insn;
        at = insn.end();
        Some(insn)
    })
}

fn alone<'a>(site: u64, function: &Range<u64>) -> Asked<'a> {
    Asked { site, function: Some(function.clone()), next_function: None, taken: &|_| false, room: &|_| true }
}
