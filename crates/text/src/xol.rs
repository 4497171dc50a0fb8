//! Out-of-line execution: a displaced instruction runs in a slot.
//!
//! For:     int3 sites in process, and the cache-flush experiment.
//! State:   an [`Area`]: pages of 32 slots of 128 bytes. The first slot of each page is the release routine's.
//! Context: [`Area::enter`], [`Area::settle`]: hit, signal. Making an area: target.
//! Keeps:   X1 no mapping is writable and executable: a memfd has two views. The executable one is not readable
//!          where the processor can tell.
//!          X2 a slot that a thread is in is not written: a slot is taken when its bitmap bit or its count of users
//!          goes from zero, and given back by the release routine, or by `settle`.
//!          X3 who finds all slots taken sleeps, and is woken by a slot that is given back.
//!          X4 slot bytes are written, then synchronised as chosen, then executed.
//! Checked: `xol/tests.rs` (X1 to X4, broken variants among them), `torture xol`.
//! Source:  kernel `xol_area` (v7.0) for the dynamic scheme. Departs: slots lie near the code; no step trap: the
//!          content of a slot ends in a jump to the release routine. The cached scheme is utrace's.

mod area;
mod claim;
mod journal;
mod release;
mod room;
mod settle;
#[cfg(test)]
mod tests;

#[cfg(feature = "broken")]
pub use area::Broken;
pub use area::{Area, AreaError, Binding, Options, Scheme, Sync};
pub use journal::Event;
#[cfg(any(test, feature = "broken"))]
pub use journal::Journal;
pub use settle::Settled;

/// Bytes of a slot.
pub const SLOT_BYTES: usize = 128;
/// Slots of a page, the first of which is the release routine's.
pub const PAGE_SLOTS: usize = 32;
