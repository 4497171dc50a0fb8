#![doc = include_str!("../README.md")]
#![cfg_attr(not(any(feature = "std", test)), no_std)]

mod steps;

mod arch;
#[cfg(feature = "std")]
mod counter;
mod cpu;
pub mod emit;
mod fence;
mod list;
mod rseq;
pub mod table;

#[cfg(feature = "std")]
pub use counter::Counter;
pub use cpu::current as current_cpu;
#[cfg(feature = "std")]
pub use cpu::possible as possible_cpus;
pub use cpu::{by_segment as cpu_by_segment, node_by_segment};
pub use fence::{IS_TSO, exchange_own, full as full_fence, inc_own};
pub use list::{List, list_pop, list_pop_all, list_push, list_push_all};
pub use rseq::{RseqOffset, SIGNATURE, SIGNATURE_A64, add_if, own_cpu, store_if, try_add, try_inc};
