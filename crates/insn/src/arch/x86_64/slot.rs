//! One instruction as the content of an out-of-line slot.
//!
//! For:     `text::xol`, which copies it into a slot, and sends threads out of slots when a signal comes.
//! State:   the bytes as if the slot stood where the instruction does, and which of them depend on the slot.
//! Context: `SlotCode::of`: control. `place` and `at`: hit; no decoding, no allocation.
//! Keeps:   G1 run in a slot, the bytes do what the instruction does, and then jump to the release routine with the
//!          slot's number and the address to go on at on the stack, below the red zone. No flag is changed.
//!          G2 `at` says for each byte whether the instruction has had its effect, and how to get out.
//!          G3 what does not fall through is turned into a push of where it goes: a jump, a return, a call.
//! Checked: tests/emulate (each class run in a slot, and stopped before each of its instructions).
//! Source:  the kernel's fix-up classes for uprobes. Departs: no step trap, and no scratch register for operands
//!          relative to rip: slots lie within 2 GiB of the code.

use iced_x86::{Code as Op, Decoder, DecoderOptions, Encoder, Instruction, Mnemonic, OpKind, Register};

use super::no_slot::{NoSlot, undecodable};
use crate::relocate::Unreachable;

/// The most bytes that the content of a slot takes.
pub const SLOT_CODE_BYTES: usize = 104;
/// The red zone below the stack pointer.
const RED_ZONE: i32 = 128;
/// What lies on the stack when the release routine is entered, below the red zone: number and address.
pub const RELEASE_FRAME_BYTES: i32 = 16;

/// Where a thread goes on once the instruction has had its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// At this address.
    At(u64),
    /// At the address in the eight bytes this far above the stack pointer.
    OnStack(u16),
}

/// What the program counter in a slot stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// The instruction has had no effect; the program's stack pointer is `shift` higher.
    Before {
        /// In bytes.
        shift: i32,
    },
    /// It has had its effect.
    After {
        /// The program's stack pointer is this much higher.
        shift: i32,
        /// Where the thread goes on.
        resume: Resume,
        /// The return address of a call, to be stored at the program's stack pointer: that may not be done.
        return_to: Option<u64>,
    },
}

/// The content of a slot for one instruction.
#[derive(Clone, Copy, Debug)]
pub struct SlotCode {
    bytes: [u8; SLOT_CODE_BYTES],
    len: u8,
    addr: u64,
    /// Offsets of 32-bit distances to somewhere outside.
    far: List,
    /// Offsets of the slot's number, four bytes.
    numbers: List,
    /// Offsets of the distance to the release routine, each the last four bytes of its jump.
    exits: List,
    marks: [(u8, At); 16],
    marked: u8,
}

#[derive(Clone, Copy, Debug, Default)]
struct List {
    at: [u8; 2],
    len: u8,
}

impl List {
    fn push(&mut self, at: usize) {
        self.at[usize::from(self.len)] = at as u8;
        self.len += 1;
    }

    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.at[..usize::from(self.len)].iter().map(|at| usize::from(*at))
    }
}

impl SlotCode {
    /// The content of a slot for the first instruction in `bytes`, which stands at `addr`.
    ///
    /// # Errors
    /// The instruction cannot run out of line.
    pub fn of(bytes: &[u8], addr: u64) -> Result<SlotCode, NoSlot> {
        let insn = super::decode_raw(bytes, addr).ok_or_else(|| undecodable(bytes))?;
        let bytes = &bytes[..insn.len()];
        if let Some(what) = super::forbidden(&insn, bytes) {
            return Err(NoSlot::Forbidden(what));
        }
        if insn.code() == Op::Syscall {
            return Err(NoSlot::SystemCall);
        }
        let mut code = SlotCode::empty(addr);
        code.fill(&insn, bytes)?;
        Ok(code)
    }

    fn empty(addr: u64) -> SlotCode {
        SlotCode {
            bytes: [0xcc; SLOT_CODE_BYTES],
            len: 0,
            addr,
            far: List::default(),
            numbers: List::default(),
            exits: List::default(),
            marks: [(0, At::Before { shift: 0 }); 16],
            marked: 0,
        }
    }

    fn fill(&mut self, insn: &Instruction, bytes: &[u8]) -> Result<(), NoSlot> {
        use Mnemonic::{Jecxz, Jrcxz, Loop, Loope, Loopne};
        let next = insn.next_ip();
        match insn.code() {
            Op::Retnq | Op::Retnq_imm16 => self.ret(insn),
            Op::Jmp_rm64 => return self.jump(*insn),
            Op::Call_rm64 => return self.call_operand(*insn, next),
            Op::Call_rel32_64 => self.call(insn.near_branch64(), next),
            Op::Jmp_rel8_64 | Op::Jmp_rel32_64 => {
                let to = insn.near_branch64();
                self.leave_to(to, After { shift: 0, resume: Resume::At(to), return_to: None });
            }
            _ if matches!(insn.mnemonic(), Loop | Loope | Loopne | Jecxz | Jrcxz) => {
                self.branch(&bytes[..bytes.len() - 1], insn.near_branch64(), next);
            }
            // A conditional jump by its short form, which tests the same.
            _ if insn.op0_kind() == OpKind::NearBranch64 => {
                let short = [0x70 + (insn.condition_code() as u8 - 1)];
                self.branch(&short, insn.near_branch64(), next);
            }
            _ => self.verbatim(insn, bytes),
        }
        Ok(())
    }

