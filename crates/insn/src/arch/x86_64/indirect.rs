//! Where a jump to a register may lead: a pointer that was loaded, or a sum.
//!
//! For:     `sweep`, so that the ladder covers nothing that a computed jump leads to.
//! State:   the places of the last instructions of a function.
//! Context: control. Cost: some ten decodes for each jump to a register.
//! Keeps:   G1 a register is taken for a pointer only if each instruction back to where it was loaded, given by a caller
//!          or returned by a call is read, falls through, and moves or masks the register at most.
//!          G2 a sum is of words only if one part was loaded from 32 bits of memory.
//! Checked: tests/computed.rs, one case for each form.

use iced_x86::{
    Code as Op, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};
use std::ops::Range;

use super::decode_raw;
use crate::code::Code;

/// How many instructions before a jump are looked at.
const LOOK_BACK: usize = 48;

/// What a jump's register holds, if it is no pointer that was loaded. The later, the less is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sum {
    /// A base and a 32-bit entry of a table.
    Words,
    /// Its making was not found: it comes from several places, or from far.
    Unknown,
    /// A base and something else: an entry of bytes or words, or arithmetic.
    Other,
}

/// The last instructions of a function.
#[derive(Debug)]
pub(super) struct Trail {
    at: [u64; LOOK_BACK],
    len: usize,
}

impl Trail {
    pub(super) fn new() -> Trail {
        Trail { at: [0; LOOK_BACK], len: 0 }
    }

    /// A function begins.
    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    #[inline]
    pub(super) fn push(&mut self, at: u64) {
        self.at[self.len % LOOK_BACK] = at;
        self.len += 1;
    }

    /// The instructions before the last one, that first. `None` behind the last of them if there were more.
    fn backward<'t>(&'t self, code: &'t Code<'_>) -> impl Iterator<Item = Option<Instruction>> + 't {
        let from = self.len.saturating_sub(LOOK_BACK);
        let known = (from..self.len.saturating_sub(1)).rev().map(|number| {
            let at = self.at[number % LOOK_BACK];
            decode_raw(code.from_addr(at), at)
        });
        known.chain((from > 0).then_some(None))
    }

    /// What `jump`, the last instruction, leads by; `None` if that is known from data: pointers.
    pub(super) fn sum(&self, code: &Code<'_>, jump: &Instruction) -> Option<Sum> {
        if jump.code() != Op::Jmp_rm64 {
            return None;
        }
        match jump.op0_kind() {
            OpKind::Register => self.made(code, jump.op0_register()),
            // A pointer may have been put there a moment ago.
            _ if jump.memory_base() == Register::RSP => Some(Sum::Unknown),
            _ => None,
        }
    }

    /// How the register is made.
    fn made(&self, code: &Code<'_>, register: Register) -> Option<Sum> {
        let mut wanted = register;
        let mut info = InstructionInfoFactory::new();
        for (number, insn) in self.backward(code).enumerate() {
            let Some(insn) = insn else { return Some(Sum::Unknown) };
            match insn.flow_control() {
                FlowControl::Next | FlowControl::ConditionalBranch => {}
                // What a call returns is a pointer, and so is what it leaves in a register that it must keep.
                FlowControl::Call | FlowControl::IndirectCall if wanted == Register::RAX => return None,
                FlowControl::Call | FlowControl::IndirectCall => {}
                _ => return Some(Sum::Unknown),
            }
            if !writes(&mut info, &insn, wanted) {
                continue;
            }
            match insn.mnemonic() {
                Mnemonic::Mov if insn.op1_kind() == OpKind::Register && insn.op1_register().is_gpr64() => {
                    wanted = insn.op1_register();
                }
                Mnemonic::Mov if insn.op1_kind() == OpKind::Memory && insn.op0_register() == wanted => {
                    let is_own = matches!(insn.memory_base(), Register::RSP | Register::RBP);
                    return is_own.then_some(Sum::Unknown);
                }
                Mnemonic::Pop => return None,
                // Pointers that are mangled, masked or chosen.
                Mnemonic::Xor | Mnemonic::Ror | Mnemonic::Rol | Mnemonic::And | Mnemonic::Not
                    if insn.op0_register() == wanted => {}
                // One place, which is a target by itself.
                Mnemonic::Mov if insn.op1_kind() != OpKind::Register => return None,
                Mnemonic::Lea if insn.memory_base() == Register::RIP => return None,
                _ if insn.mnemonic() == Mnemonic::Add || insn.mnemonic() == Mnemonic::Lea => {
                    return Some(self.parts(code, number + 1, &insn));
                }
                _ => return Some(Sum::Other),
            }
        }
        // The caller gave it.
        None
    }

    /// What a sum's parts are; `behind` instructions come after it.
    fn parts(&self, code: &Code<'_>, behind: usize, sum: &Instruction) -> Sum {
        let parts = match sum.mnemonic() {
            Mnemonic::Add if sum.op1_kind() == OpKind::Memory => return Sum::Other,
            Mnemonic::Add => [sum.op0_register(), sum.op1_register()],
            _ if sum.memory_index_scale() != 1 || sum.memory_displacement64() != 0 => return Sum::Other,
            _ => [sum.memory_base(), sum.memory_index()],
        };
        let mut info = InstructionInfoFactory::new();
        let mut open = parts;
        let mut sum = Sum::Other;
        for insn in self.backward(code).skip(behind) {
            let Some(insn) = insn else { break };
            if !matches!(insn.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch) {
                break;
            }
            for part in open.iter_mut().filter(|part| part.is_gpr64()) {
                if !writes(&mut info, &insn, *part) {
                    continue;
                }
                let from = insn.op1_register().full_register();
                let is_moved = matches!(insn.mnemonic(), Mnemonic::Mov | Mnemonic::Movsxd)
                    && insn.op1_kind() == OpKind::Register;
                match insn.code() {
                    _ if is_moved => *part = from,
                    Op::Cdqe => {}
                    Op::Movsxd_r64_rm32 | Op::Mov_r32_rm32 => (*part, sum) = (Register::None, Sum::Words),
                    Op::Lea_r64_m if insn.memory_base() == Register::RIP => *part = Register::None,
                    _ => return Sum::Other,
                }
            }
        }
        sum
    }
}

