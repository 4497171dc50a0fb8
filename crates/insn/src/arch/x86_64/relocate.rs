//! Instructions written anew for another address.
//!
//! For:     running what a jump displaced, as if it still stood where it was.
//! State:   the bytes emitted so far.
//! Context: control.
//! Keeps:   G1 what does not depend on its address is copied byte for byte, prefixes included.
//!          G2 a call pushes the original return address, so exceptions and backtraces pass. A memory operand
//!          that faults does so before the stack moves.
//!          G3 no register and no flag is used that the original does not use; below the stack pointer, at most
//!          the 16 bytes that the callee owns.
//!          G4 nops and endbr64 leave no code: the copy is reached by direct jumps only.
//! Checked: tests/differential, each class executed beside the original; relocate tests.
//! Source:  feasibility 4.1. Departs: `push imm32` instead of a `lea`, so that a stack overflow faults with
//!          the stack pointer still in place.

use iced_x86::{Code as Op, Decoder, DecoderOptions, Encoder, Instruction, Mnemonic, OpKind, Register};

use crate::code::Insn;
use crate::relocate::{Copy, Unreachable};

/// The most bytes that the copy of `insn` takes, wherever it goes.
pub(crate) fn len_bound(insn: &Insn) -> usize {
    let len = insn.len_bytes();
    let Some(raw) = super::decode_raw(insn.bytes(), insn.addr) else { return len };
    match kind(&raw) {
        Kind::Nothing => 0,
        Kind::Jump => 5,
        Kind::Branch => 6,
        Kind::Loop => len + 2 + 5,
        Kind::Call => RETURN_ADDRESS_BYTES + 5,
        Kind::CallRegister => RETURN_ADDRESS_BYTES + len,
        // Two operands, each at most 4 bytes longer, and either two or one and a half address stores.
        Kind::CallMemory => 2 * (len + 4) + 20,
        Kind::RipOperand | Kind::Verbatim => len,
    }
}

/// push imm32; mov dword [rsp+4], imm32.
const RETURN_ADDRESS_BYTES: usize = 5 + 8;

enum Kind {
    Nothing,
    Jump,
    Branch,
    Loop,
    Call,
    CallRegister,
    CallMemory,
    RipOperand,
    Verbatim,
}

fn kind(insn: &Instruction) -> Kind {
    match insn.code() {
        Op::Jmp_rel8_64 | Op::Jmp_rel32_64 => return Kind::Jump,
        Op::Call_rel32_64 => return Kind::Call,
        Op::Call_rm64 if insn.op0_kind() == OpKind::Register => return Kind::CallRegister,
        Op::Call_rm64 => return Kind::CallMemory,
        _ => {}
    }
    match insn.mnemonic() {
        Mnemonic::Nop | Mnemonic::Endbr64 => Kind::Nothing,
        _ if is_loop(insn) => Kind::Loop,
        _ if insn.op0_kind() == OpKind::NearBranch64 => Kind::Branch,
        _ if insn.is_ip_rel_memory_operand() => Kind::RipOperand,
        _ => Kind::Verbatim,
    }
}

/// Appends the copy of the instruction `offset` bytes behind the site, in a process that is mapped `bias` above its
/// image.
pub(crate) fn relocate(insn: &Insn, offset: u8, bias: u64, out: &mut Copy) -> Result<(), Unreachable> {
    let mut decoder = Decoder::with_ip(64, insn.bytes(), insn.addr, DecoderOptions::NONE);
    let raw = decoder.decode();
    match kind(&raw) {
        Kind::Nothing => Ok(()),
        Kind::Jump => out.jump(target(&raw, bias)),
        Kind::Branch => out.branch(&raw, target(&raw, bias)),
        Kind::Loop => out.loop_branch(insn, offset, target(&raw, bias)),
        Kind::Call => out.call(insn.end().wrapping_add(bias), target(&raw, bias)),
        Kind::CallRegister => out.call_register(insn.end().wrapping_add(bias), raw),
        Kind::CallMemory => out.call_memory(insn.end().wrapping_add(bias), raw, bias),
        Kind::Verbatim => {
            out.put(insn.bytes());
            Ok(())
        }
        Kind::RipOperand => {
            let at = decoder.get_constant_offsets(&raw).displacement_offset();
            let operand = raw.memory_displacement64().wrapping_add(bias);
            let displacement = out.displacement(out.here().wrapping_add(raw.len() as u64), operand)?;
            let start = out.bytes.len();
            out.put(insn.bytes());
            out.bytes[start + at..start + at + 4].copy_from_slice(&displacement);
            Ok(())
        }
    }
}

fn target(insn: &Instruction, bias: u64) -> u64 {
    insn.near_branch64().wrapping_add(bias)
}

/// loop, loope, loopne, jecxz, jrcxz: they exist with an 8-bit displacement only.
fn is_loop(insn: &Instruction) -> bool {
    use Mnemonic::{Jecxz, Jrcxz, Loop, Loope, Loopne};
    matches!(insn.mnemonic(), Jecxz | Jrcxz | Loop | Loope | Loopne)
}

