#![doc = include_str!("../README.md")]
#![no_std]

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
mod stack;
mod trace;

pub use around::{Around, Piece};
pub use calls::{enter, enter_go, leave, leave_go};
pub use cell::{Adder, Locked, Rseq};
pub use doorbell::{ring, ring_before_exec};
pub use handler::{PtRegs, count, log2_histogram};
pub use helper::{Function, table as helpers};
pub use program::{program_in_space_locked, program_in_space_rseq, program_locked, program_rseq};
pub use stack::count_stack;
pub use trace::{trace_enter, trace_enter_stack, trace_leave};
