//! What depends on the instruction set of the target, one file for each.
//!
//! For:     keeping the ladder and the analysis free of opcodes. The choice follows the *target's* code,
//!          not the machine that this runs on, so there is no `cfg(target_arch)`.
//! State:   none.
//! Context: control.
//! Keeps:   G1 an architecture with windows has the same list: `decode`, `sweep`, `Met`, `scan`, `Sum`, `formed`, `follow`, `source`,
//!          `liveness`, `leave`, `Depths`, `falls_through`, `opposite`, `is_stub`, `may_fault`, `relocate`,
//!          `len_bound`, `is_signal_return`, and the constants `JUMP_BYTES`,
//!          `SHORT_JUMP_BYTES`, `SHORT_REACH`, `SHORT_BRANCH_REACH`.
//!          AArch64 has none of them: a branch is as long as the instruction that it replaces, so no ladder is needed.
//! Checked: by the compiler.

pub mod aarch64;
pub mod x86_64;

pub(crate) use x86_64 as native;
