#![doc = include_str!("../README.md")]
#![no_std]

mod errno;
mod raw;

pub use errno::Errno;
pub use raw::{check, nr, syscall};
