#![doc = include_str!("../README.md")]
#![cfg_attr(not(any(feature = "std", test)), no_std)]
// Models have ring, queue, frames and hash alone.
#![cfg_attr(loom, allow(dead_code, unused_imports, missing_docs))]

#[cfg(not(loom))]
mod aggregate;
#[cfg(not(loom))]
mod array;
#[cfg(all(feature = "std", not(loom)))]
mod clock;
#[cfg(not(loom))]
mod copies;
mod credit;
mod error;
mod frames;
mod hash;
#[cfg(not(loom))]
mod histogram;
#[cfg(all(feature = "std", not(loom)))]
mod maps;
#[cfg(not(loom))]
mod percpu_array;
mod place;
mod prim;
mod queue;
mod ring;
mod stacks;
#[cfg(not(loom))]
mod table;
#[cfg(not(loom))]
mod way;

#[cfg(not(loom))]
pub use aggregate::{Agg, SeriesKind, average, hist_bucket, hist_low};
#[cfg(not(loom))]
pub use array::Array;
#[cfg(all(feature = "std", not(loom)))]
pub use clock::{AHEAD, Piece, Reading, Timekeeper, is_clock_by_counter};
#[cfg(not(loom))]
pub use copies::{Cell, Copies};
pub use error::Error;
pub use frames::{Call, Frames, Opened};
#[cfg(all(feature = "std", not(loom)))]
pub use hash::HashBuilder;
pub use hash::{Entries, Flag, Hash, Shape};
#[cfg(not(loom))]
pub use histogram::{Buckets, Histogram};
#[cfg(all(feature = "std", not(loom)))]
pub use maps::{Ground, Maps, Plan, Record};
#[cfg(not(loom))]
pub use percpu_array::PercpuArray;
#[cfg(not(loom))]
pub use place::Checked;
pub use queue::{Order, Queue};
pub use ring::{Cursor, Next, Reader, Reservation, Ring};
#[cfg(not(loom))]
pub use stacks::{Mixed, StackTable, Stacks};
#[cfg(not(loom))]
pub use table::{Form, Glance, Kind, Near, Slot, Spec, Table, add_to_copies, set_key_asleep};
#[cfg(not(loom))]
pub use way::{Locked, Outside, Restartable, Way};
#[cfg(loom)]
pub use {
    hash::{lay_out, lay_out_sleepy, lay_out_staying},
    place::{Memory, close_write, open_write, versioned},
    queue::lay_out_queue,
    ring::lay_out_ring,
};
