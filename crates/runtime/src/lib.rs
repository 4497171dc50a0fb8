#![doc = include_str!("../README.md")]
#![no_std]

mod cell;
mod hit;

pub use cell::{Adder, Locked, Rseq};
pub use hit::{PtRegs, count, hit, log2_histogram};
