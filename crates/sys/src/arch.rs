//! The one place that chooses an architecture.
//!
//! For:     raw.rs: the call itself and its numbers; ptrace.rs: registers.
//! State:   none.
//! Context: hit, signal, target, control.
//! Keeps:   each architecture file has the same list: `nr`, `instruction`, `Regs`.
//! Checked: the build of each architecture; `a_call_returns_its_value_and_its_error`.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
