#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod deadline;
mod error;
mod lines;
mod nanoprobe;
mod outcome;
mod program;
mod rounds;
mod running;
mod snapshot;
mod target;

pub use deadline::wait_until;
pub use error::{Error, Result};
pub use nanoprobe::{Attached, Engine, Nanoprobe, Tracing, kill_guard_of};
pub use outcome::{Outcome, Receipt};
pub use program::{Link, Program};
pub use rounds::rounds;
pub use running::{Running, number};
pub use snapshot::{Difference, Snapshot};
pub use target::Target;
