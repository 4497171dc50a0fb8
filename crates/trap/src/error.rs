//! Why a probe could not be placed.
//!
//! For:     embedders.
//! State:   plain values.
//! Context: target.
//! Keeps:   nothing.
//! Checked: `tests/engine.rs`.

use insn::{NoSlot, Unreachable};
use probe::RegisterError;
use std::fmt;
use text::xol::AreaError;

/// Why there is no probe, or no engine.
#[derive(Debug)]
#[non_exhaustive]
pub enum ProbeError {
    /// The address is in no private, executable mapping that cannot be written.
    NotText(u64),
    /// The instruction cannot run out of line.
    Refused(u64, NoSlot),
    /// No slot can reach what the instruction refers to.
    Unreachable(Unreachable),
    /// There is no memory for slots.
    Area(AreaError),
    /// The registry refused.
    Register(RegisterError),
    /// The engine runs already.
    Running,
    /// A call of the system failed.
    System(std::io::Error),
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProbeError::NotText(at) => write!(f, "{at:#x} is not in private text"),
            ProbeError::Refused(at, what) => write!(f, "at {at:#x} stands {what}"),
            ProbeError::Unreachable(what) => what.fmt(f),
            ProbeError::Area(what) => what.fmt(f),
            ProbeError::Register(what) => what.fmt(f),
            ProbeError::Running => f.write_str("the engine runs already"),
            ProbeError::System(what) => what.fmt(f),
        }
    }
}

impl std::error::Error for ProbeError {}

impl From<RegisterError> for ProbeError {
    fn from(error: RegisterError) -> ProbeError {
        ProbeError::Register(error)
    }
}

impl From<std::io::Error> for ProbeError {
    fn from(error: std::io::Error) -> ProbeError {
        ProbeError::System(error)
    }
}
