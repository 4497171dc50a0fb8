#![doc = include_str!("../README.md")]

mod accounts;
mod broken;
mod checker;
mod engine;
mod error;
mod machine;
mod rwsem;
mod scenarios;
mod watchpoint;

pub use accounts::{Accounts, Reservation};
#[cfg(feature = "broken")]
pub use broken::Broken;
pub use checker::Checker;
pub use engine::EngineKind;
pub use error::Refused;
pub use machine::{ALL_CPUS, Kind, Machine, Place, Pools, Request};
pub use scenarios::{SCENARIOS, Scenario, Verdict};
pub use watchpoint::{Access, Watchpoint};
