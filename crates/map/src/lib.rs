#![doc = include_str!("../README.md")]
#![cfg_attr(not(any(feature = "std", test)), no_std)]

mod array;
mod credit;
mod error;
mod hash;
mod histogram;
mod percpu_array;
mod place;
mod ring;
mod stacks;

pub use array::Array;
pub use error::Error;
#[cfg(feature = "std")]
pub use hash::HashBuilder;
pub use hash::{Flag, Hash};
pub use histogram::{Buckets, Histogram};
pub use percpu_array::PercpuArray;
pub use ring::{Next, Reader, Reservation, Ring};
pub use stacks::Stacks;
