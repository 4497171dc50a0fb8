#![doc = include_str!("../README.md")]
#![no_std]

mod arch;
mod calls;
mod cell;
mod doorbell;
mod handler;
mod trace;

pub use calls::{enter, enter_go, leave, leave_go};
pub use cell::{Adder, Locked, Rseq};
pub use doorbell::{ring, ring_before_exec};
pub use handler::{PtRegs, count, log2_histogram};
pub use trace::{trace_enter, trace_leave};

// Programs and walks of stacks: on x86-64 alone (docs/aarch64.md).
#[cfg(target_arch = "x86_64")]
mod around;
#[cfg(target_arch = "x86_64")]
mod bytes;
#[cfg(target_arch = "x86_64")]
mod helper;
#[cfg(target_arch = "x86_64")]
mod helpers;
#[cfg(target_arch = "x86_64")]
mod inside;
#[cfg(target_arch = "x86_64")]
mod program;
#[cfg(target_arch = "x86_64")]
mod stack;
#[cfg(target_arch = "x86_64")]
mod trace_stack;

#[cfg(target_arch = "x86_64")]
pub use around::{Around, Piece};
#[cfg(target_arch = "x86_64")]
pub use helper::{Function, table as helpers};
#[cfg(target_arch = "x86_64")]
pub use program::{program_in_space_locked, program_in_space_rseq, program_locked, program_rseq};
#[cfg(target_arch = "x86_64")]
pub use stack::count_stack;
#[cfg(target_arch = "x86_64")]
pub use trace_stack::trace_enter_stack;
