//! Helpers of programs in an ordinary process.

mod ground;
mod maps;
mod reads;
mod wrong;
