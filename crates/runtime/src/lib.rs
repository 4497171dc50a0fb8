#![doc = include_str!("../README.md")]
#![no_std]

mod cell;
mod handler;

pub use cell::{Adder, Locked, Rseq};
pub use handler::{PtRegs, count, log2_histogram};
