#![doc = include_str!("../README.md")]
#![no_std]

mod arch;
mod around;
mod bytes;
mod calls;
mod cell;
mod doorbell;
mod handler;
mod helper;
mod helpers;
mod inside;
mod program;
mod trace;

pub use around::{Around, Piece};
pub use calls::{enter, enter_go, leave, leave_go};
pub use cell::{Adder, Locked, Rseq};
pub use doorbell::{ring, ring_before_exec};
pub use handler::{PtRegs, count, counts, log2_histogram, log2_histograms};
pub use helper::{Function, table as helpers};
pub use program::{program_in_space_locked, program_in_space_rseq, program_locked, program_rseq};
pub use trace::{trace_enter, trace_leave};

// Walks of stacks: on x86-64 alone (docs/aarch64.md).
#[cfg(target_arch = "x86_64")]
mod stack;
#[cfg(target_arch = "x86_64")]
mod trace_stack;

#[cfg(target_arch = "x86_64")]
pub use stack::count_stack;
#[cfg(target_arch = "x86_64")]
pub use trace_stack::trace_enter_stack;
