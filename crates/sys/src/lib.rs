#![doc = include_str!("../README.md")]
#![no_std]

mod cpu;
mod errno;
mod futex;
mod id;
pub mod mapping;
pub mod ptrace;
mod raw;
pub mod remote;
pub mod sched;
mod sigstack;
pub mod wait;

pub use cpu::{getcpu, membarrier, membarrier_cmd};
pub use errno::Errno;
pub use futex::{futex_wait, futex_wake};
pub use id::{getpid, gettid};
pub use raw::{check, nr, syscall};
pub use sigstack::on_signal_stack;
