//! Strings and pieces of memory that are the program's own.
//!
//! For:     programs.
//! State:   none.
//! Context: hit.
//! Keeps:   X1 a text ends at its first NUL, or at the length that is given.
//! Checked: tests/helpers.

use crate::around::{Around, errno};
use crate::bytes::{compare_texts, text_len};
use core::cmp::Ordering;
use wire::maps::HelperError::BadArgument;

fn until_nul(text: &[u8]) -> &[u8] {
    text.get(..text_len(text)).unwrap_or_default()
}

impl Around<'_> {
    fn two(&self, a: u64, a_len: u64, b: u64, b_len: u64) -> Option<(&[u8], &[u8])> {
        Some((self.bytes(a, a_len)?, self.bytes(b, b_len)?))
    }

    /// (a, length, b, length) -> 0 if the strings are equal, else -1 or 1.
    #[inline(always)]
    pub fn str_compare(&self, a: u64, a_len: u64, b: u64, b_len: u64) -> u64 {
        let Some((a, b)) = self.two(a, a_len, b, b_len) else {
            return self.refused(BadArgument, errno::EINVAL);
        };
        match compare_texts(a, b) {
            Ordering::Less => -1i64 as u64,
            Ordering::Equal => 0,
            Ordering::Greater => 1,
        }
    }

    /// (a, b, n) -> 0 if the bytes are equal, else the difference of the first that are not.
    pub fn mem_compare(&self, a: u64, b: u64, n: u64) -> u64 {
        let Some((a, b)) = self.two(a, n, b, n) else { return self.refused(BadArgument, errno::EINVAL) };
        let first = a.iter().zip(b).find(|(a, b)| a != b);
        first.map_or(0, |(a, b)| (i64::from(*a) - i64::from(*b)) as u64)
    }

    /// (hay, length, needle, length) -> where the needle is first, -1 if nowhere.
    pub fn str_find(&self, hay: u64, hay_len: u64, needle: u64, needle_len: u64) -> u64 {
        let Some((hay, needle)) = self.two(hay, hay_len, needle, needle_len) else {
            return self.refused(BadArgument, errno::EINVAL);
        };
        let (hay, needle) = (until_nul(hay), until_nul(needle));
        if needle.is_empty() {
            return 0;
        }
        let found = hay.windows(needle.len()).position(|part| part.iter().eq(needle));
        found.map_or(u64::MAX, |at| at as u64)
    }

    /// (a, length) -> bytes before the NUL.
    pub fn str_len(&self, a: u64, len: u64) -> u64 {
        let Some(a) = self.bytes(a, len) else { return self.refused(BadArgument, errno::EINVAL) };
        until_nul(a).len() as u64
    }

    /// (to, length): zeros.
    pub fn mem_zero(&self, to: u64, len: u64) -> u64 {
        let Some(to) = self.bytes_mut(to, len) else { return self.refused(BadArgument, errno::EINVAL) };
        crate::bytes::zero(to);
        0
    }

    /// (to, length): zeros behind the first NUL.
    pub fn str_tidy(&self, to: u64, len: u64) -> u64 {
        let Some(to) = self.bytes_mut(to, len) else { return self.refused(BadArgument, errno::EINVAL) };
        let end = until_nul(to).len();
        crate::bytes::zero(to.get_mut(end..).unwrap_or_default());
        0
    }

    /// (to, length, from, length) -> 0: the string `from` behind the string `to`, as far as there is room.
    pub fn str_append(&self, to: u64, len: u64, from: u64, from_len: u64) -> u64 {
        let is_ours = self.may_write(to, len) && self.may_read(from, from_len);
        if !is_ours {
            return self.refused(BadArgument, errno::EINVAL);
        }
        let end = self.bytes(to, len).map_or(0, |to| until_nul(to).len() as u64);
        let more = self.bytes(from, from_len).map_or(0, |from| until_nul(from).len() as u64);
        self.copy_own(to + end, from, more.min(len - end));
        0
    }

    /// (to, length, from): the program's own memory.
    pub fn read_own(&self, to: u64, len: u64, from: u64) -> u64 {
        if !self.may_write(to, len) || !self.may_read(from, len) {
            return self.refused(BadArgument, errno::EINVAL);
        }
        self.copy_own(to, from, len);
        0
    }

    /// Copies between two pieces that are the program's, which may overlap.
    pub(crate) fn copy_own(&self, to: u64, from: u64, len: u64) {
        debug_assert!(self.may_write(to, len) && self.may_read(from, len));
        // SAFETY: both are the program's for so many bytes (every caller asks).
        unsafe { crate::bytes::copy(to, from, len) };
    }
}
