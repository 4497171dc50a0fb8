#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub mod arch;
mod assemble;
mod patch;
pub mod slots;
mod trampoline;

pub use patch::{JUMP_LEN, Patch, island_jump, jump, jump_target};
pub use trampoline::{Body, PcPlace, Request, Rollback, SavedReg, Trampoline, slow_routine};
