#![doc = include_str!("../README.md")]

mod anywhere;
#[cfg(target_arch = "x86_64")]
mod attach;
#[cfg(target_arch = "x86_64")]
mod bpf;
#[cfg(target_arch = "x86_64")]
mod dispatch;
mod duration;
#[cfg(not(target_arch = "x86_64"))]
mod elsewhere;
#[cfg(target_arch = "x86_64")]
mod hwbp;
#[cfg(target_arch = "x86_64")]
mod live;
#[cfg(target_arch = "x86_64")]
mod mem;
#[cfg(target_arch = "x86_64")]
mod rcu;
#[cfg(target_arch = "x86_64")]
mod rhltable;
mod rng;
#[cfg(target_arch = "x86_64")]
mod script;
#[cfg(target_arch = "x86_64")]
mod target;
#[cfg(target_arch = "x86_64")]
mod uprobe;
#[cfg(target_arch = "x86_64")]
mod xol;

pub use anywhere::anywhere_main;
#[cfg(target_arch = "x86_64")]
pub use attach::attach_main;
#[cfg(target_arch = "x86_64")]
pub use bpf::bpf_main;
#[cfg(target_arch = "x86_64")]
pub use dispatch::{target_main, torture_main};
pub use duration::duration;
#[cfg(not(target_arch = "x86_64"))]
pub use elsewhere::{target_main, torture_main};
#[cfg(target_arch = "x86_64")]
pub use hwbp::hwbp_main;
#[cfg(target_arch = "x86_64")]
pub use live::live_main;
#[cfg(target_arch = "x86_64")]
pub use mem::mem_main;
#[cfg(target_arch = "x86_64")]
pub use rcu::rcu_main;
#[cfg(target_arch = "x86_64")]
pub use rhltable::rhltable_main;
#[cfg(target_arch = "x86_64")]
pub use script::lang_main;
#[cfg(target_arch = "x86_64")]
pub use uprobe::uprobe_main;
#[cfg(target_arch = "x86_64")]
pub use xol::xol_main;
