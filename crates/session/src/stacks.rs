//! Addresses that threads will come back to, out of signal handlers.
//!
//! For:     not changing code under a thread that is away in a handler, and not unmapping it.
//! State:   none.
//! Context: control, in a stopped world.
//! Keeps:   K1 an address saved in a signal frame within `DEPTH` bytes above a thread's stack pointer, on the
//!             same mapping, is found. (A word that only looks like one is found too: then we wait.)
//! Checked: testkit `signals`.
//!
//! Not seen: a context that a handler moved elsewhere, as schedulers that preempt by signal may do.

use crate::world::World;
use image::Mapping;
use std::ops::Range;

/// How far above the stack pointer we look.
const DEPTH: u64 = 256 << 10;

/// Finds stack words for which `wanted` is true, at most one a thread: (thread, word).
pub(crate) fn find(
    world: &World,
    mappings: &[Mapping],
    bounds: Range<u64>,
    wanted: impl Fn(u64) -> bool,
) -> Vec<(i32, u64)> {
    let mut found = Vec::new();
    let mut buffer = vec![0u8; DEPTH as usize];
    for thread in world.threads() {
        let from = thread.regs.rsp & !7;
        let Some(mapping) = mappings.iter().find(|m| m.range.start.0 <= from && from < m.range.end.0) else {
            continue;
        };
        let len = (mapping.range.end.0 - from).min(DEPTH) as usize;
        let got = sys::remote::read_process(world.pid, from, &mut buffer[..len]).unwrap_or(0);
        let words = buffer[..got].chunks_exact(8);
        let mut words = words.map(|w| u64::from_le_bytes(w.try_into().unwrap_or_default()));
        if let Some(word) = words.find(|w| bounds.contains(w) && wanted(*w)) {
            found.push((thread.tid, word));
        }
    }
    found
}
