//! Leaving a process as it was: our own, its children, and what others have died in.
//!
//! For:     the end of a session, `recover`, and an attach that fails.
//! State:   none; what there is to leave is found in the process.
//! Context: control.
//! Keeps:   a receipt claims what was seen, and names what stays.
//! Checked: testkit `endings`, `traces`, `two`; `torture attach`.
//!
//! - [`end`] the end of a session
//! - [`leaving`] all that it takes to leave one process
//! - [`detach`] leaving one process
//! - [`heirs`] forked children
//! - [`verify`] reading back
//! - [`receipt`] what is said of it
//! - [`recover`] probes whose controller was killed
//! - [`unwatch`] pages whose watch was killed

pub(crate) mod detach;
pub(crate) mod end;
pub(crate) mod heirs;
pub(crate) mod leaving;
pub(crate) mod receipt;
pub(crate) mod recover;
pub(crate) mod unwatch;
pub(crate) mod verify;
