#![doc = include_str!("../README.md")]
#![cfg_attr(not(any(feature = "std", test)), no_std)]

mod cell;
mod link;
mod sizes;
mod stack;
mod tray;
mod view;

#[cfg(feature = "std")]
mod arena;
#[cfg(feature = "std")]
mod cache;
#[cfg(feature = "std")]
mod chunk;
#[cfg(feature = "std")]
mod cpumask;
#[cfg(feature = "std")]
mod destroy;
#[cfg(feature = "std")]
mod error;
#[cfg(feature = "std")]
mod grace;
#[cfg(feature = "std")]
mod sized;
#[cfg(feature = "std")]
mod tend;
#[cfg(feature = "std")]
mod worker;

pub use link::Index;
pub use sizes::{CLASSES, MAX_UNIT, Watermarks, class_of};
pub use view::View;

#[cfg(feature = "std")]
pub use arena::{Arena, HEAD_BYTES, ROOTS};
#[cfg(feature = "std")]
pub use cache::{Builder, ObjectCache};
#[cfg(feature = "std")]
pub use chunk::CHUNK;
#[cfg(feature = "std")]
pub use cpumask::{CpuMask, CpuMaskRef, CpuMasks};
#[cfg(feature = "std")]
pub use destroy::{Leak, Ticket};
#[cfg(feature = "std")]
pub use error::Error;
#[cfg(feature = "std")]
pub use grace::{Grace, domain};
#[cfg(feature = "std")]
pub use sized::SizedCaches;
#[cfg(feature = "std")]
pub use tend::{Broken, Census, Stats};
