//! What a map refuses.
//!
//! For:     callers of every map; programs get the number.
//! State:   none.
//! Context: hit, signal, target, control.
//! Keeps:   the numbers are those of the kernel's maps.
//! Checked: tests/semantics.rs.

use core::fmt;
use sys::Errno;

/// Why a map did not do what it was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Error {
    /// No such key (ENOENT).
    NotFound,
    /// The key is there and was not to be (EEXIST), or a stack's place is taken by another one.
    Exists,
    /// The map holds as many keys as it may (E2BIG); for an array: no such index.
    Full,
    /// No object in the cache just now (ENOMEM).
    NoMemory,
    /// Somebody else changes the same bucket or entry, perhaps the code that this one interrupted (EBUSY).
    Busy,
    /// Key or value of another length than the map's, or a flag that the map cannot do (EINVAL).
    Length {
        /// What was given.
        given: usize,
        /// What the map has.
        wanted: usize,
    },
    /// What lies there is not what whoever attaches knows it to be, or not all of it is in the memory (EINVAL).
    Damaged,
    /// The record can never fit (E2BIG).
    TooLong,
    /// The map could not be made.
    #[cfg(all(feature = "std", not(loom)))]
    Setup(objcache::Error),
}

impl Error {
    /// The kernel's number for it.
    pub fn errno(self) -> Errno {
        match self {
            Self::NotFound => Errno::ENOENT,
            Self::Exists => Errno::EEXIST,
            Self::Full | Self::TooLong => Errno::E2BIG,
            Self::NoMemory => Errno::ENOMEM,
            Self::Busy => Errno::EBUSY,
            Self::Length { .. } | Self::Damaged => Errno::EINVAL,
            #[cfg(all(feature = "std", not(loom)))]
            Self::Setup(error) => error.errno(),
        }
    }

    pub(crate) fn check(given: usize, wanted: usize) -> Result<(), Error> {
        if given == wanted { Ok(()) } else { Err(Self::Length { given, wanted }) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("no such key"),
            Self::Exists => f.write_str("the key is there already"),
            Self::Full => f.write_str("the map is full"),
            Self::NoMemory => f.write_str("no object in the map's cache just now"),
            Self::Busy => f.write_str("somebody else is changing the same place"),
            Self::Length { given, wanted } => write!(f, "{given} bytes given, the map has {wanted}"),
            Self::Damaged => f.write_str("what lies there is no such map"),
            Self::TooLong => f.write_str("the record is longer than the ring"),
            #[cfg(all(feature = "std", not(loom)))]
            Self::Setup(error) => write!(f, "the map cannot be made: {error}"),
        }
    }
}

impl core::error::Error for Error {}

#[cfg(all(feature = "std", not(loom)))]
impl From<objcache::Error> for Error {
    fn from(error: objcache::Error) -> Error {
        Error::Setup(error)
    }
}
