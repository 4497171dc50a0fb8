//! A64 instructions done in software.
//!
//! For:     sites that trap: no slot, no cache maintenance, no way back.
//! State:   the caller's registers.
//! Context: any; no allocation, no panic, no memory access.
//! Keeps:   G1 registers and program counter are afterwards as if the instruction had run.
//! Checked: tests/aarch64_differential: each class beside the processor's (qemu's) own result.
//! Source:  the kernel's simulated class, kernel-facts 1.15. Departs: the branch type is set as the processor sets it
//!          for a branch from a page that is not guarded, so that `br` lands where it may and no check is made up.

use super::decode::{Auth, By, LINK, Relative, ZERO, bits, decode};
use super::verdict::{Verdict, verdict};

/// What an emulated instruction reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regs {
    /// x0 to x30.
    pub x: [u64; 31],
    /// The program counter; before, that of the instruction.
    pub pc: u64,
    /// N, Z, C, V in bits 31 to 28, the branch type in bits 11 and 10.
    pub pstate: u64,
}

/// PSTATE.BTYPE as saved: what the next instruction's page may want of it.
const BRANCH_TYPE: u64 = 3 << 10;

impl Regs {
    fn get(&self, number: u8) -> u64 {
        self.x.get(usize::from(number)).copied().unwrap_or(0)
    }

    fn set(&mut self, number: u8, value: u64) {
        if let Some(register) = self.x.get_mut(usize::from(number)) {
            *register = value;
        }
    }

    /// Whether condition `cond` holds.
    fn holds(&self, cond: u8) -> bool {
        let flag = |bit: u32| bits((self.pstate >> 28) as u32, bit, 1) == 1;
        let (n, z, c, v) = (flag(3), flag(2), flag(1), flag(0));
        let holds = match cond >> 1 {
            0 => z,
            1 => c,
            2 => n,
            3 => v,
            4 => c && !z,
            5 => n == v,
            6 => n == v && !z,
            _ => return true,
        };
        holds != (cond & 1 == 1)
    }
}

/// Does `word` at `regs.pc`; false, and nothing is changed, unless its verdict is [`Verdict::Emulated`].
pub fn emulate(word: u32, regs: &mut Regs) -> bool {
    if verdict(word) != Verdict::Emulated {
        return false;
    }
    let behind = regs.pc.wrapping_add(4);
    let mut branch_type = 0;
    let to = match decode(word, regs.pc) {
        None => behind,
        Some(Relative::Adr { rd, target } | Relative::Adrp { rd, target }) => {
            regs.set(rd, target);
            behind
        }
        Some(Relative::Jump { target }) => target,
        Some(Relative::Call { target }) => {
            regs.set(LINK, behind);
            target
        }
        Some(Relative::JumpIf { cond, target, .. }) if regs.holds(cond) => target,
        Some(Relative::JumpZero { rt, is_wide, when_zero, target }) => {
            let value = if is_wide { regs.get(rt) } else { regs.get(rt) as u32 as u64 };
            if (value == 0) == when_zero { target } else { behind }
        }
        Some(Relative::JumpBit { rt, bit, when_set, target }) => {
            if (regs.get(rt) >> bit & 1 == 1) == when_set { target } else { behind }
        }
        Some(Relative::JumpIf { .. }) => behind,
        Some(Relative::Register { by, rn, auth: Auth::None }) => {
            let target = if rn == ZERO { 0 } else { regs.get(rn) };
            branch_type = match by {
                By::Jump => 1,
                By::Call => 2,
                By::Return => 0,
            };
            if by == By::Call {
                regs.set(LINK, behind);
            }
            target
        }
        Some(Relative::Register { .. } | Relative::Load { .. }) => return false,
    };
    regs.pc = to;
    regs.pstate = regs.pstate & !BRANCH_TYPE | branch_type << 10;
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regs() -> Regs {
        Regs { x: core::array::from_fn(|i| i as u64), pc: 0x1000, pstate: 0 }
    }

    #[test]
    fn every_condition_is_the_opposite_of_its_neighbour_but_for_always() {
        for flags in 0..16u64 {
            let regs = Regs { pstate: flags << 28, ..regs() };
            (0..14).step_by(2).for_each(|cond| assert_ne!(regs.holds(cond), regs.holds(cond + 1)));
            assert!(regs.holds(14) && regs.holds(15));
        }
    }

    #[test]
    fn a_call_by_the_link_register_goes_to_its_old_value() {
        let mut regs = regs();
        assert!(emulate(0xd63f_03c0, &mut regs));
        assert_eq!((regs.pc, regs.x[30], regs.pstate), (30, 0x1004, 2 << 10));
    }

    #[test]
    fn what_is_not_simulated_changes_nothing() {
        for word in [0x9100_0400, 0x5800_0043, 0xd65f_0bff, 0xd400_0001] {
            let mut after = regs();
            assert!(!emulate(word, &mut after), "{word:#x}");
            assert_eq!(after, regs());
        }
    }
}