fn writes(info: &mut InstructionInfoFactory, insn: &Instruction, register: Register) -> bool {
    info.info(insn).used_registers().iter().any(|used| {
        used.register().full_register() == register
            && !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::None)
    })
}

/// Tells `found` every address that the code of `range` forms relative to rip, or by an immediate in a file at fixed
/// addresses. True if it also adds something that it loaded from a table of bytes or words.
pub(crate) fn formed(codes: &[Code<'_>], range: &Range<u64>, found: &mut dyn FnMut(u64)) -> bool {
    let Some(code) = Code::holding(codes, range.start) else { return false };
    let mut info = InstructionInfoFactory::new();
    // The registers with what was loaded from a byte or a word.
    let (mut narrow, mut adds_narrow) = (0_u16, false);
    let bit = |register: Register| match register.full_register() {
        full if full.is_gpr64() => 1 << full.number(),
        _ => 0_u16,
    };
    let is_absolute = super::sweep::is_absolute(code.base);
    let mut at = range.start;
    while at < range.end {
        let Some(insn) = decode_raw(code.from_addr(at), at) else {
            at += 1;
            continue;
        };
        at = insn.next_ip();
        adds_narrow |= match insn.code() {
            Op::Add_r64_rm64 | Op::Add_rm64_r64 | Op::Sub_r64_rm64 | Op::Sub_rm64_r64 => {
                narrow & (bit(insn.op0_register()) | bit(insn.op1_register())) != 0
            }
            Op::Lea_r64_m => narrow & (bit(insn.memory_base()) | bit(insn.memory_index())) != 0,
            _ => false,
        };
        let is_narrow =
            matches!(insn.mnemonic(), Mnemonic::Movzx | Mnemonic::Movsx) && insn.op1_kind() == OpKind::Memory;
        let is_moved = matches!(insn.mnemonic(), Mnemonic::Mov | Mnemonic::Movsxd)
            && insn.op1_kind() == OpKind::Register
            && narrow & bit(insn.op1_register()) != 0;
        // Seldom: it costs as much as all the rest.
        if narrow != 0 {
            for used in info.info(&insn).used_registers() {
                if !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::None) {
                    narrow &= !bit(used.register());
                }
            }
        }
        if is_narrow || is_moved {
            narrow |= bit(insn.op0_register());
        }
        if insn.flow_control() != FlowControl::Next {
            narrow = 0;
        }
        if insn.code() == Op::Lea_r64_m && insn.memory_base() == Register::RIP {
            found(insn.memory_displacement64());
        }
        if !is_absolute {
            continue;
        }
        match insn.code() {
            Op::Mov_r32_imm32 => found(u64::from(insn.immediate32())),
            Op::Mov_rm64_imm32 | Op::Add_rm64_imm32 | Op::Add_RAX_imm32 => found(insn.immediate(1)),
            _ if insn.memory_index() != Register::None && insn.memory_displ_size() >= 4 => {
                found(insn.memory_displacement64());
            }
            _ => {}
        }
    }
    adds_narrow
}
