#![doc = include_str!("../README.md")]
#![cfg_attr(not(any(feature = "std", test)), no_std)]
// Models have ring and hash alone.
#![cfg_attr(loom, allow(dead_code, unused_imports, missing_docs))]

#[cfg(not(loom))]
mod array;
mod credit;
mod error;
mod hash;
#[cfg(not(loom))]
mod histogram;
#[cfg(not(loom))]
mod percpu_array;
mod place;
mod prim;
mod ring;
mod stacks;

#[cfg(not(loom))]
pub use array::Array;
pub use error::Error;
#[cfg(all(feature = "std", not(loom)))]
pub use hash::HashBuilder;
pub use hash::{Flag, Hash};
#[cfg(not(loom))]
pub use histogram::{Buckets, Histogram};
#[cfg(not(loom))]
pub use percpu_array::PercpuArray;
#[cfg(not(loom))]
pub use place::Checked;
pub use ring::{Next, Reader, Reservation, Ring};
#[cfg(not(loom))]
pub use stacks::Stacks;
#[cfg(loom)]
pub use {
    hash::lay_out,
    place::{Memory, close_write, open_write, versioned},
    ring::lay_out_ring,
};
