//! Where a jump or call to a register, or a return to what was pushed, may lead: a pointer that was loaded, or a sum.
//!
//! For:     `sweep`, so that the ladder covers nothing that a computed jump leads to.
//! State:   the places of the last instructions of a function.
//! Context: control. Cost: some ten decodes for each jump to a register and each return.
//! Keeps:   G1 a register is taken for a pointer only if each instruction back to where it was loaded, given by a caller
//!          or returned by a call is read, falls through, and moves or masks the register at most.
//!          G2 a sum is of words only if one part was loaded from 32 bits of memory.
//!          G3 a jump or call to code elsewhere that jumps by a register is taken for one to that register.
//! Checked: tests/computed.rs, one case for each form.

use iced_x86::{
    Code as Op, ConditionCode, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register,
};
use std::ops::Range;

use super::decode_raw;
use crate::code::Code;

/// How many instructions before a jump are looked at.
const LOOK_BACK: usize = 48;

/// How many instructions before a return are looked at for what it returns to.
const RETURN_LOOK_BACK: usize = 12;

/// How many instructions of a thunk are read, and how far its call may lead.
const THUNK_INSNS: usize = 8;
const RETPOLINE_BYTES: u64 = 32;

/// What a jump's register holds. The later, the less is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sum {
    /// No sum: what was loaded as a whole, was given by a caller or came back from a call.
    Pointer,
    /// A base and a 32-bit entry of a table.
    Words,
    /// Its making was not found: it comes from several places, or from far.
    Unknown,
    /// A base and something else: an entry of bytes or words, or arithmetic.
    Other,
}

