//! AArch64: which instructions may be moved, how they run elsewhere, and which are done in software.
//!
//! For:     probing A64 code, from any host: nothing here depends on the machine that runs it.
//! State:   none.
//! Context: any; no allocation, no panic, no unsafe code.
//! Keeps:   G1 a copy leaves registers, flags, memory and the way of control as the original does.
//!          G2 what cannot be done exactly is refused, with the reason.
//! Checked: tests/aarch64_objdump.rs, tests/aarch64_differential (under qemu), unit tests.
//!
//! All instructions are four bytes, and so is a branch: a patch displaces exactly one of them, and the windows of
//! the x86-64 ladder have no counterpart.

mod decode;
mod emulate;
mod encode;
mod exits;
mod kernel;
mod place;
mod relocate;
mod store;
mod verdict;

pub use decode::{Auth, By, LINK, Literal, Relative, ZERO, decode};
pub use emulate::{Regs, emulate};
pub use encode::{BRANCH_REACH, NOP, b};
pub(crate) use exits::{Exit, exits};
pub use kernel::{NotByKernel, kernel_way};
pub use place::displaced;
pub(crate) use place::{end_of_code, is_call, may_fault, place, place_exit, tally};
pub use relocate::{
    COPY_MAX_WORDS, Copied, FAR_WORDS, GATE_WORDS, NotMoved, Origin, SCRATCH_BYTES, Saved, far, gate,
    relocate, resume,
};
pub use store::{Stored, stored};
pub use verdict::{Verdict, is_landing_pad, kernel_errno, verdict, verdict_at};
