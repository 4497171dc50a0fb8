//! The set of addresses that something is known to jump to, call or point at.
//!
//! For:     telling whether a jump may cover a byte.
//! State:   one bit for each byte of code, set once, never cleared.
//! Context: control.
//! Keeps:   G1 an address outside the code is never in the set.
//!          G2 `first_in` finds the lowest member of a range, `last_in` the highest.
//! Checked: targets.rs tests; `flow` tests.

use std::ops::Range;

use crate::code::Code;

/// A bit set over the bytes of some segments.
#[derive(Debug)]
pub(crate) struct Targets {
    segments: Vec<Segment>,
}

#[derive(Debug)]
pub(crate) struct Segment {
    base: u64,
    len: u64,
    bits: Vec<u64>,
}

impl Segment {
    pub(crate) fn holds(&self, addr: u64) -> bool {
        addr.wrapping_sub(self.base) < self.len
    }

    /// Adds `addr`; false when it is not in this segment.
    #[inline]
    pub(crate) fn insert(&mut self, addr: u64) -> bool {
        let offset = addr.wrapping_sub(self.base);
        if offset >= self.len {
            return false;
        }
        self.bits[(offset / 64) as usize] |= 1 << (offset % 64);
        true
    }

    fn contains(&self, addr: u64) -> bool {
        let offset = addr.wrapping_sub(self.base);
        offset < self.len && self.bits[(offset / 64) as usize] & (1 << (offset % 64)) != 0
    }

    /// The part of a range of addresses that is in this segment, as offsets.
    fn part(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let to = range.end.checked_sub(self.base)?.min(self.len);
        let from = range.start.saturating_sub(self.base);
        (from < to).then_some(from..to)
    }

    /// The bits of one word that are in `part`.
    fn masked(&self, word: u64, part: &Range<u64>) -> u64 {
        let first = word * 64;
        let low = part.start.saturating_sub(first).min(63);
        let high = (part.end - first).min(64);
        self.bits[word as usize] & (u64::MAX << low) & (u64::MAX >> (64 - high))
    }

    fn first_in(&self, range: &Range<u64>) -> Option<u64> {
        let part = self.part(range)?;
        (part.start / 64..=(part.end - 1) / 64).find_map(|word| {
            let bits = self.masked(word, &part);
            (bits != 0).then(|| self.base + word * 64 + u64::from(bits.trailing_zeros()))
        })
    }

    fn last_in(&self, range: &Range<u64>) -> Option<u64> {
        let part = self.part(range)?;
        (part.start / 64..=(part.end - 1) / 64).rev().find_map(|word| {
            let bits = self.masked(word, &part);
            (bits != 0).then(|| self.base + word * 64 + 63 - u64::from(bits.leading_zeros()))
        })
    }
}

impl Targets {
    pub(crate) fn new(codes: &[Code<'_>]) -> Targets {
        let segment = |code: &Code<'_>| {
            let len = code.bytes.len();
            Segment { base: code.base, len: len as u64, bits: vec![0; len.div_ceil(64)] }
        };
        Targets { segments: codes.iter().map(segment).collect() }
    }

    pub(crate) fn in_code(&self, addr: u64) -> bool {
        self.segments.iter().any(|segment| segment.holds(addr))
    }

    /// The end of the code around `addr`.
    pub(crate) fn end_of(&self, addr: u64) -> u64 {
        let segment = self.segments.iter().find(|segment| segment.holds(addr));
        segment.map_or(u64::MAX, |segment| segment.base + segment.len)
    }

    pub(crate) fn insert(&mut self, addr: u64) -> bool {
        self.segments.iter_mut().any(|segment| segment.insert(addr))
    }

    /// Adds those that are in code.
    pub(crate) fn extend(&mut self, addrs: impl Iterator<Item = u64>) {
        for addr in addrs {
            self.insert(addr);
        }
    }

    pub(crate) fn contains(&self, addr: u64) -> bool {
        self.segments.iter().any(|segment| segment.contains(addr))
    }

    /// The lowest member of `range`.
    pub(crate) fn first_in(&self, range: Range<u64>) -> Option<u64> {
        self.segments.iter().filter_map(|segment| segment.first_in(&range)).min()
    }

    /// The highest member of `range`.
    pub(crate) fn last_in(&self, range: Range<u64>) -> Option<u64> {
        self.segments.iter().filter_map(|segment| segment.last_in(&range)).max()
    }

    /// How many addresses are in the set.
    pub(crate) fn count(&self) -> u64 {
        self.segments.iter().flat_map(|segment| &segment.bits).map(|word| u64::from(word.count_ones())).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_and_strangers_are_not() {
        let codes = [Code { base: 100, bytes: &[0; 70] }, Code { base: 1000, bytes: &[0; 10] }];
        let mut set = Targets::new(&codes);
        assert!(set.insert(169) && set.insert(1000));
        assert!(!set.insert(170) && !set.insert(99) && !set.insert(u64::MAX));
        assert!(set.contains(169) && set.contains(1000) && !set.contains(168));
        assert_eq!(set.first_in(100..1010), Some(169));
        assert_eq!(set.first_in(101..169), None);
        assert_eq!(set.last_in(0..u64::MAX), Some(1000));
        assert_eq!((set.last_in(90..1000), set.last_in(90..169)), (Some(169), None));
        assert_eq!(set.count(), 2);
    }
}
