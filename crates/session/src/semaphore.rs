//! The counts of tracers by which programs skip their USDT marks.
//!
//! For:     `U:`.
//! State:   in the target: a 16-bit number of the program's own, by convention changed by tracers only.
//! Context: control, in a stopped world: nobody else changes it meanwhile.
//! Keeps:   U1 every probe that is in has raised its mark's count by one, and lowers it when it leaves, also when it is
//!             taken out after its controller's death (its trampoline's header has the address) or in a forked child.
//! Checked: testkit `marks`.

use crate::error::Broken;
use crate::memory::Memory;

/// One more tracer. A count that is full stays full.
pub(crate) fn raise(memory: &Memory, at: u64) -> Result<(), Broken> {
    change(memory, at, |count| count.saturating_add(1))
}

/// One tracer less. A count that the program has cleared stays 0.
pub(crate) fn lower(memory: &Memory, at: u64) -> Result<(), Broken> {
    change(memory, at, |count| count.saturating_sub(1))
}

fn change(memory: &Memory, at: u64, by: impl Fn(u16) -> u16) -> Result<(), Broken> {
    let mut count = [0; 2];
    memory.read(at, &mut count)?;
    memory.write(at, &by(u16::from_le_bytes(count)).to_le_bytes())
}
