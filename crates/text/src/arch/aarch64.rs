//! AArch64: patches, trampolines, slots, and making new code visible to the processor.
//!
//! For:     probing A64 code: docs/aarch64.md says what exists.
//! State:   none.
//! Context: as each file says.
//! Keeps:   G1 no byte of code is run between its write and its [`publish`].
//! Checked: tests/model (what was maintained, in which order, before which execution), tests/aarch64_hits.rs.

mod cache;
mod patch;
mod slot;
pub(crate) mod trampoline;

pub use cache::{CacheType, Flush, Maintain, Written, publish};
pub use patch::{
    Changed, Diverted, ISLAND_MAX_WORDS, NotDiverted, REACH_BYTES, Site, TRAP, TRAP_EXIT, Way, branch_target,
    can_swap_live, divert, island,
};
pub use slot::{Area, Entered, NotSlotted, Options, Port, SLOT_BYTES, SLOT_WORDS, Scheme, SlotCode};
