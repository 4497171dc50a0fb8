//! Why a program is not one.
//!
//! For:     [`Program::new`](crate::Program::new).
//! State:   none.
//! Context: control.
//! Keeps:   each refusal names what was found.
//! Checked: `tests/semantics.rs`.

use std::fmt;

/// What an instruction or a program has that eBPF does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The bytes are not whole instructions, or there are none.
    NotWhole {
        /// Bytes given.
        len: usize,
    },
    /// More instructions than a program may have.
    TooLong {
        /// Instructions given.
        insns: usize,
    },
    /// No instruction has this opcode with these fields.
    NoSuchInstruction {
        /// Its first byte.
        opcode: u8,
    },
    /// A register above r10.
    NoSuchRegister {
        /// Its number.
        number: u8,
    },
    /// A field that must be zero is not.
    ReservedField {
        /// The instruction's first byte.
        opcode: u8,
    },
    /// r10 is written.
    FramePointerWritten,
    /// A jump or a call leads out of the program or into a wide immediate.
    NoSuchPlace {
        /// The instruction that it would lead to.
        to: i64,
    },
    /// The last instruction lets control fall off the end.
    NoEnd,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NotWhole { len } => write!(f, "{len} bytes are not whole instructions of 8 bytes"),
            Refusal::TooLong { insns } => {
                write!(f, "{insns} instructions; a program has at most {}", crate::INSNS_MAX)
            }
            Refusal::NoSuchInstruction { opcode } => write!(f, "no instruction has opcode {opcode:#04x}"),
            Refusal::NoSuchRegister { number } => write!(f, "there is no register r{number}"),
            Refusal::ReservedField { opcode } => {
                write!(f, "a field of opcode {opcode:#04x} that must be zero is not")
            }
            Refusal::FramePointerWritten => write!(f, "r10, the frame pointer, is written"),
            Refusal::NoSuchPlace { to } => write!(f, "a jump leads to {to}, where no instruction begins"),
            Refusal::NoEnd => write!(f, "control falls off the end"),
        }
    }
}

impl std::error::Error for Refusal {}

/// A refusal, and the instruction that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The instruction's number.
    pub at: usize,
    /// Why.
    pub why: Refusal,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instruction {}: {}", self.at, self.why)
    }
}

impl std::error::Error for Refused {}
