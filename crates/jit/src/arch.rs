//! What depends on the instruction set: what Cranelift is asked for, calls, the walk of the gate, the way into code.
//!
//! For:     the compiler and the loader.
//! State:   none.
//! Context: control.
//! Keeps:   G1 both have the same list; no other file of this crate names a register or an instruction.
//! Checked: the build of each; tests/engines.rs on both (docs/aarch64.md).

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;
