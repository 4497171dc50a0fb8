#![doc = include_str!("../README.md")]

// First: its macros are everybody's here.
#[cfg(target_arch = "x86_64")]
#[macro_use]
mod talk;

#[cfg(target_arch = "x86_64")]
mod alloc;
#[cfg(target_arch = "x86_64")]
mod breakpoint;
#[cfg(target_arch = "x86_64")]
mod command;
#[cfg(not(target_arch = "x86_64"))]
mod elsewhere;
#[cfg(target_arch = "x86_64")]
mod htab_mem;
#[cfg(target_arch = "x86_64")]
mod map_perf;
#[cfg(target_arch = "x86_64")]
mod pin;
mod price;
#[cfg(target_arch = "x86_64")]
mod refscale;
#[cfg(target_arch = "x86_64")]
mod rhltable;
#[cfg(target_arch = "x86_64")]
mod seeds;
#[cfg(target_arch = "x86_64")]
mod summary;
#[cfg(target_arch = "x86_64")]
mod synchronize;
#[cfg(target_arch = "x86_64")]
mod trigger;
#[cfg(target_arch = "x86_64")]
mod urcu;
#[cfg(target_arch = "x86_64")]
mod xol;

#[cfg(target_arch = "x86_64")]
pub use alloc::alloc_main;
#[cfg(target_arch = "x86_64")]
pub use breakpoint::breakpoint_main;
#[cfg(target_arch = "x86_64")]
pub use command::bench_main;
#[cfg(not(target_arch = "x86_64"))]
pub use elsewhere::{bench_main, price, price_of_program};
#[cfg(target_arch = "x86_64")]
pub use htab_mem::htab_mem_main;
#[cfg(target_arch = "x86_64")]
pub use map_perf::map_perf_main;
pub use price::Price;
#[cfg(target_arch = "x86_64")]
pub use refscale::refscale_main;
#[cfg(target_arch = "x86_64")]
pub use rhltable::rhltable_main;
#[cfg(target_arch = "x86_64")]
pub use seeds::main as seeds_main;
#[cfg(target_arch = "x86_64")]
pub use summary::Summary;
#[cfg(target_arch = "x86_64")]
pub use synchronize::synchronize_main;
#[cfg(target_arch = "x86_64")]
pub use trigger::{price, price_of_program, scripts_main, trigger_main};
#[cfg(target_arch = "x86_64")]
pub use xol::xol_main;
