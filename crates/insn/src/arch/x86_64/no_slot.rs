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
            NoSlot::SystemCall => f.write_str("a system call"),
            NoSlot::Unencodable => f.write_str("a jump to the stack pointer"),
        }
    }
}

impl std::error::Error for NoSlot {}
