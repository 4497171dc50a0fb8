#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

#[cfg(feature = "std")]
extern crate std;

#[cfg(feature = "std")]
mod area;
#[cfg(feature = "std")]
mod make;
mod rule;
mod tables;
mod walk;

#[cfg(feature = "std")]
pub use area::{Area, Loaded};
#[cfg(feature = "std")]
pub use make::{Table, make};
pub use rule::{KEPT_IN_PT_REGS, Reg};
pub use tables::{HEAD_WORDS, Tables, Way};
pub use walk::{FRAMES_MAX, Registers, Stack, Stop, walk};
