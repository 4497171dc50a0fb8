//! What depends on the instruction set: registers of stopped threads, calls that they make for us, frames, patterns in code.
//!
//! For:     all rooms.
//! State:   none.
//! Context: control.
//! Keeps:   G1 both files have the same list; no other file of this crate names a register.
//!          G2 what does not exist on an instruction set is refused by name: `facts::ported`.
//! Checked: the build of each; testkit on x86-64, the machine's test on AArch64 (docs/aarch64.md).
//!
//! - [`x86_64`] x86-64, where everything exists
//! - [`aarch64`] AArch64, where much exists: `facts::ported`

/// A system call that a thread slept in before it was asked to stop, as /proc told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SleptIn {
    pub number: u64,
    pub first_argument: u64,
    pub sp: u64,
    pub pc: u64,
    /// How often the thread had gone to sleep by then.
    pub sleeps: u64,
}

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;
