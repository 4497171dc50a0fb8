#![doc = include_str!("../README.md")]

mod rcu;
mod rng;

pub use rcu::rcu_main;