impl Copy {
    /// jmp rel32.
    pub(crate) fn jump(&mut self, to: u64) -> Result<(), Unreachable> {
        let displacement = self.displacement(self.here().wrapping_add(5), to)?;
        self.put(&[0xe9]);
        self.put(&displacement);
        Ok(())
    }

    /// jcc rel32.
    fn branch(&mut self, insn: &Instruction, to: u64) -> Result<(), Unreachable> {
        let displacement = self.displacement(self.here().wrapping_add(6), to)?;
        // iced numbers the conditions from 1 in the order of their encodings.
        self.put(&[0x0f, 0x80 + (insn.condition_code() as u8 - 1)]);
        self.put(&displacement);
        Ok(())
    }

    /// loop taken; jmp past; taken: jmp rel32; past.
    ///
    /// Prefixes stay: a rep before loopne changes what it does on AMD (seen on Zen, 2026-11).
    fn loop_branch(&mut self, insn: &Insn, offset: u8, to: u64) -> Result<(), Unreachable> {
        self.put(&insn.bytes()[..insn.len_bytes() - 1]);
        self.put(&[2]);
        self.begin(offset + insn.len_bytes() as u8);
        self.put(&[0xeb, 5]);
        self.take(offset, to);
        self.jump(to)
    }

    /// The return address goes onto the stack in two halves: no register is free.
    fn push_return_address(&mut self, to: u64) {
        self.put(&[0x68]);
        self.put(&(to as u32).to_le_bytes());
        self.shift_stack();
        if to as i32 as i64 as u64 != to {
            self.put(&[0xc7, 0x44, 0x24, 0x04]);
            self.put(&((to >> 32) as u32).to_le_bytes());
        }
    }

    fn call(&mut self, return_to: u64, callee: u64) -> Result<(), Unreachable> {
        self.push_return_address(return_to);
        self.jump(callee)
    }

    fn call_register(&mut self, return_to: u64, mut insn: Instruction) -> Result<(), Unreachable> {
        self.push_return_address(return_to);
        insn.set_code(Op::Jmp_rm64);
        self.encode(&insn)
    }

    /// push operand (it faults here or not at all); overwrite it with the return address; jmp operand.
    fn call_memory(&mut self, return_to: u64, mut insn: Instruction, bias: u64) -> Result<(), Unreachable> {
        if insn.is_ip_rel_memory_operand() {
            insn.set_memory_displacement64(insn.memory_displacement64().wrapping_add(bias));
        }
        insn.set_code(Op::Push_rm64);
        self.encode(&insn)?;
        self.shift_stack();
        if may_be_below_stack(&insn) {
            return self.call_pushed(return_to);
        }
        self.put(&[0xc7, 0x04, 0x24]);
        self.put(&(return_to as u32).to_le_bytes());
        self.put(&[0xc7, 0x44, 0x24, 0x04]);
        self.put(&((return_to >> 32) as u32).to_le_bytes());
        if is_stack_pointer(insn.memory_base()) {
            insn.set_memory_displacement64(insn.memory_displacement64().wrapping_add(8));
            insn.set_memory_displ_size(8);
        }
        insn.set_code(Op::Jmp_rm64);
        self.encode(&insn)
    }

    /// With the callee pushed: push it again, put the return address under it, and return into it.
    ///
    /// Slower (the return is mispredicted), but right where the operand lies in the slot that a call overwrites.
    fn call_pushed(&mut self, return_to: u64) -> Result<(), Unreachable> {
        self.commit();
        self.put(&[0xff, 0x34, 0x24]);
        self.shift_stack();
        self.put(&[0xc7, 0x44, 0x24, 0x08]);
        self.put(&(return_to as u32).to_le_bytes());
        self.put(&[0xc7, 0x44, 0x24, 0x0c]);
        self.put(&((return_to >> 32) as u32).to_le_bytes());
        self.put(&[0xc3]);
        Ok(())
    }

    fn encode(&mut self, insn: &Instruction) -> Result<(), Unreachable> {
        let here = self.here();
        let mut encoder = Encoder::new(64);
        match encoder.encode(insn, here) {
            Ok(_) => {
                self.put(&encoder.take_buffer());
                Ok(())
            }
            // The one thing that can fail for an instruction that was decoded: a rip-relative operand.
            Err(_) => Err(Unreachable { from: here, to: insn.memory_displacement64() }),
        }
    }
}

fn is_stack_pointer(register: Register) -> bool {
    matches!(register, Register::RSP | Register::ESP)
}

/// Whether the operand can be the eight bytes below the stack pointer, where a call stores.
///
/// Bases other than rsp and rbp are taken not to point below the stack.
fn may_be_below_stack(insn: &Instruction) -> bool {
    let is_negative = (insn.memory_displacement64() as i64) < 0;
    match insn.memory_base() {
        Register::RSP | Register::ESP => is_negative || insn.memory_index() != Register::None,
        Register::RBP | Register::EBP => is_negative || insn.memory_index() != Register::None,
        _ => false,
    }
}
