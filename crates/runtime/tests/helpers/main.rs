//! Helpers of programs in an ordinary process.

mod functions;
mod ground;
mod maps;
mod prices;
mod reads;
mod wrong;
