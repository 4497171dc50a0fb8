//! Instructions that are done in software, without a copy.
//!
//! For:     `text::xol` and the in-process trap engine: no slot is needed for these.
//! State:   none; what an instruction does is decided once, from its bytes.
//! Context: `of`: control. `run`: hit; no decoding, no allocation.
//! Keeps:   G1 `run` leaves the registers, flags and instruction pointer that the processor would.
//!          G2 memory is not touched here: a store is handed back. It goes before the registers are used.
//! Checked: tests/emulate, each class beside the processor.
//! Source:  the kernel's list for uprobes: nops, direct jumps and calls, conditional jumps, push of a register.
//!          Departs: jumps and calls through a register are here too, and endbr64 is a nop.

use iced_x86::{Code as Op, Instruction, Mnemonic, OpKind};

/// Registers of a thread that the emulator and slots know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Registers {
    /// By their number in instruction encodings: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 ...
    pub general: [u64; 16],
    /// The processor's flags.
    pub flags: u64,
    /// Where the thread goes on.
    pub rip: u64,
}

/// Number of the stack pointer.
pub const RSP: usize = 4;

/// Eight bytes to be stored before the registers count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store {
    /// Where.
    pub addr: u64,
    /// What.
    pub value: u64,
}

/// What an instruction does, decided from its bytes and address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emulation {
    /// Nothing: goes on at `next`.
    Nop {
        /// The address behind it.
        next: u64,
    },
    /// A direct jump.
    Jump {
        /// Where to.
        to: u64,
    },
    /// A direct conditional jump.
    Branch {
        /// The condition's number in its encoding, 0 (overflow) to 15 (greater).
        condition: u8,
        /// Where to, if it holds.
        to: u64,
        /// Where to, if not.
        next: u64,
    },
    /// A direct call.
    Call {
        /// Where to.
        to: u64,
        /// What is pushed.
        return_to: u64,
    },
    /// A push of eight bytes of a register.
    Push {
        /// Its number.
        register: u8,
        /// The address behind it.
        next: u64,
    },
    /// A jump through a register.
    JumpRegister {
        /// Its number.
        register: u8,
    },
    /// A call through a register.
    CallRegister {
        /// Its number.
        register: u8,
        /// What is pushed.
        return_to: u64,
    },
}

impl Emulation {
    /// What the first instruction in `bytes`, at `addr`, does; `None` if it is not one of these.
    pub fn of(bytes: &[u8], addr: u64) -> Option<Emulation> {
        let insn = super::decode_raw(bytes, addr)?;
        match super::forbidden(&insn, &bytes[..insn.len()]) {
            None => emulation(&insn),
            Some(_) => None,
        }
    }

    /// Does it: changes the registers, and says what is to be stored first.
    #[inline]
    pub fn run(&self, regs: &mut Registers) -> Option<Store> {
        match *self {
            Emulation::Nop { next } => regs.rip = next,
            Emulation::Jump { to } => regs.rip = to,
            Emulation::Branch { condition, to, next } => {
                regs.rip = if holds(condition, regs.flags) { to } else { next };
            }
            Emulation::JumpRegister { register } => regs.rip = regs.general[usize::from(register)],
            Emulation::Push { register, next } => {
                let value = regs.general[usize::from(register)];
                regs.rip = next;
                return Some(push(regs, value));
            }
            Emulation::Call { to, return_to } => {
                regs.rip = to;
                return Some(push(regs, return_to));
            }
            Emulation::CallRegister { register, return_to } => {
                regs.rip = regs.general[usize::from(register)];
                return Some(push(regs, return_to));
            }
        }
        None
    }
}

fn push(regs: &mut Registers, value: u64) -> Store {
    regs.general[RSP] = regs.general[RSP].wrapping_sub(8);
    Store { addr: regs.general[RSP], value }
}

fn emulation(insn: &Instruction) -> Option<Emulation> {
    let next = insn.next_ip();
    let register = || insn.op0_register();
    Some(match insn.code() {
        Op::Jmp_rel8_64 | Op::Jmp_rel32_64 => Emulation::Jump { to: insn.near_branch64() },
        Op::Call_rel32_64 => Emulation::Call { to: insn.near_branch64(), return_to: next },
        Op::Jmp_rm64 if insn.op0_kind() == OpKind::Register => {
            Emulation::JumpRegister { register: register().number() as u8 }
        }
        Op::Call_rm64 if insn.op0_kind() == OpKind::Register => {
            Emulation::CallRegister { register: register().number() as u8, return_to: next }
        }
        Op::Push_r64 => Emulation::Push { register: register().number() as u8, next },
        _ if matches!(insn.mnemonic(), Mnemonic::Nop | Mnemonic::Endbr64) => Emulation::Nop { next },
        _ if insn.is_jcc_short_or_near() && insn.op0_kind() == OpKind::NearBranch64 => Emulation::Branch {
            // iced numbers the conditions from 1 in the order of their encodings.
            condition: insn.condition_code() as u8 - 1,
            to: insn.near_branch64(),
            next,
        },
        _ => return None,
    })
}

/// Whether a condition holds: the upper three bits of its number choose the test, the last one turns it round.
fn holds(condition: u8, flags: u64) -> bool {
    let flag = |bit: u32| flags >> bit & 1 == 1;
    let (carry, parity, zero, sign, overflow) = (flag(0), flag(2), flag(6), flag(7), flag(11));
    let test = match condition >> 1 {
        0 => overflow,
        1 => carry,
        2 => zero,
        3 => carry || zero,
        4 => sign,
        5 => parity,
        6 => sign != overflow,
        _ => zero || sign != overflow,
    };
    test != (condition & 1 == 1)
}
