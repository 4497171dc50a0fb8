//! Watchpoints: who touches these bytes?
//!
//! For:     `nanoprobe watch`.
//! State:   none here.
//! Context: control.
//! Keeps:   nothing here.
//! Checked: testkit `watching`.

mod error;
mod hard;
mod soft;
mod spec;
mod step;

pub use error::WatchError;
pub use hard::Hard;
pub use soft::{Soft, SoftReceipt};
pub use spec::{Access, Watch, WatchSpec, resolve};
pub use step::Touch;
