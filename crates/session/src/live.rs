//! A session while its probes stand.
//!
//! For:     whoever reads counts and events.
//! State:   the session.
//! Context: control, while hits write; stops nobody.
//! Keeps:   what the target writes leads nowhere; what a hit may read is not changed, nor used for something else.
//! Checked: testkit `counting`, `tracing`, `hostile`; torture `tests/live.rs`.
//!
//! - [`session`] what is armed, and what it has counted
//! - [`site`] one of its sites, and its counts
//! - [`events`] reading the rings of events
//! - [`change`] consumers that come and go while hits run
//! - [`lists`] the book of consumers, and how it stands in the arena
//! - [`readers`] the wait for hits that are inside
//! - [`runs`] counting consumers in a row
//! - [`stacks`] the stacks that were counted
//! - [`slots`] places that are given out and taken back
//! - [`switch`] probes that are off for a while

pub(crate) mod change;
pub(crate) mod events;
pub(crate) mod lists;
pub(crate) mod readers;
pub(crate) mod runs;
pub(crate) mod session;
pub(crate) mod site;
pub(crate) mod slots;
pub(crate) mod stacks;
mod switch;
