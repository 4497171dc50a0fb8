#![doc = include_str!("../README.md")]

mod attach;
mod dispatch;

pub use attach::{attach_main, attach_target_main};
pub use dispatch::torture_main;
