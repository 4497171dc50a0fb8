#![doc = include_str!("../README.md")]
#![no_std]

mod calls;
mod cell;
mod doorbell;
mod frames;
mod handler;
mod rings;
mod trace;

pub use calls::{enter, enter_go, leave, leave_go};
pub use cell::{Adder, Locked, Rseq};
pub use doorbell::{ring, ring_before_exec};
pub use frames::{Call, Opened, close, open};
pub use handler::{PtRegs, count, log2_histogram};
pub use rings::{Event, write};
pub use trace::{trace_enter, trace_leave};
