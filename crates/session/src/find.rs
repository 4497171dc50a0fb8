//! A process as it looks from outside, while it runs.

pub(crate) mod identity;
pub(crate) mod maps;
pub(crate) mod memory;
pub(crate) mod process;
pub(crate) mod proof;
pub(crate) mod shadow_stack;
pub(crate) mod sharers;
pub(crate) mod threads;
