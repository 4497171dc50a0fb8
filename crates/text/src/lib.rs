#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod assemble;
mod patch;
mod trampoline;

pub use patch::{JUMP_LEN, Patch, island_jump, jump, jump_target};
pub use trampoline::{Body, PcPlace, Request, Rollback, SavedReg, Trampoline, slow_routine};
