#![doc = include_str!("../README.md")]

mod pin;
mod refscale;
mod summary;
mod synchronize;
mod urcu;

pub use refscale::refscale_main;
pub use summary::Summary;
pub use synchronize::synchronize_main;
