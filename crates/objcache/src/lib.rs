#![doc = include_str!("../README.md")]
#![cfg_attr(not(any(feature = "std", test)), no_std)]
// Models have stacks and the life cycle alone.
#![cfg_attr(loom, allow(dead_code, unused_imports, missing_docs))]

#[cfg(not(loom))]
mod cell;
mod items;
mod link;
mod prim;
mod sizes;
mod stack;
mod tray;
#[cfg(not(loom))]
mod view;
#[cfg(loom)]
mod view_model;

#[cfg(all(feature = "std", not(loom)))]
mod arena;
#[cfg(all(feature = "std", not(loom)))]
mod cache;
#[cfg(all(feature = "std", not(loom)))]
mod chunk;
#[cfg(all(feature = "std", not(loom)))]
mod cpumask;
#[cfg(all(feature = "std", not(loom)))]
mod destroy;
#[cfg(all(feature = "std", not(loom)))]
mod error;
#[cfg(feature = "std")]
mod grace;
#[cfg(feature = "std")]
mod life;
#[cfg(all(feature = "std", not(loom)))]
mod sized;
#[cfg(all(feature = "std", not(loom)))]
mod tend;
#[cfg(all(feature = "std", not(loom)))]
mod worker;

pub use link::Index;
pub use sizes::{CLASSES, MAX_UNIT, Watermarks, class_of};
#[cfg(not(loom))]
pub use view::View;
#[cfg(loom)]
pub use {
    items::{Items, Room},
    life::Life,
    link::Link,
    stack::{Batch, Stack},
    tray::{TRAY, Tray},
    view_model::View,
};

#[cfg(all(feature = "std", not(loom)))]
pub use arena::{Arena, HEAD_BYTES, ROOTS};
#[cfg(all(feature = "std", not(loom)))]
pub use cache::{Builder, ObjectCache};
#[cfg(all(feature = "std", not(loom)))]
pub use chunk::CHUNK;
#[cfg(all(feature = "std", not(loom)))]
pub use cpumask::{CpuMask, CpuMaskRef, CpuMasks};
#[cfg(all(feature = "std", not(loom)))]
pub use destroy::{Leak, Ticket};
#[cfg(all(feature = "std", not(loom)))]
pub use error::Error;
#[cfg(feature = "std")]
pub use grace::Grace;
#[cfg(all(feature = "std", not(loom)))]
pub use grace::domain;
#[cfg(all(feature = "std", not(loom)))]
pub use sized::SizedCaches;
#[cfg(all(feature = "std", not(loom)))]
pub use tend::{Broken, Census, Stats};
