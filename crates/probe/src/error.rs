//! Why something could not be done.
//!
//! For:     callers of the registry.
//! State:   none.
//! Context: target.
//! Keeps:   E1 each situation has the kernel's error number.
//! Checked: `tests/errors.rs`.
//! Source:  kernel `uprobe_register` (v7.0) for situations and numbers.

use crate::SpaceError;
use core::fmt;

const ENOENT: i32 = 2;
const EIO: i32 = 5;
const EINVAL: i32 = 22;
const ENOTSUPP: i32 = 524;
const ENOEXEC: i32 = 8;

/// Why nothing was registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RegisterError {
    /// The consumer has neither a handler nor a return handler.
    NoHandler,
    /// The offset is behind the end of the file.
    BeyondEnd {
        /// What was asked for.
        offset: u64,
        /// The size of the file.
        size: u64,
    },
    /// The offset cannot be that of an instruction.
    Misaligned {
        /// What was asked for.
        offset: u64,
        /// What it must be a multiple of.
        align: u64,
    },
    /// The semaphore's offset is odd.
    RefCtrMisaligned {
        /// What was asked for.
        offset: u64,
    },
    /// The probe exists with another semaphore.
    RefCtrMismatch {
        /// The one that it has.
        registered: Option<u64>,
        /// What was asked for.
        asked: Option<u64>,
    },
    /// The file cannot be read through a mapping.
    Unreadable,
    /// The breakpoint could not be placed; nothing of the registration is left.
    Install(InstallError),
}

/// Why a breakpoint was not placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InstallError {
    /// No byte of the instruction could be read.
    NoBytes {
        /// Where in the file.
        offset: u64,
    },
    /// The instruction is a breakpoint itself.
    IsTrap {
        /// Where in the file.
        offset: u64,
    },
    /// An instruction that cannot be probed.
    NotProbeable {
        /// Where in the file.
        offset: u64,
    },
    /// The semaphore would leave its range.
    RefCtr(RefCtrError),
    /// The address space refused.
    Space(SpaceError),
}

/// A semaphore's value that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RefCtrError {
    /// What it is now.
    pub value: u16,
    /// What was to be added.
    pub delta: i16,
}

/// Why `apply` did nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ApplyError {
    /// The consumer is not on this uprobe.
    NotOnProbe,
    /// The breakpoint could not be placed in some address space.
    Install(InstallError),
}

impl RegisterError {
    /// The kernel's number for the situation.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Unreadable => EIO,
            Self::Install(error) => error.errno(),
            _ => EINVAL,
        }
    }
}

impl InstallError {
    /// The kernel's number for the situation.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoBytes { .. } => EIO,
            Self::IsTrap { .. } => ENOTSUPP,
            Self::NotProbeable { .. } => ENOEXEC,
            Self::RefCtr(_) => EINVAL,
            Self::Space(error) => error.0,
        }
    }
}

impl ApplyError {
    /// The kernel's number for the situation.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotOnProbe => ENOENT,
            Self::Install(error) => error.errno(),
        }
    }
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHandler => f.write_str("the consumer has no handler"),
            Self::BeyondEnd { offset, size } => {
                write!(f, "offset {offset:#x} is behind the end of the file at {size:#x}")
            }
            Self::Misaligned { offset, align } => write!(f, "offset {offset:#x} is no multiple of {align}"),
            Self::RefCtrMisaligned { offset } => write!(f, "semaphore offset {offset:#x} is odd"),
            Self::RefCtrMismatch { registered, asked } => {
                write!(f, "the probe has semaphore {registered:x?}, not {asked:x?}")
            }
            Self::Unreadable => f.write_str("the file cannot be read through a mapping"),
            Self::Install(error) => write!(f, "{error}"),
        }
    }
}

impl fmt::Display for InstallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoBytes { offset } => write!(f, "no byte could be read at {offset:#x}"),
            Self::IsTrap { offset } => write!(f, "a breakpoint instruction stands at {offset:#x}"),
            Self::NotProbeable { offset } => write!(f, "the instruction at {offset:#x} cannot be probed"),
            Self::RefCtr(error) => {
                write!(f, "semaphore is {} and cannot take {:+}", error.value, error.delta)
            }
            Self::Space(error) => write!(f, "{error}"),
        }
    }
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOnProbe => f.write_str("the consumer is not on this probe"),
            Self::Install(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for RegisterError {}
impl std::error::Error for InstallError {}
impl std::error::Error for ApplyError {}

impl From<SpaceError> for InstallError {
    fn from(error: SpaceError) -> InstallError {
        InstallError::Space(error)
    }
}