    fn verbatim(&mut self, insn: &Instruction, bytes: &[u8]) {
        let next = insn.next_ip();
        self.mark(At::Before { shift: 0 });
        if insn.is_ip_rel_memory_operand() {
            let mut decoder = Decoder::with_ip(64, bytes, self.addr, DecoderOptions::NONE);
            let at = decoder.decode();
            self.far.push(decoder.get_constant_offsets(&at).displacement_offset());
        }
        self.put(bytes);
        self.leave_to(next, After { shift: 0, resume: Resume::At(next), return_to: None });
    }

    /// Copies the content for slot `number` at `slot`, whose release routine is at `release`; its length.
    ///
    /// # Errors
    /// What the slot cannot reach.
    pub fn place(
        &self,
        slot: u64,
        number: u32,
        release: u64,
        into: &mut [u8; SLOT_CODE_BYTES],
    ) -> Result<usize, Unreachable> {
        *into = self.bytes;
        let moved = self.addr.wrapping_sub(slot);
        for at in self.far.iter() {
            let old = i64::from(i32::from_le_bytes(four(into, at)));
            let to = self.addr.wrapping_add(at as u64 + 4).wrapping_add_signed(old);
            set(into, at, distance(old.wrapping_add(moved as i64), slot, to)?);
        }
        for at in self.numbers.iter() {
            set(into, at, number.to_le_bytes());
        }
        for at in self.exits.iter() {
            let end = slot.wrapping_add(at as u64 + 4);
            set(into, at, distance(release.wrapping_sub(end) as i64, slot, release)?);
        }
        Ok(usize::from(self.len))
    }

    /// The address of the instruction.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// What a program counter `offset` bytes into the slot stands for.
    pub fn at(&self, offset: u8) -> At {
        let marks = &self.marks[..usize::from(self.marked)];
        marks.iter().rev().find(|(from, _)| *from <= offset).map_or(At::Before { shift: 0 }, |mark| mark.1)
    }
}

fn four(bytes: &[u8], at: usize) -> [u8; 4] {
    [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]
}

fn set(bytes: &mut [u8], at: usize, value: [u8; 4]) {
    bytes[at..at + 4].copy_from_slice(&value);
}

fn distance(far: i64, from: u64, to: u64) -> Result<[u8; 4], Unreachable> {
    i32::try_from(far).map(i32::to_le_bytes).map_err(|_| Unreachable { from, to })
}

/// The fields of [`At::After`].
#[derive(Clone, Copy)]
struct After {
    shift: i32,
    resume: Resume,
    return_to: Option<u64>,
}

impl After {
    /// With the stack pointer lower by `by`.
    fn lower(self, by: i32) -> After {
        let resume = match self.resume {
            Resume::OnStack(offset) => Resume::OnStack(offset + by as u16),
            at => at,
        };
        After { shift: self.shift + by, resume, ..self }
    }
}

/// The bytes of each form.
impl SlotCode {
    fn put(&mut self, bytes: &[u8]) {
        let at = usize::from(self.len);
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len() as u8;
    }

    fn mark(&mut self, at: At) {
        self.marks[usize::from(self.marked)] = (self.len, at);
        self.marked += 1;
    }

    fn done(&mut self, after: After) {
        let After { shift, resume, return_to } = after;
        self.mark(At::After { shift, resume, return_to });
    }

    /// lea rsp,[rsp+amount]
    fn move_stack(&mut self, amount: i32) {
        self.put(&[0x48, 0x8d, 0xa4, 0x24]);
        self.put(&amount.to_le_bytes());
    }

    /// Below the red zone: where to go on, the slot's number; jmp release.
    fn leave_to(&mut self, to: u64, after: After) {
        self.done(after);
        self.move_stack(-RED_ZONE);
        self.done(after.lower(RED_ZONE));
        self.push_address(to);
        self.release(after.lower(RED_ZONE + 8));
    }

    /// push imm32; mov dword [rsp+4],imm32
    fn push_address(&mut self, to: u64) {
        self.put(&[0x68]);
        self.put(&(to as u32).to_le_bytes());
        // The second half belongs to the push: neither state differs but by eight bytes of the stack pointer.
        if let (_, At::After { shift, resume, return_to }) = self.marks[usize::from(self.marked) - 1] {
            self.done(After { shift, resume, return_to }.lower(8));
        }
        self.store_word(4, (to >> 32) as u32);
    }

