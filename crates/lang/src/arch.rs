//! What depends on the instruction set: where the context has registers.
//!
//! For:     the lowering.
//! State:   none.
//! Context: control.
//! Keeps:   G1 both have the same list; no other file of the lowering knows an offset.
//! Checked: tests/scripts.rs on x86-64; on AArch64 the build alone, where no program runs yet (docs/aarch64.md).

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;
