//! Watchpoints: who touches these bytes?
//!
//! For:     `nanoprobe watch`.
//! State:   none here.
//! Context: control.
//! Keeps:   nothing here.
//! Checked: testkit `watching`.
//!
//! - [`spec`] what to watch
//! - [`hard`] by debug registers
//! - [`registers`] who has which of them
//! - [`record`] each access to them, where the trap comes behind it
//! - [`ahead`] the same where it comes before
//! - [`soft`] by page protection
//! - [`sampled`] samples of time, events and accesses, with registers
//! - [`step`] what an instruction will touch
//! - [`callers`] who called
//! - [`touch`] one access
//! - [`places`] names for places in code
//! - [`error`] why nothing is watched

mod ahead;
mod callers;
mod error;
mod hard;
mod places;
mod record;
mod registers;
mod sampled;
mod soft;
mod spec;
mod step;
mod touch;

pub use ahead::Lapse;
pub use error::WatchError;
pub use hard::Hard;
pub use places::Places;
pub use sampled::{Sample, Sampler, What, Whom};
pub use soft::{Soft, SoftReceipt};
pub use spec::{Access, Watch, WatchSpec, resolve};
pub use touch::{At, Detail, Stack, Touch};

/// Whether pages can be watched too, and stacks be walked.
pub const HAS_PAGES: bool = crate::arch::IS_WHOLE;
