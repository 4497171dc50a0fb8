#![doc = include_str!("../README.md")]
#![no_std]

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
