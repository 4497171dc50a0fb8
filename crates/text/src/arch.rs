//! What depends on the instruction set.
//!
//! For:     sites and slots of other instruction sets than x86-64, whose pieces lie in this crate's root.
//! State:   none.
//! Context: as each file says.
//! Keeps:   G1 what an instruction set needs is here for every host; only what the machine itself does (cache
//!          instructions, stores to code) is chosen by the machine that this runs on, and here alone.
//! Checked: by the build of each target.

pub mod aarch64;

#[cfg(target_arch = "aarch64")]
#[path = "arch/aarch64/hardware.rs"]
#[allow(unsafe_code)]
mod hardware;
#[cfg(target_arch = "aarch64")]
pub use hardware::Hardware;
