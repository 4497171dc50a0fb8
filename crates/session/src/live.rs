//! A session while its probes stand.
//!
//! For:     whoever reads counts and events.
//! State:   the session.
//! Context: control, while hits write; stops nobody.
//! Keeps:   what the target writes leads nowhere.
//! Checked: testkit `counting`, `tracing`, `hostile`.
//!
//! - [`session`] what is armed, and what it has counted
//! - [`events`] reading the rings of events

pub(crate) mod events;
pub(crate) mod session;
