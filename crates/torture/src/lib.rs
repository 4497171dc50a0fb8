#![doc = include_str!("../README.md")]

mod attach;
mod dispatch;
mod mem;
mod rcu;
mod rng;

pub use attach::{attach_main, attach_target_main};
pub use dispatch::torture_main;
pub use mem::mem_main;
pub use rcu::rcu_main;
