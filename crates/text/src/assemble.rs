//! The few instructions that trampolines are made of.
//!
//! For:     trampoline.rs; one function an instruction, so that each encoding stands once.
//! State:   the bytes so far and the address of the first.
//! Context: control.
//! Keeps:   E1 what is emitted is what the name says.
//! Checked: `trampoline/tests.rs` disassembles every trampoline with a decoder that is not ours.

use insn::Unreachable;

/// A general register by its number in instruction encodings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reg(pub u8);

pub(crate) const RAX: Reg = Reg(0);
pub(crate) const RCX: Reg = Reg(1);
pub(crate) const RDX: Reg = Reg(2);
pub(crate) const RBX: Reg = Reg(3);
pub(crate) const RSI: Reg = Reg(6);
pub(crate) const RDI: Reg = Reg(7);

/// Bytes under construction.
pub(crate) struct Code {
    pub bytes: Vec<u8>,
    pub at: u64,
}

impl Code {
    pub fn new(at: u64) -> Code {
        Code { bytes: Vec::with_capacity(256), at }
    }

    pub fn pos(&self) -> usize {
        self.bytes.len()
    }

    pub fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub fn pad_to(&mut self, pos: usize) {
        debug_assert!(self.pos() <= pos);
        self.bytes.resize(pos, 0xcc);
    }

    /// Writes an opcode whose last four bytes are the distance from its end to `target`.
    fn relative(&mut self, opcode: &[u8], target: u64) -> Result<(), Unreachable> {
        self.put(opcode);
        let next = self.at + self.pos() as u64 + 4;
        self.put(&distance(next, target)?.to_le_bytes());
        Ok(())
    }

    /// `mov reg, fs:[offset]`
    pub fn load_fs(&mut self, reg: Reg, offset: i32) {
        self.put(&[0x64, 0x48, 0x8b, reg.0 << 3 | 4, 0x25]);
        self.put(&offset.to_le_bytes());
    }

    /// `cmp reg, fs:[offset]`
    pub fn compare_fs(&mut self, reg: Reg, offset: i32) {
        self.put(&[0x64, 0x48, 0x3b, reg.0 << 3 | 4, 0x25]);
        self.put(&offset.to_le_bytes());
    }

    /// `not reg`, which leaves the flags.
    pub fn not(&mut self, reg: Reg) {
        self.put(&[0x48, 0xf7, 0xd0 | reg.0]);
    }

    /// `lea dst, [dst + other + 1]`: `dst - x` if other holds `not x`.
    pub fn lea_difference(&mut self, dst: Reg, other: Reg) {
        self.put(&[0x48, 0x8d, 0x44 | dst.0 << 3, other.0 << 3 | dst.0, 1]);
    }

    /// `mov reg, [rip + target]`
    pub fn load_rip(&mut self, reg: Reg, target: u64) -> Result<(), Unreachable> {
        self.relative(&[0x48, 0x8b, reg.0 << 3 | 5], target)
    }

    /// `lea rsp, [rsp + amount]`, which leaves the flags.
    pub fn add_rsp(&mut self, amount: i32) {
        match i8::try_from(amount) {
            Ok(small) => self.put(&[0x48, 0x8d, 0x64, 0x24, small as u8]),
            Err(_) => {
                self.put(&[0x48, 0x8d, 0xa4, 0x24]);
                self.put(&amount.to_le_bytes());
            }
        }
    }

    /// `mov [rsp + offset], reg`
    pub fn store_rsp(&mut self, offset: u16, reg: Reg) {
        self.rsp_slot(0x89, offset, reg);
    }

    /// `mov reg, [rsp + offset]`
    pub fn load_rsp(&mut self, reg: Reg, offset: u16) {
        self.rsp_slot(0x8b, offset, reg);
    }

