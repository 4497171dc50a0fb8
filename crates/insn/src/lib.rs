#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod arch;
mod code;
mod coverage;
mod exits;
mod flow;
mod ladder;
mod padding;
mod place;
mod reason;
mod relocate;
mod targets;

pub use arch::aarch64;
pub use arch::x86_64::{MemoryAccess, RegSet, memory_accesses};
pub use code::{Code, Insn};
pub use coverage::{Coverage, coverage_of_entries, coverage_of_instructions};
pub use exits::{Exits, NoExits};
pub use flow::{Flow, Source};
pub use place::{Asked, Hook, Placement, place};
pub use reason::{Forbidden, Reason, Refusal, Rung};
pub use relocate::{Displaced, Origin, Unreachable, relocate, relocate_len_bound, relocate_part};
