//! The vector registers of the code that was hit.
//!
//! For:     programs that read floating-point arguments and results.
//! State:   none: the registers are as that code left them.
//! Context: hit.
//! Keeps:   X1 they are read here and written nowhere in the agent, and the compiler of programs has no use for them.
//! Checked: session `the_agent_writes_no_vector_register_and_has_no_string_instruction`; testkit `scripts`, with doubles.

use core::arch::asm;
use core::mem::MaybeUninit;

/// How many there are.
const REGISTERS: usize = 16;

/// Eight bytes of a register, from byte `first` on, zeros behind its sixteenth; 0 of one that there is not.
pub fn bytes(number: u64, first: u64) -> u64 {
    let mut all = MaybeUninit::<[u128; REGISTERS]>::uninit();
    // SAFETY: needs 256 bytes that may be written: `all`; nothing else has it; it lives on this frame.
    unsafe {
        asm!(
            "movups [{to}], xmm0",
            "movups [{to} + 16], xmm1",
            "movups [{to} + 32], xmm2",
            "movups [{to} + 48], xmm3",
            "movups [{to} + 64], xmm4",
            "movups [{to} + 80], xmm5",
            "movups [{to} + 96], xmm6",
            "movups [{to} + 112], xmm7",
            "movups [{to} + 128], xmm8",
            "movups [{to} + 144], xmm9",
            "movups [{to} + 160], xmm10",
            "movups [{to} + 176], xmm11",
            "movups [{to} + 192], xmm12",
            "movups [{to} + 208], xmm13",
            "movups [{to} + 224], xmm14",
            "movups [{to} + 240], xmm15",
            to = in(reg) all.as_mut_ptr(),
            options(nostack, preserves_flags),
        );
    }
    // SAFETY: all of it was just written; any bytes are a number; nobody changes it.
    let all = unsafe { all.assume_init_ref() };
    let register = usize::try_from(number).ok().and_then(|number| all.get(number)).copied();
    match first {
        0..16 => register.map_or(0, |register| (register >> (8 * first)) as u64),
        _ => 0,
    }
}
