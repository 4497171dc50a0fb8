//! Who is in our memory in a process.
//!
//! For:     unmapping it, and writing where such a thread will come out.
//! State:   none.
//! Context: control, in a stopped world.
//! Keeps:   O1 a thread whose program counter is in code of ours, or will be after a signal handler or a sleep, is named; so
//!             is one of which that cannot be told.
//! Checked: testkit `signals`, `traces`; `torture attach`.

use crate::enter::footing::Footing;
use crate::find::memory::Memory;
use crate::hold::stacks;
use crate::hold::world::{Sleeper, World};
use image::Mapping;

/// Whether a thread is in this memory of ours or another controller's, or will come back to it.
pub(crate) fn is_occupied(memory: &Memory, world: &World, footing: &Footing, mappings: &[Mapping]) -> bool {
    !occupants(memory, world, footing, mappings).is_empty()
}

/// The threads that are in our memory, or will come back to it.
pub(crate) fn occupants(memory: &Memory, world: &World, footing: &Footing, mappings: &[Mapping]) -> Vec<i32> {
    // A thread that was moved out has its new place in `regs` already.
    let mut tids: Vec<i32> = world.threads().filter(|t| footing.contains(t.pc())).map(|t| t.tid).collect();
    // Whether its rseq area refers to us cannot be told of one whose area we do not know.
    let is_unknown = |s: &Sleeper| footing.rseq_offset.is_some() && s.fs_base.is_none();
    let is_inside = |s: &&Sleeper| is_unknown(s) || s.pcs().any(|pc| footing.contains(pc));
    tids.extend(world.sleepers().filter(is_inside).map(|s| s.tid));
    if let Some(bounds) = footing.bounds() {
        let found = stacks::find(memory, world, mappings, bounds, |w| footing.contains(w));
        tids.extend(found.into_iter().map(|back| back.tid));
    }
    tids.sort_unstable();
    tids.dedup();
    tids
}
