#![doc = include_str!("../README.md")]

pub mod actions;
mod engine;
mod error;
mod handler;
mod interpose;
mod module;
mod site;
mod space;
mod step;

pub use engine::{Config, Counts, Engine, Lookup, Probe};
pub use error::ProbeError;
#[cfg(feature = "broken")]
pub use text::xol::Broken;
pub use text::xol::{Scheme, Sync};
