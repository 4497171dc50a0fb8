//! Bytes from one place to another, without a call of memcpy: a string instruction depends on a flag that a hit does not set.
//!
//! For:     helpers.
//! State:   none.
//! Context: hit. What is read or written may be changed by others meanwhile.
//! Keeps:   Y1 no string instruction, no vector register.
//! Checked: session `the_agent_uses_no_vector_register_and_no_string_instruction`; tests/helpers.

use core::arch::asm;

/// Copies bytes; the two pieces may overlap.
///
/// # Safety
/// Both must be mapped for so many bytes, `to` writable.
#[inline(always)]
pub unsafe fn copy(to: u64, from: u64, len: u64) {
    let (whole, rest) = (len / 8, len % 8);
    if to.wrapping_sub(from) >= len {
        // SAFETY: the caller's duty; what is written was read before.
        (0..whole).for_each(|n| unsafe { word(to + 8 * n, from + 8 * n) });
        // SAFETY: as above.
        (0..rest).for_each(|n| unsafe { byte(to + 8 * whole + n, from + 8 * whole + n) });
        return;
    }
    // SAFETY: the caller's duty; from the end on what is written was read before.
    (0..rest).rev().for_each(|n| unsafe { byte(to + 8 * whole + n, from + 8 * whole + n) });
    // SAFETY: as above.
    (0..whole).rev().for_each(|n| unsafe { word(to + 8 * n, from + 8 * n) });
}

/// Makes bytes zero.
#[inline(always)]
pub fn zero(bytes: &mut [u8]) {
    for byte in bytes {
        // SAFETY: borrowed mutably. Volatile: no call of memset is to be made of it.
        unsafe { core::ptr::from_mut(byte).write_volatile(0) };
    }
}

/// # Safety
/// As for [`copy`], of eight bytes.
#[inline(always)]
unsafe fn word(to: u64, from: u64) {
    // SAFETY: the caller's duty; touches what is named alone.
    unsafe {
        asm!("mov {t}, [{from}]", "mov [{to}], {t}", t = out(reg) _, from = in(reg) from, to = in(reg) to,
            options(nostack, preserves_flags));
    }
}

/// # Safety
/// As for [`copy`], of one byte.
#[inline(always)]
unsafe fn byte(to: u64, from: u64) {
    // SAFETY: the caller's duty; touches what is named alone.
    unsafe {
        asm!("mov {t}, [{from}]", "mov [{to}], {t}", t = out(reg_byte) _, from = in(reg) from, to = in(reg) to,
            options(nostack, preserves_flags));
    }
}
