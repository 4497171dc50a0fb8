//! What can go wrong.
//!
//! For:     whoever makes or fills a table.
//! State:   the facts.
//! Context: target.
//! Keeps:   nothing.
//! Checked: `tests/table.rs`.

use core::fmt;

/// Why an entry was not inserted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InsertError {
    /// No memory for so many bytes.
    NoMemory {
        /// The size that was asked for.
        bytes: usize,
    },
    /// The table has as many keys as its options allow.
    #[doc(alias = "E2BIG")]
    Full {
        /// That number.
        max_keys: usize,
    },
}

impl fmt::Display for InsertError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMemory { bytes } => write!(f, "no memory for an entry of {bytes} bytes"),
            Self::Full { max_keys } => write!(f, "the table is limited to {max_keys} keys"),
        }
    }
}

impl std::error::Error for InsertError {}

/// Why a table was not made or not resized.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// No memory for so many bytes of buckets.
    NoMemory {
        /// The size that was asked for.
        bytes: usize,
    },
    /// The domain cannot be made, or refuses fast readers.
    Domain(rcu::BuildError),
}

impl From<rcu::BuildError> for BuildError {
    fn from(error: rcu::BuildError) -> Self {
        BuildError::Domain(error)
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMemory { bytes } => write!(f, "no memory for {bytes} bytes of buckets"),
            Self::Domain(error) => write!(f, "the domain for readers: {error}"),
        }
    }
}

impl std::error::Error for BuildError {}
