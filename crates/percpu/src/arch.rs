//! The one place that chooses an architecture.
//!
//! For:     `rseq`, `cpu` and `fence`, which call the same functions on each architecture.
//! State:   none.
//! Context: hit, signal, target, control.
//! Keeps:   each architecture file has the same function list.
//! Checked: the build of each architecture.

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64;
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub use x86_64::*;

// Miri runs no inline assembly: it takes the portable file, that is the fallback.
#[cfg(any(not(target_arch = "x86_64"), miri))]
mod portable;
#[cfg(any(not(target_arch = "x86_64"), miri))]
pub use portable::*;

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod aarch64;
#[cfg(all(target_arch = "aarch64", not(miri)))]
pub use aarch64::*;
