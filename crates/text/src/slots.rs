//! Which slot is whose: numbers only, no code and no instruction set.
//!
//! For:     areas of slots for out-of-line execution.
//! State:   [`Free`]: a bit a slot; [`Bound`]: a record a slot.
//! Context: hit, in a trap handler with all signals blocked; may sleep when all slots are taken.
//! Keeps:   S1 a slot has one owner (dynamic), or one probe and a count of users (cached); it is given away with no
//!          user alone.
//!          S2 who finds all slots taken sleeps, and is woken by a slot that is given back: no wake-up is lost.
//! Checked: unit tests of both; tests/model; tests/aarch64_hits.rs with more threads than slots.

mod bound;
mod free;

pub use bound::{Binding, Bound, Taken};
pub use free::Free;
