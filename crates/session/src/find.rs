//! A process as it looks from outside, while it runs.
//!
//! For:     plans, and everybody who is about to do something to a process.
//! State:   none; each look is taken anew.
//! Context: control; stops nobody. `Memory` can write, for those who may.
//! Keeps:   what cannot be read is an error with its own name, and never "gone".
//! Checked: testkit `refusals`, `endings`, `entered`.
//!
//! - [`process`] what /proc says of it
//! - [`maps`] what is mapped
//! - [`memory`] its memory, by /proc/PID/mem
//! - [`identity`] whether it is still that process, and that program
//! - [`sharers`] who runs in the same memory
//! - [`threads`] how its threads find their own blocks
//! - [`counter`] whether it may take the time stamp counter away from itself
//! - [`filter`] what a seccomp filter of it would say
//! - [`limits`] limits of its own that it has reached
//! - [`proof`] that it is gone, restored, unmapped: what a receipt may claim

pub(crate) mod counter;
pub(crate) mod filter;
pub(crate) mod identity;
pub(crate) mod limits;
pub(crate) mod maps;
pub(crate) mod memory;
pub(crate) mod process;
pub(crate) mod proof;
pub(crate) mod sharers;
pub(crate) mod threads;
