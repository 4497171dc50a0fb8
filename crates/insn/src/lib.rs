#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod arch;
mod boundary;
mod code;
mod coverage;
mod entries;
mod exits;
mod flow;
mod ladder;
mod padding;
mod place;
mod reason;
mod relocate;
mod tables;
mod targets;

pub use arch::aarch64;
pub use arch::x86_64::{
    At, Emulation, NoSlot, RELEASE_FRAME_BYTES, RSP, Registers, Resume, SLOT_CODE_BYTES, SlotCode, Store,
};
pub use arch::x86_64::{
    KernelWay, MemoryAccess, Misrun, RegSet, accessor_before, kernel_misruns, kernel_way, memory_accesses,
    written, written_apart_from_computed_calls,
};
pub use code::{Code, Insn};
pub use coverage::{Coverage, addresses, coverage_of_entries, coverage_of_instructions, instructions};
pub use exits::{Exits, NoExits};
pub use flow::{Flow, Source};
pub use place::{Asked, Hook, Placement, Pun, no_room, place, place_earlier};
pub use reason::{Forbidden, Reason, Refusal, Rung};
pub use relocate::{
    Displaced, Origin, Unreachable, relocate, relocate_len_bound, relocate_part, relocate_taken,
};
pub use tables::Table;