    /// mov dword [rsp+offset],imm32
    fn store_word(&mut self, offset: i32, value: u32) {
        self.put(&[0xc7, 0x84, 0x24]);
        self.put(&offset.to_le_bytes());
        self.put(&value.to_le_bytes());
    }

    /// push number; jmp release. `after` holds before the push.
    fn release(&mut self, after: After) {
        self.done(after);
        self.put(&[0x68]);
        self.numbers.push(usize::from(self.len));
        self.put(&[0; 4]);
        self.done(after.lower(8));
        self.put(&[0xe9]);
        self.exits.push(usize::from(self.len));
        self.put(&[0; 4]);
    }

    /// jcc or loop over the way out of who does not jump.
    fn branch(&mut self, opcode: &[u8], to: u64, next: u64) {
        let after = |to| After { shift: 0, resume: Resume::At(to), return_to: None };
        self.mark(At::Before { shift: 0 });
        self.put(opcode);
        self.put(&[0]);
        let jump_end = self.len;
        self.leave_to(next, after(next));
        self.bytes[usize::from(jump_end) - 1] = self.len - jump_end;
        self.leave_to(to, after(to));
    }

    /// The return address is moved to where the release routine's own return expects it.
    fn ret(&mut self, insn: &Instruction) {
        let more = if insn.op_count() == 1 { i32::from(insn.immediate16()) } else { 0 };
        self.mark(At::Before { shift: 0 });
        self.move_stack(-RED_ZONE);
        self.mark(At::Before { shift: RED_ZONE });
        self.put(&[0xff, 0xb4, 0x24]); // push qword [rsp+128]
        self.put(&RED_ZONE.to_le_bytes());
        self.mark(At::Before { shift: RED_ZONE + 8 });
        self.put(&[0x8f, 0x84, 0x24]); // pop qword [rsp+more], with rsp as it is after the pop
        self.put(&more.to_le_bytes());
        let resume = Resume::OnStack(more as u16);
        self.done(After { shift: RED_ZONE + 8 + more, resume, return_to: None });
        self.move_stack(more);
        self.release(After { shift: RED_ZONE + 8, resume: Resume::OnStack(0), return_to: None });
    }

    /// lower the stack; push operand.
    fn push_operand(&mut self, mut insn: Instruction, lower: i32) -> Result<(), NoSlot> {
        self.mark(At::Before { shift: 0 });
        self.move_stack(-lower);
        self.mark(At::Before { shift: lower });
        insn.set_code(Op::Push_rm64);
        if matches!(insn.memory_base(), Register::RSP | Register::ESP) {
            insn.set_memory_displacement64(insn.memory_displacement64().wrapping_add(lower as u64));
            insn.set_memory_displ_size(8);
        }
        let here = self.addr.wrapping_add(u64::from(self.len));
        let mut encoder = Encoder::new(64);
        encoder.encode(&insn, here).map_err(|_| NoSlot::Unencodable)?;
        if insn.is_ip_rel_memory_operand() {
            let at = encoder.get_constant_offsets().displacement_offset();
            self.far.push(usize::from(self.len) + at);
        }
        self.put(&encoder.take_buffer());
        Ok(())
    }

    fn jump(&mut self, insn: Instruction) -> Result<(), NoSlot> {
        // push rsp would push the lowered one.
        if insn.op0_kind() == OpKind::Register && insn.op0_register() == Register::RSP {
            return Err(NoSlot::Unencodable);
        }
        self.push_operand(insn, RED_ZONE)?;
        self.release(After { shift: RED_ZONE + 8, resume: Resume::OnStack(0), return_to: None });
        Ok(())
    }

    /// Operand pushed below the red zone (it faults here or not at all), then the return address stored.
    fn call_operand(&mut self, insn: Instruction, return_to: u64) -> Result<(), NoSlot> {
        let lower = RED_ZONE + 8;
        self.push_operand(insn, lower)?;
        self.mark(At::Before { shift: lower + 8 });
        self.store_word(lower, return_to as u32);
        // The return address lies at the program's stack pointer once the call is done.
        let after = After { shift: lower, resume: Resume::OnStack(0), return_to: Some(return_to) };
        self.done(after);
        self.store_word(lower + 4, (return_to >> 32) as u32);
        self.release(After { return_to: None, ..after });
        Ok(())
    }

    /// A direct call: the return address first, which faults as the call does.
    fn call(&mut self, to: u64, return_to: u64) {
        self.mark(At::Before { shift: 0 });
        self.put(&[0x68]);
        self.put(&(return_to as u32).to_le_bytes());
        let after = After { shift: 0, resume: Resume::At(to), return_to: Some(return_to) };
        self.done(after);
        self.store_word(4, (return_to >> 32) as u32);
        self.leave_to(to, After { return_to: None, ..after });
    }
}
