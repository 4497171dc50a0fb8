//! Sites armed, all in one go.
//!
//! For:     `Session::attach`.
//! State:   the session that is being made.
//! Context: control. After `leave`: who attaches takes out what the dead have left, and all again if a step fails.
//! Keeps:   a process is as before, or has all of its probes; a site that cannot be armed is named.
//! Checked: testkit `counting`, `signals`; `torture attach`.
//!
//! - [`attach`] the attach: from the first look to the last patch
//! - [`numbers`] places in the arena, given out in order
//! - [`probes`] probes that come and go later
//! - [`gone`] what it takes to let one go
//! - [`lift`] jumps that are out for a while
//! - [`programs`] programs placed in each region

pub(crate) mod attach;
pub(crate) mod gone;
pub(crate) mod lift;
pub(crate) mod numbers;
pub(crate) mod probes;
pub(crate) mod programs;
