#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod calls;
mod error;
pub mod flame;
mod moment;
pub mod page;
mod read;
mod run;
mod to;

pub use error::Unreadable;
pub use moment::moment;
pub use run::{About, Bucket, Call, Column, Frame, Function, Placed, Run, Stack};
pub use to::{Lacks, To};

use std::collections::BTreeMap;

/// Names from the outermost to the probed function, and how often.
pub type Folded = BTreeMap<Vec<String>, u64>;