/// How a jump's register is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    pub(crate) sum: Sum,
    /// The first of the instructions that say so: it is so on no other way that comes in behind it.
    pub(crate) from: u64,
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

    /// What a jump or call, the last instruction, leads by; `None` if that is in memory, where data say what is there.
    pub(super) fn made_by(&self, code: &Code<'_>, jump: &Instruction) -> Option<Made> {
        match jump.code() {
            Op::Jmp_rm64 | Op::Call_rm64 if jump.op0_kind() == OpKind::Register => {
                Some(self.made(code, jump.op0_register(), 0))
            }
            // A pointer may have been put there a moment ago.
            Op::Jmp_rm64 if matches!(jump.memory_base(), Register::RSP | Register::RBP) => {
                Some(Made { sum: Sum::Unknown, from: jump.ip() })
            }
            _ => None,
        }
    }

    /// What a direct jump or call, the last instruction, leads by, if it leads out of `own` to code that jumps by a register.
    pub(super) fn made_by_thunk(&self, code: &Code<'_>, jump: &Instruction, own: Range<u64>) -> Option<Made> {
        let to = jump.near_branch64();
        if jump.op0_kind() != OpKind::NearBranch64 || own.contains(&to) {
            return None;
        }
        let is_call = jump.flow_control() == FlowControl::Call;
        if is_call && !may_be_thunk(code.from_addr(to)) {
            return None;
        }
        match thunk(code, to)? {
            Thunk::Given(register) => Some(self.made(code, register, 0)),
            Thunk::Sum => Some(Made { sum: Sum::Other, from: jump.ip() }),
        }
    }

    /// What a return, the last instruction, leads by, if it is the function that has put that where returns look.
    pub(super) fn made_for_return(&self, code: &Code<'_>) -> Option<Made> {
        // Where the address is from the stack pointer.
        let mut slot = 0;
        for (number, insn) in self.backward(code).take(RETURN_LOOK_BACK).enumerate() {
            let insn = insn?;
            match insn.flow_control() {
                FlowControl::Next | FlowControl::ConditionalBranch => {}
                FlowControl::Call | FlowControl::IndirectCall => continue,
                _ => return None,
            }
            let is_slot = insn.op0_kind() == OpKind::Memory
                && insn.memory_base() == Register::RSP
                && insn.memory_index() == Register::None
                && insn.memory_displacement64().cast_signed() == slot;
            let made = |operand| match operand {
                OpKind::Register => self.made(code, insn.op_register(insn.op_count() - 1), number + 1),
                _ => Made { sum: Sum::Pointer, from: insn.ip() },
            };
            match insn.mnemonic() {
                Mnemonic::Push if slot == 0 => return Some(made(insn.op0_kind())),
                Mnemonic::Mov if is_slot => return Some(made(insn.op1_kind())),
                Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Nop => {}
                // A return address is masked, or arithmetic is done on it.
                _ if is_slot => return Some(Made { sum: Sum::Other, from: insn.ip() }),
                Mnemonic::Push => slot -= 8,
                Mnemonic::Pop if insn.op0_register() == Register::RSP => return None,
                Mnemonic::Pop => slot += 8,
                Mnemonic::Add | Mnemonic::Sub
                    if insn.op0_register() == Register::RSP && insn.try_immediate(1).is_ok() =>
                {
                    let by = insn.immediate(1).cast_signed();
                    slot += if insn.mnemonic() == Mnemonic::Add { by } else { -by };
                }
                Mnemonic::Leave => return None,
                _ if insn.op0_kind() == OpKind::Register && insn.op0_register() == Register::RSP => {
                    return None;
                }
                _ => {}
            }
        }
        None
    }

    /// The first instruction that is known.
    fn first(&self) -> u64 {
        self.at[self.len.saturating_sub(LOOK_BACK) % LOOK_BACK]
    }

    /// How the register is made that an instruction reads which has `behind` of these behind it.
    fn made(&self, code: &Code<'_>, register: Register, behind: usize) -> Made {
        let mut wanted = register;
        let mut info = InstructionInfoFactory::new();
        for (number, insn) in self.backward(code).enumerate().skip(behind) {
            let Some(insn) = insn else { return Made { sum: Sum::Unknown, from: self.first() } };
            let made = |sum| Made { sum, from: insn.ip() };
            match insn.flow_control() {
                FlowControl::Next | FlowControl::ConditionalBranch => {}
                // What a call returns is a pointer, and so is what it leaves in a register that it must keep.
                FlowControl::Call | FlowControl::IndirectCall if wanted == Register::RAX => {
                    return made(Sum::Pointer);
                }
                FlowControl::Call | FlowControl::IndirectCall => {}
                _ => return made(Sum::Unknown),
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
                    return made(if is_own { Sum::Unknown } else { Sum::Pointer });
                }
                Mnemonic::Pop => return made(Sum::Pointer),
                // Pointers that are mangled, masked or chosen.
                Mnemonic::Xor | Mnemonic::Ror | Mnemonic::Rol | Mnemonic::And | Mnemonic::Not
                    if insn.op0_register() == wanted => {}
                // A table of halves of pointers.
                Mnemonic::Mov if insn.op1_kind() == OpKind::Memory => return made(Sum::Other),
                // One place, which is a target by itself.
                Mnemonic::Mov if insn.op1_kind() != OpKind::Register => return made(Sum::Pointer),
                Mnemonic::Lea if insn.memory_base() == Register::RIP => return made(Sum::Pointer),
                _ if insn.mnemonic() == Mnemonic::Add || insn.mnemonic() == Mnemonic::Lea => {
                    return self.parts(code, number + 1, &insn);
                }
                _ if is_choice(&insn) => return made(Sum::Unknown),
                _ => return made(Sum::Other),
            }
        }
        // The caller gave it.
        Made { sum: Sum::Pointer, from: self.first() }
    }

    /// What a sum's parts are; `behind` instructions come after it.
    fn parts(&self, code: &Code<'_>, behind: usize, sum: &Instruction) -> Made {
        let mut from = sum.ip();
        let parts = match sum.mnemonic() {
            Mnemonic::Add if sum.op1_kind() == OpKind::Memory => return Made { sum: Sum::Other, from },
            Mnemonic::Add => [sum.op0_register(), sum.op1_register()],
            _ if sum.memory_index_scale() != 1 || sum.memory_displacement64() != 0 => {
                return Made { sum: Sum::Other, from };
            }
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
                from = insn.ip();
                let source = insn.op1_register().full_register();
                let is_moved = matches!(insn.mnemonic(), Mnemonic::Mov | Mnemonic::Movsxd)
                    && insn.op1_kind() == OpKind::Register;
                match insn.code() {
                    _ if is_moved => *part = source,
                    Op::Cdqe => {}
                    Op::Movsxd_r64_rm32 | Op::Mov_r32_rm32 => (*part, sum) = (Register::None, Sum::Words),
                    Op::Lea_r64_m if insn.memory_base() == Register::RIP => *part = Register::None,
                    _ => return Made { sum: Sum::Other, from },
                }
            }
        }
        Made { sum, from }
    }
}

