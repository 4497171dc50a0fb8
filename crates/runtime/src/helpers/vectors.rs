//! The vector registers of the code that was hit.
//!
//! For:     programs that read floating-point arguments and results.
//! State:   none: the registers are as that code left them.
//! Context: hit.
//! Keeps:   X1 they are read here and written nowhere in the agent, and the compiler of programs has no use for them.
//! Checked: session `the_agent_writes_no_vector_register_and_has_no_string_instruction`; testkit `scripts`, with doubles.

use crate::arch::{VECTORS, store_vectors};
use core::mem::MaybeUninit;

/// Eight bytes of a register, from byte `first` on, zeros behind its sixteenth; 0 of one that there is not.
pub fn bytes(number: u64, first: u64) -> u64 {
    let mut all = MaybeUninit::<[u128; VECTORS]>::uninit();
    // SAFETY: room for all.
    unsafe { store_vectors(all.as_mut_ptr()) };
    // SAFETY: all of it was just written; any bytes are a number; nobody changes it.
    let all = unsafe { all.assume_init_ref() };
    let register = usize::try_from(number).ok().and_then(|number| all.get(number)).copied();
    match first {
        0..16 => register.map_or(0, |register| (register >> (8 * first)) as u64),
        _ => 0,
    }
}
