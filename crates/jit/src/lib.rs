#![doc = include_str!("../README.md")]

mod arch;
mod away;
mod broken;
mod compile;
mod flow;
mod gate;
mod load;
mod options;
mod place;
mod reach;
mod refusal;
mod run;
mod translate;

pub use away::Away;
#[cfg(feature = "broken")]
pub use broken::Broken;
pub use compile::{Compiled, Compiler, FaultPlace, INSNS_MAX, Relocation};
pub use gate::{Found, Passed, Unfit};
pub use load::{Loaded, NotLoaded};
pub use options::{Effort, Level, Meaning, Options, Stack};
pub use place::Unplaced;
pub use reach::Context;
pub use refusal::{Refusal, Refused};
pub use run::{Run, STACK_LEN, faulted};
pub use wire::{BOUNDS_MAX, Bounds};
