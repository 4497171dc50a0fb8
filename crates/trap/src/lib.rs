#![doc = include_str!("../README.md")]
// Its routines are x86-64: elsewhere the crate is empty, and who would use it leaves that out.
#![cfg(target_arch = "x86_64")]

pub mod actions;
mod blocks;
mod engine;
mod error;
mod ground;
mod handler;
mod interpose;
mod jump;
mod module;
mod poke;
mod routine;
mod show;
mod site;
mod space;
mod step;

pub use engine::{Config, Counts, Engine, Lookup, Probe};
pub use error::ProbeError;
pub use insn::Rung;
pub use jump::{NoJump, Way};
#[cfg(feature = "broken")]
pub use poke::BrokenPoke;
pub use probe::Protection;
pub use routine::Vectors;
#[cfg(feature = "broken")]
pub use text::xol::Broken;
pub use text::xol::{Scheme, Sync};
