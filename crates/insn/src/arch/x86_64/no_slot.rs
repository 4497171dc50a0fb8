//! Why an instruction cannot run out of line.
//!
//! For:     `SlotCode::of`.
//! State:   plain values.
//! Context: control.
//! Keeps:   N1 what the kernel refuses to probe has the kernel's error.
//! Checked: tests/emulate `what_the_kernel_refuses_is_refused_with_its_error`.

use crate::reason::Forbidden;

/// Why an instruction cannot run out of line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoSlot {
    /// It cannot be probed at all.
    Forbidden(Forbidden),
    /// An opcode that 64-bit mode has not.
    Removed,
    /// A system call: it may never return, or return twice.
    SystemCall,
    /// Its operand has no other form: a jump to the stack pointer, which is emulated.
    Unencodable,
}

impl NoSlot {
    /// The kernel's error for such an instruction: ENOEXEC for bytes that are none, else ENOTSUPP.
    pub fn errno(self) -> i32 {
        match self {
            NoSlot::Forbidden(Forbidden::Undecodable) => 8,
            _ => 524,
        }
    }
}

impl std::fmt::Display for NoSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NoSlot::Forbidden(what) => what.fmt(f),
            NoSlot::Removed => f.write_str("an instruction that 64-bit mode does not have"),
            NoSlot::SystemCall => f.write_str("a system call"),
            NoSlot::Unencodable => f.write_str("a jump to the stack pointer"),
        }
    }
}

impl std::error::Error for NoSlot {}

/// Why bytes that do not decode are refused: the kernel tells opcodes that 64-bit mode has not from those that are none.
pub(super) fn undecodable(bytes: &[u8]) -> NoSlot {
    const PREFIXES: [u8; 11] = [0x66, 0x67, 0xf2, 0xf3, 0xf0, 0x2e, 0x36, 0x3e, 0x26, 0x64, 0x65];
    let opcode = bytes.iter().find(|byte| !PREFIXES.contains(byte) && !matches!(byte, 0x40..=0x4f));
    match opcode {
        Some(0x06 | 0x07 | 0x0e | 0x16 | 0x17 | 0x1e | 0x1f | 0x27 | 0x2f | 0x37 | 0x3f | 0x60..=0x62) => {
            NoSlot::Removed
        }
        Some(0x82 | 0x9a | 0xce | 0xd4..=0xd6 | 0xea) => NoSlot::Removed,
        _ => NoSlot::Forbidden(Forbidden::Undecodable),
    }
}
