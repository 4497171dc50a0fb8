//! Bytes of code and the address at which they are mapped.
//!
//! For:     everything else here, which reads code and never guesses what lies outside it.
//! State:   none; both types borrow or copy bytes.
//! Context: control.
//! Keeps:   G1 no byte outside the given segments is ever read.
//! Checked: code.rs tests.

use std::ops::Range;

/// One executable segment: the image address of its first byte, and its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Code<'a> {
    /// Image address of `bytes[0]`.
    pub base: u64,
    /// What the file holds there.
    pub bytes: &'a [u8],
}

impl<'a> Code<'a> {
    /// The image addresses that the segment covers.
    pub fn range(&self) -> Range<u64> {
        self.base..self.base.saturating_add(self.bytes.len() as u64)
    }

    /// The bytes from `addr` to the end of the segment; empty when `addr` is not in it.
    pub fn from_addr(&self, addr: u64) -> &'a [u8] {
        match addr.checked_sub(self.base) {
            Some(offset) if offset < self.bytes.len() as u64 => &self.bytes[offset as usize..],
            _ => &[],
        }
    }

    /// The segment that holds `addr`.
    pub(crate) fn holding<'c>(codes: &'c [Code<'a>], addr: u64) -> Option<&'c Code<'a>> {
        codes.iter().find(|code| code.range().contains(&addr))
    }
}

/// Longest instruction of any architecture here, in bytes (x86-64: 15).
pub(crate) const INSN_MAX_BYTES: usize = 15;

/// One instruction of the original code: where it stands and its bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Insn {
    /// Image address of its first byte.
    pub addr: u64,
    len: u8,
    bytes: [u8; INSN_MAX_BYTES],
}

impl Insn {
    /// The instruction at `addr`, or `None` when `bytes` is empty or longer than an instruction can be.
    pub fn new(addr: u64, bytes: &[u8]) -> Option<Insn> {
        let len = bytes.len();
        if len == 0 || len > INSN_MAX_BYTES {
            return None;
        }
        let mut own = [0; INSN_MAX_BYTES];
        own[..len].copy_from_slice(bytes);
        Some(Insn { addr, len: len as u8, bytes: own })
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Its length in bytes.
    pub fn len_bytes(&self) -> usize {
        usize::from(self.len)
    }

    /// Image address of the byte behind it.
    pub fn end(&self) -> u64 {
        self.addr.wrapping_add(u64::from(self.len))
    }
}

impl std::fmt::Debug for Insn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}:", self.addr)?;
        self.bytes().iter().try_for_each(|byte| write!(f, " {byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_gives_no_byte_outside_itself() {
        let code = Code { base: 0x1000, bytes: &[1, 2, 3] };
        assert_eq!(code.from_addr(0x1001), &[2, 3]);
        assert!(code.from_addr(0x0fff).is_empty());
        assert!(code.from_addr(0x1003).is_empty());
        assert!(Code::holding(&[code], 0x1003).is_none());
    }

    #[test]
    fn an_instruction_is_one_to_fifteen_bytes() {
        assert!(Insn::new(0, &[]).is_none());
        assert!(Insn::new(0, &[0x90; 16]).is_none());
        assert_eq!(Insn::new(8, &[0x90; 15]).unwrap().end(), 23);
    }
}
