//! All that it takes to leave one process.
//!
//! For:     whoever leaves one, and whoever looks what is left.
//! State:   what was written there, and where.
//! Context: control.
//! Keeps:   nothing; detach.rs does it.
//! Checked: testkit `traces`, `endings`.

use crate::enter::footing::Footing;
use crate::facts::site::Link;
use crate::find::memory::Memory;
use crate::hold::foothold::Foothold;
use image::Mapping;
use std::time::Duration;

/// How long we wait for another tracer to go before we say that we could not leave.
pub(crate) const TRACER_PATIENCE: Duration = Duration::from_secs(10);

/// All that it takes to leave one process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving<'a> {
    pub memory: &'a Memory,
    /// Its mappings when the sites were armed; empty if they are not known.
    pub before: &'a [Mapping],
    pub links: &'a [Link<'a>],
    pub footing: &'a Footing,
    pub foothold: &'a Foothold,
}
