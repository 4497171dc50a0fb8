//! Bytes from one place to another, and texts, in words of eight bytes, without a call of memcpy: a string instruction depends on
//! a flag that a hit does not set.
//!
//! For:     helpers.
//! State:   none.
//! Context: hit. What is read or written may be changed by others meanwhile.
//! Keeps:   Y1 no string instruction, no vector register.
//!          Y2 a text's end is its first NUL, or its length: bytes behind that are not looked at to tell.
//! Checked: session `the_agent_writes_no_vector_register_and_has_no_string_instruction`; tests/helpers; tests below (Y2).

use crate::arch::{byte, put, word};
use core::cmp::Ordering;

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
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for word in words {
        // SAFETY: borrowed mutably.
        unsafe { put(word.as_mut_ptr() as u64, 0) };
    }
    for byte in rest {
        // SAFETY: borrowed mutably. Volatile: no call of memset is to be made of it.
        unsafe { core::ptr::from_mut(byte).write_volatile(0) };
    }
}

/// Copies a text up to its NUL, with zeros up to the end of the NUL's word, or so many bytes of it; true if there was a NUL.
///
/// # Safety
/// Both must be mapped for so many bytes, `to` writable.
#[inline(always)]
pub unsafe fn copy_text(to: u64, from: u64, len: u64) -> bool {
    let whole = len / 8;
    for n in 0..whole {
        // SAFETY: the caller's duty.
        let word = unsafe { ((from + 8 * n) as *const u64).read_unaligned() };
        let nuls = nuls(word);
        // What lies before the lowest NUL.
        let text = if nuls == 0 { u64::MAX } else { (1 << (nuls.trailing_zeros() & !7)) - 1 };
        // SAFETY: the caller's duty.
        unsafe { put(to + 8 * n, word & text) };
        if nuls != 0 {
            return true;
        }
    }
    for at in 8 * whole..len {
        // SAFETY: the caller's duty.
        unsafe { byte(to + at, from + at) };
        // SAFETY: the caller's duty.
        if unsafe { ((to + at) as *const u8).read() } == 0 {
            return true;
        }
    }
    false
}

/// Bytes before the first NUL.
#[inline(always)]
pub fn text_len(text: &[u8]) -> usize {
    let (words, rest) = text.as_chunks::<8>();
    for (n, word) in words.iter().enumerate() {
        let nuls = nuls(u64::from_le_bytes(*word));
        if nuls != 0 {
            return 8 * n + first(nuls);
        }
    }
    8 * words.len() + rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len())
}

/// Two texts in the order of their bytes.
#[inline(always)]
pub fn compare_texts(a: &[u8], b: &[u8]) -> Ordering {
    let mut at = 0;
    while let (Some(left), Some(right)) = (word_at(a, at), word_at(b, at)) {
        let tells = nuls(left) | left ^ right;
        if tells != 0 {
            // The first byte that differs, or the NUL of both.
            let of = |word: u64| (word >> (8 * first(tells))) as u8;
            return of(left).cmp(&of(right));
        }
        at += 8;
    }
    loop {
        // An end is a NUL.
        let of = |text: &[u8]| text.get(at).copied().unwrap_or(0);
        let (left, right) = (of(a), of(b));
        if left != right || left == 0 {
            return left.cmp(&right);
        }
        at += 1;
    }
}

#[inline(always)]
fn word_at(text: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*text.get(at..)?.first_chunk::<8>()?))
}

/// The upper bit of each byte that is NUL; above the first one those of others may stand too.
#[inline(always)]
fn nuls(word: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    word.wrapping_sub(EACH) & !word & EACH << 7
}

/// The lowest byte with a bit of these.
#[inline(always)]
fn first(bits: u64) -> usize {
    bits.trailing_zeros() as usize / 8
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::vec::Vec;

    fn until_nul(text: &[u8]) -> &[u8] {
        text.split(|byte| *byte == 0).next().unwrap()
    }

    /// Texts of few letters, the lowest and the highest among them, that are often equal at the beginning.
    fn texts() -> Vec<Vec<u8>> {
        let mut state = 88172645463325252u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let letter = |n: u64| [1, 0x80, 0x81, 0xff, 1, 1, 1, 0][(n % 8) as usize];
        (0..300).map(|n| (0..n % 27).map(|_| letter(next() >> 20)).collect()).collect()
    }

    #[test]
    fn a_text_is_what_lies_before_its_first_nul() {
        for text in texts() {
            let wanted = until_nul(&text);
            assert_eq!(text_len(&text), wanted.len(), "{text:x?}");
            let mut to = [0u8; 32];
            // SAFETY: both are there, and `to` is longer.
            let ends = unsafe { copy_text(to.as_mut_ptr() as u64, text.as_ptr() as u64, text.len() as u64) };
            assert_eq!((until_nul(&to), ends), (wanted, wanted.len() < text.len()), "{text:x?}");
            assert!(to[wanted.len()..].iter().all(|byte| *byte == 0), "{text:x?} {to:x?}");
        }
    }

    #[test]
    fn texts_are_in_the_order_of_their_bytes() {
        let texts = texts();
        for (a, b) in texts.iter().flat_map(|a| texts.iter().map(move |b| (a, b))) {
            assert_eq!(compare_texts(a, b), until_nul(a).cmp(until_nul(b)), "{a:x?} {b:x?}");
        }
    }

    #[test]
    fn zeros_are_written_where_they_are_asked_for_alone() {
        for (from, len) in (0..9).flat_map(|from| (0..20).map(move |len| (from, len))) {
            let mut bytes = [7u8; 32];
            zero(&mut bytes[from..from + len]);
            let is_right = |(n, byte): (usize, &u8)| (*byte == 0) == (from..from + len).contains(&n);
            assert!(bytes.iter().enumerate().all(is_right), "{from} {len}");
        }
    }
}
