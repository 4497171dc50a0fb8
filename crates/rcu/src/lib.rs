#![doc = include_str!("../README.md")]
#![cfg_attr(not(any(feature = "std", test)), no_std)]
// Models leave the sequences out.
#![cfg_attr(loom, allow(dead_code, unused_imports))]
#[cfg(any(feature = "std", test))]
extern crate std;

mod block;
mod cblist;
mod error;
mod fence;
mod flavour;
mod gp;
mod prim;
mod reader;
mod seat;
mod seq;
#[cfg(feature = "std")]
mod task_word;

#[cfg(all(feature = "std", not(loom)))]
mod builder;
#[cfg(all(feature = "std", not(loom)))]
mod call;
#[cfg(all(feature = "std", not(loom)))]
mod domain;
#[cfg(all(feature = "std", not(loom)))]
mod fork;
#[cfg(all(feature = "std", not(loom)))]
mod guard;
#[cfg(all(feature = "std", not(loom)))]
mod lock;
#[cfg(all(feature = "std", not(loom)))]
mod report;
#[cfg(all(feature = "std", not(loom)))]
pub mod signal;
#[cfg(all(feature = "std", not(loom)))]
mod stats;
#[cfg(all(feature = "std", not(loom)))]
pub mod tasks;
#[cfg(all(feature = "std", not(loom)))]
mod thread;
#[cfg(all(feature = "std", not(loom)))]
mod updater;
#[cfg(all(feature = "std", not(loom)))]
mod worker;

pub use block::{Block, BlockOptions, GpState, Header, MAGIC, PerCpu, Rank, RankCounts};
pub use cblist::{CbList, Func, Head, Queue};
pub use error::{Misuse, Rule};
pub use fence::{Fences, heavy as heavy_fence, register as register_fences};
pub use flavour::{Fast, Flavour, FlavourSet, Lite, Normal, Reader, Sigsafe, Tasks, UpDown};
pub use gp::{Broken, Env, Ranks, Waiting};
pub use reader::FastCookie;
pub use seq::{Cookie, FIRST as FIRST_GP, Phase};

#[cfg(loom)]
pub use {
    prim::without_light_fences,
    seat::{SEATS, Seats},
    task_word::{TaskWord, wait_for_all},
};

#[cfg(all(feature = "std", not(loom)))]
pub use builder::{BuildError, Builder};
#[cfg(all(feature = "std", not(loom)))]
pub use domain::{CloseError, Domain, InUse};
#[cfg(all(feature = "std", not(loom)))]
pub use guard::{Down, ReadGuard};
#[cfg(all(feature = "std", not(loom)))]
pub use report::{Report, Stall, StalledReader, set_reporter};
#[cfg(all(feature = "std", not(loom)))]
pub use stats::Stats;
