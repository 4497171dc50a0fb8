//! Where a jump may lead whose bytes are safe to write beside running threads.
//!
//! For:     jumps in the own process, where no thread can be stopped.
//! State:   the bytes of a displacement that may not be chosen.
//! Context: target; numbers only.
//! Keeps:   N1 under the jump, behind its first byte, an instruction of the original begins with int3 or as it did: a
//!          thread that stands there, or comes there by a way that nobody knows, traps or runs what it always ran.
//!          N2 of a punned jump no byte behind the free ones changes.
//! Checked: tests below; trap's `tests/jumps.rs`.
//! Source:  instruction punning (PLDI 2017), with int3 in the place of the original's bytes.

use crate::JUMP_LEN;
use insn::Placement;

const INT3: u8 = 0xcc;

/// The addresses to which a five-byte jump can lead of whose displacement some bytes are fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landing {
    /// The address behind the jump.
    behind: u64,
    mask: u32,
    value: u32,
}

impl Landing {
    /// For the jump at the placement's site, in the place of `original`.
    pub fn of(placement: &Placement, bias: u64, original: [u8; JUMP_LEN]) -> Landing {
        let free = placement.pun.map_or(JUMP_LEN, |pun| 1 + pun.count.trailing_zeros() as usize / 8);
        let (mut mask, mut value) = ([0; 4], [0; 4]);
        for at in 1..JUMP_LEN {
            let begins = placement.displaced.iter().any(|insn| insn.addr == placement.site + at as u64);
            let fixed = if at >= free { Some(original[at]) } else { begins.then_some(INT3) };
            if let Some(byte) = fixed {
                (mask[at - 1], value[at - 1]) = (0xff, byte);
            }
        }
        let behind = placement.site.wrapping_add(bias).wrapping_add(JUMP_LEN as u64);
        Landing { behind, mask: u32::from_le_bytes(mask), value: u32::from_le_bytes(value) }
    }

    /// Whether any address within reach will do.
    pub fn is_free(&self) -> bool {
        self.mask == 0
    }

    /// The lowest address from `from` on; `None` if there is none within reach.
    pub fn at_or_after(&self, from: u64) -> Option<u64> {
        const SIGN: u32 = 1 << 31;
        let lowest = self.behind.saturating_sub(u64::from(SIGN));
        let displacement = i32::try_from(from.max(lowest).wrapping_sub(self.behind) as i64).ok()?;
        // In an order in which the lowest displacement is 0.
        let least = displacement as u32 ^ SIGN;
        let found = least_matching(least, self.mask, self.value ^ (self.mask & SIGN))?;
        self.behind.checked_add_signed(i64::from((found ^ SIGN) as i32))
    }
}

/// The least number from `least` on that has `value` in the bits of `mask`.
fn least_matching(least: u32, mask: u32, value: u32) -> Option<u32> {
    if least & mask == value {
        return Some(least);
    }
    // It agrees with `least` above one bit, which is 0 there and 1 here; below that it is as low as can be.
    (0..32).find_map(|bit| {
        let (here, below) = (1u32 << bit, (1u32 << bit) - 1);
        let above = !(here | below);
        let agrees = least & mask & above == value & above;
        let can_rise = least & here == 0 && (mask & here == 0 || value & here != 0);
        (agrees && can_rise).then_some(least & above | here | value & below)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_number_with_fixed_bits_is_found() {
        let mut seed = 7u32;
        let mut next = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed >> 8
        };
        for _ in 0..2000 {
            // Small numbers, so that all can be tried.
            let (mask, least) = (next() & 0xff, next() & 0x1ff);
            let value = next() & mask;
            let wanted = (least..least + 0x400).find(|n| n & mask == value);
            assert_eq!(least_matching(least, mask, value), wanted, "{least:#x} {mask:#x} {value:#x}");
        }
        assert_eq!(least_matching(u32::MAX, 0xff, 0xcc), None);
    }

    #[test]
    fn a_landing_keeps_its_bytes_and_stays_within_reach() {
        let landing = Landing { behind: 0x5555_0000_1005, mask: 0xff00_00ff, value: 0xcc00_00cc };
        let at = landing.at_or_after(0x5554_0000_0000).unwrap();
        let displacement = (at.wrapping_sub(0x5555_0000_1005)) as i64 as i32 as u32;
        assert_eq!(displacement & 0xff00_00ff, 0xcc00_00cc);
        assert!(at.abs_diff(0x5555_0000_1005) < 1 << 31);
        assert_eq!(landing.at_or_after(at), Some(at));
        assert_eq!(landing.at_or_after(at + 1), Some(at + 0x100));
        assert_eq!(landing.at_or_after(0x5556_0000_0000), None, "not in the upper half");
        let free = Landing { behind: 0x1005, mask: 0, value: 0 };
        assert_eq!(free.at_or_after(0x10), Some(0x10));
        assert!(free.is_free());
    }
}
