//! A session while its probes stand.

pub(crate) mod events;
pub(crate) mod session;
