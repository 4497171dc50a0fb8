//! The bytes that lead a site to its trampoline.
//!
//! For:     arming and disarming.
//! State:   none.
//! Context: control.
//! Keeps:   P1 a patch is one instruction at the site: a 5-byte jump, or a 2-byte jump to one.
//! Checked: tests below; session compares what it finds before it writes.

use insn::Unreachable;
pub use wire::JUMP_LEN;

/// Bytes to write at one address, and what must stand there before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Where.
    pub addr: u64,
    /// What must be there now.
    pub old: Vec<u8>,
    /// What will be there.
    pub new: Vec<u8>,
}

/// What does nothing and is as long as a jump.
pub const NO_JUMP: [u8; JUMP_LEN] = arch::NO_JUMP;

/// A jump at `from` to `to`: of 5 bytes; on AArch64 a branch, of 4.
pub fn jump(from: u64, to: u64) -> Result<[u8; JUMP_LEN], Unreachable> {
    arch::jump(from, to)
}

/// A 2-byte jump at `from` to `to`, `None` if that is further than 127 bytes; AArch64 has none.
pub fn island_jump(from: u64, to: u64) -> Option<[u8; 2]> {
    let rel = i8::try_from(to.wrapping_sub(from + 2) as i64).ok()?;
    cfg!(target_arch = "x86_64").then_some([0xeb, rel as u8])
}

/// Where a [`jump`] at `from` leads, `None` if `bytes` are not one.
pub fn jump_target(from: u64, bytes: &[u8]) -> Option<u64> {
    arch::jump_target(from, bytes)
}

#[cfg(target_arch = "aarch64")]
mod arch {
    use super::{JUMP_LEN, Unreachable};
    use insn::aarch64::{NOP, b};

    pub const NO_JUMP: [u8; JUMP_LEN] = NOP.to_le_bytes();

    pub fn jump(from: u64, to: u64) -> Result<[u8; JUMP_LEN], Unreachable> {
        b(from, to).map(u32::to_le_bytes).ok_or(Unreachable { from, to })
    }

    pub fn jump_target(from: u64, bytes: &[u8]) -> Option<u64> {
        let word = u32::from_le_bytes(*bytes.first_chunk()?);
        // `b`, not a branch on a condition, which may be no jump of ours.
        (word >> 26 == 5).then(|| crate::arch::aarch64::branch_target(from, word)).flatten()
    }
}

#[cfg(not(target_arch = "aarch64"))]
mod arch {
    use super::{JUMP_LEN, Unreachable};
    use crate::assemble::distance;

    pub const NO_JUMP: [u8; JUMP_LEN] = [0x0f, 0x1f, 0x44, 0, 0];

    pub fn jump(from: u64, to: u64) -> Result<[u8; JUMP_LEN], Unreachable> {
        let rel = distance(from + JUMP_LEN as u64, to)?.to_le_bytes();
        Ok([0xe9, rel[0], rel[1], rel[2], rel[3]])
    }

    pub fn jump_target(from: u64, bytes: &[u8]) -> Option<u64> {
        match bytes {
            [0xe9, a, b, c, d, ..] => {
                let rel = i32::from_le_bytes([*a, *b, *c, *d]);
                Some(from.wrapping_add(JUMP_LEN as u64).wrapping_add_signed(i64::from(rel)))
            }
            _ => None,
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn a_jump_leads_where_it_was_told_to_and_says_so() {
        for to in [0x1000_0000u64, 0x1000_0005, 0x0fff_fff0, 0x8000_0000] {
            let bytes = jump(0x1000_0000, to).unwrap();
            assert_eq!(jump_target(0x1000_0000, &bytes), Some(to));
        }
        assert!(jump(0x1000, 0x1_8000_2000).is_err());
        assert_eq!(jump_target(0x1000, &[0x90; 5]), None);
    }

    #[test]
    fn an_island_is_at_most_127_bytes_away() {
        assert_eq!(island_jump(0x1000, 0x1002 + 127), Some([0xeb, 127]));
        assert_eq!(island_jump(0x1000, 0x1002 + 128), None);
        assert_eq!(island_jump(0x1000, 0x1002 - 128), Some([0xeb, 0x80]));
    }
}
