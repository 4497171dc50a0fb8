//! What depends on the instruction set: the saved registers, the thread's pointer, the counter.
//!
//! For:     handlers.
//! State:   none.
//! Context: hit.
//! Keeps:   G1 both files have the same list; handlers of both are the same code.
//! Checked: the build of each.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;
