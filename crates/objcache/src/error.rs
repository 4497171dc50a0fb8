//! What set-up refuses.
//!
//! For:     callers of `Arena`, `ObjectCache` and what is built on them.
//! State:   none.
//! Context: set-up.
//! Keeps:   nothing.
//! Checked: tests/life.rs.

use core::fmt;

/// Why an arena or a cache could not be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The memory is smaller than an arena's tables and one chunk.
    ArenaTooSmall {
        /// The size given.
        bytes: usize,
        /// The least that does.
        least: usize,
    },
    /// An arena has at most 16 GiB.
    ArenaTooLarge {
        /// The size given.
        bytes: usize,
    },
    /// No run of free chunks is left in the arena.
    ArenaFull {
        /// The bytes that were asked for.
        wanted: usize,
        /// The free bytes, in whatever pieces.
        free: usize,
    },
    /// An object must have at least one byte.
    ZeroSize,
    /// An object has at most a chunk less its header.
    TooBig {
        /// The size asked for.
        size: usize,
        /// The largest that can be.
        most: usize,
    },
    /// The system gave no memory.
    System(sys::Errno),
}

impl Error {
    /// The error number that the kernel uses for the situation.
    pub fn errno(self) -> sys::Errno {
        match self {
            Self::ArenaTooSmall { .. } | Self::ArenaTooLarge { .. } | Self::ZeroSize => sys::Errno::EINVAL,
            Self::ArenaFull { .. } => sys::Errno::ENOMEM,
            Self::TooBig { .. } => sys::Errno::E2BIG,
            Self::System(errno) => errno,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ArenaTooSmall { bytes, least } => {
                write!(f, "an arena of {bytes} bytes is too small: the least is {least}")
            }
            Self::ArenaTooLarge { bytes } => {
                write!(f, "an arena of {bytes} bytes is too large: 16 GiB at most")
            }
            Self::ArenaFull { wanted, free } => {
                write!(f, "no {wanted} bytes in one piece in the arena, {free} are free")
            }
            Self::ZeroSize => f.write_str("objects of 0 bytes"),
            Self::TooBig { size, most } => write!(f, "objects of {size} bytes; {most} at most"),
            Self::System(errno) => write!(f, "no memory from the system: {errno}"),
        }
    }
}

impl std::error::Error for Error {}