    fn rsp_slot(&mut self, opcode: u8, offset: u16, reg: Reg) {
        let rex = 0x48 | (reg.0 >> 3) << 2;
        let field = (reg.0 & 7) << 3 | 4;
        if offset < 128 {
            self.put(&[rex, opcode, 0x40 | field, 0x24, offset as u8]);
        } else {
            self.put(&[rex, opcode, 0x80 | field, 0x24]);
            self.put(&u32::from(offset).to_le_bytes());
        }
    }

    pub fn push(&mut self, reg: Reg) {
        self.short_form(0x50, reg);
    }

    pub fn pop(&mut self, reg: Reg) {
        self.short_form(0x58, reg);
    }

    fn short_form(&mut self, opcode: u8, reg: Reg) {
        if reg.0 >= 8 {
            self.put(&[0x41]);
        }
        self.put(&[opcode + (reg.0 & 7)]);
    }

    /// `lahf; seto al`: the arithmetic flags into ax.
    pub fn flags_to_ax(&mut self) {
        self.put(&[0x9f, 0x0f, 0x90, 0xc0]);
    }

    /// `add al, 127; sahf`: the arithmetic flags back from ax.
    pub fn flags_from_ax(&mut self) {
        self.put(&[0x04, 0x7f, 0x9e]);
    }

    /// `mov reg, value`, the lower half; the upper half becomes 0.
    pub fn set_32(&mut self, reg: Reg, value: u32) {
        self.put(&[0xb8 | reg.0]);
        self.put(&value.to_le_bytes());
    }

    /// `mov rax, value`
    pub fn set_rax(&mut self, value: u64) {
        self.put(&[0x48, 0xb8]);
        self.put(&value.to_le_bytes());
    }

    /// `test rax, rax`
    pub fn test_rax(&mut self) {
        self.put(&[0x48, 0x85, 0xc0]);
    }

    /// A short branch with this opcode to a position of this code, behind or ahead.
    pub fn short(&mut self, opcode: u8, pos: usize) {
        let next = self.pos() as i64 + 2;
        let distance =
            i8::try_from(pos as i64 - next).unwrap_or_else(|_| unreachable!("block layout is fixed"));
        self.put(&[opcode, distance as u8]);
    }

    /// `cmp reg, constant`, or `test`; of the whole register or its lower half.
    pub fn compare_with(&mut self, reg: Reg, is_wide: bool, is_test: bool, constant: i32) {
        let rex = u8::from(is_wide) << 3 | reg.0 >> 3;
        if rex != 0 {
            self.put(&[0x40 | rex]);
        }
        match is_test {
            true => self.put(&[0xf7, 0xc0 | reg.0 & 7]),
            false => self.put(&[0x81, 0xf8 | reg.0 & 7]),
        }
        self.put(&constant.to_le_bytes());
    }

    /// A jump on the condition with this number.
    pub fn jump_if(&mut self, condition: u8, target: u64) -> Result<(), Unreachable> {
        self.relative(&[0x0f, 0x80 | condition], target)
    }

    pub fn jump_if_zero(&mut self, target: u64) -> Result<(), Unreachable> {
        self.relative(&[0x0f, 0x84], target)
    }

    pub fn jump_if_not_above(&mut self, target: u64) -> Result<(), Unreachable> {
        self.relative(&[0x0f, 0x86], target)
    }

    pub fn jump_if_not_zero(&mut self, target: u64) -> Result<(), Unreachable> {
        self.relative(&[0x0f, 0x85], target)
    }

    pub fn jump_to(&mut self, target: u64) -> Result<(), Unreachable> {
        self.relative(&[0xe9], target)
    }

    pub fn call_to(&mut self, target: u64) -> Result<(), Unreachable> {
        self.relative(&[0xe8], target)
    }

    /// Five bytes that do nothing, one instruction.
    pub fn nop5(&mut self) {
        self.put(&[0x0f, 0x1f, 0x44, 0, 0]);
    }
}

/// The 32-bit distance from `next` to `target`.
pub(crate) fn distance(next: u64, target: u64) -> Result<i32, Unreachable> {
    i32::try_from(target.wrapping_sub(next) as i64).map_err(|_| Unreachable { from: next, to: target })
}
