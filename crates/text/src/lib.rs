#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub mod arch;
mod assemble;
mod gate;
pub mod ground;
mod landing;
mod live;
mod patch;
pub mod slots;
mod trampoline;
// Slots are memory that this process executes: the one part that needs unsafe code.
#[allow(unsafe_code)]
pub mod xol;

pub use gate::{Gate, GatePlace, GateRequest};
pub use landing::Landing;
pub use live::OwnText;
pub use patch::{JUMP_LEN, NO_JUMP, Patch, island_jump, jump, jump_target};
pub use trampoline::{
    Body, Flavour, GUARDS_MAX, Guard, Guarded, PcPlace, RED_ZONE, Request, Rollback, SLOW_LEN, SavedReg,
    Threads, Trampoline, Ways, above_frame, slow_routines,
};
