#![doc = include_str!("../README.md")]

// First: its macros are everybody's here.
#[macro_use]
mod talk;

mod alloc;
mod breakpoint;
mod command;
mod htab_mem;
mod map_perf;
mod pin;
mod refscale;
mod rhltable;
mod seeds;
mod summary;
mod synchronize;
mod trigger;
mod urcu;
mod xol;

pub use alloc::alloc_main;
pub use breakpoint::breakpoint_main;
pub use command::bench_main;
pub use htab_mem::htab_mem_main;
pub use map_perf::map_perf_main;
pub use refscale::refscale_main;
pub use rhltable::rhltable_main;
pub use seeds::main as seeds_main;
pub use summary::Summary;
pub use synchronize::synchronize_main;
pub use trigger::{Price, price, scripts_main, trigger_main};
pub use xol::xol_main;
