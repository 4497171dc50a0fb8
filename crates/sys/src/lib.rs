#![doc = include_str!("../README.md")]
#![no_std]

mod errno;
pub mod mapping;
pub mod ptrace;
mod raw;
pub mod remote;
pub mod sched;
pub mod wait;

pub use errno::Errno;
pub use raw::{check, nr, syscall};
