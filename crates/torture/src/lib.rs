#![doc = include_str!("../README.md")]

mod anywhere;
mod attach;
mod bpf;
mod dispatch;
mod duration;
mod hwbp;
mod live;
mod mem;
mod rcu;
mod rhltable;
mod rng;
mod script;
mod target;
mod uprobe;
mod xol;

pub use anywhere::anywhere_main;
pub use attach::attach_main;
pub use bpf::bpf_main;
pub use dispatch::{target_main, torture_main};
pub use duration::duration;
pub use hwbp::hwbp_main;
pub use live::live_main;
pub use mem::mem_main;
pub use rcu::rcu_main;
pub use rhltable::rhltable_main;
pub use script::lang_main;
pub use uprobe::uprobe_main;
pub use xol::xol_main;