/// What code jumps by to which others jump or which they call.
enum Thunk {
    /// A register as they left it.
    Given(Register),
    /// Something that it adds up itself.
    Sum,
}

/// Whether code begins with a jump to a register, or with a call as retpolines do: a cheap guess, never wrongly no.
fn may_be_thunk(bytes: &[u8]) -> bool {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    let bytes = bytes.strip_prefix(&ENDBR64).unwrap_or(bytes);
    // jmp or call; their prefixes; lfence and nops.
    matches!(bytes, [0xff | 0xe8 | 0xf2 | 0xf3 | 0x3e | 0x0f | 0x90 | 0x66, ..] | [0x40..=0x4f, 0xff, ..])
}

/// What the code at `to` jumps by, if it does little else; what it has loaded as a whole is looked at where it stands.
fn thunk(code: &Code<'_>, to: u64) -> Option<Thunk> {
    let (mut at, mut is_sum, mut pushed) = (to, false, None);
    let made = |register, is_sum| Some(if is_sum { Thunk::Sum } else { Thunk::Given(register) });
    for _ in 0..THUNK_INSNS {
        let insn = decode_raw(code.from_addr(at), at)?;
        at = insn.next_ip();
        let is_near = insn.op0_kind() == OpKind::NearBranch64;
        match insn.flow_control() {
            FlowControl::Next => {}
            // As a retpoline begins: its return address is put in another's place.
            FlowControl::Call if is_near && insn.near_branch64().wrapping_sub(at) <= RETPOLINE_BYTES => {
                at = insn.near_branch64();
                continue;
            }
            FlowControl::UnconditionalBranch if is_near => {
                at = insn.near_branch64();
                continue;
            }
            FlowControl::IndirectBranch if insn.op0_kind() == OpKind::Register => {
                return made(insn.op0_register(), is_sum);
            }
            FlowControl::Return => return made(pushed?, is_sum),
            _ => return None,
        }
        let is_top = insn.memory_base() == Register::RSP && insn.memory_displacement64() == 0;
        match insn.mnemonic() {
            Mnemonic::Nop | Mnemonic::Endbr64 | Mnemonic::Lfence | Mnemonic::Pause => {}
            Mnemonic::Push if insn.op0_register().is_gpr64() => pushed = Some(insn.op0_register()),
            Mnemonic::Mov if is_top && insn.op1_register().is_gpr64() => pushed = Some(insn.op1_register()),
            Mnemonic::Lea | Mnemonic::Add if insn.op0_register() == Register::RSP => {}
            Mnemonic::Add
            | Mnemonic::Sub
            | Mnemonic::Lea
            | Mnemonic::Movsxd
            | Mnemonic::Movzx
            | Mnemonic::Movsx
            | Mnemonic::Shl
                if insn.op0_register().is_gpr() =>
            {
                is_sum = true;
            }
            _ => return None,
        }
    }
    None
}

/// One of two registers.
fn is_choice(insn: &Instruction) -> bool {
    insn.condition_code() != ConditionCode::None && insn.op0_register().is_gpr64()
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
        match insn.code() {
            Op::Lea_r64_m if insn.memory_base() == Register::RIP => found(insn.memory_displacement64()),
            // A call of the next instruction is how code that cannot name rip asks for it.
            Op::Call_rel32_64 if insn.near_branch64() == at => found(at),
            _ => {}
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
