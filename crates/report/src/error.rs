//! Why a recording is none.

use std::fmt;

/// It cannot be read.
#[derive(Debug)]
pub enum Unreadable {
    /// The file.
    File(std::io::Error),
    /// A line in the middle is not what the command prints.
    Line {
        /// Counted from 1.
        line: usize,
        /// What the reader of JSON says.
        why: String,
    },
    /// No line of a run is in it.
    Nothing,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreadable::File(why) => write!(f, "it cannot be read: {why}"),
            Unreadable::Line { line, why } => write!(f, "line {line} is not one of a recording: {why}"),
            Unreadable::Nothing => f.write_str("it holds nothing of a run"),
        }
    }
}

impl std::error::Error for Unreadable {}
