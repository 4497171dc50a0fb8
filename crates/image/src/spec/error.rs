//! What can be wrong with a specification, and how that is shown.
//!
//! For:     messages that point at the column.
//! State:   none.
//! Context: control.
//! Keeps:   nothing beyond its types.
//! Checked: spec/tests.rs.

use std::fmt;
use std::ops::Range;

/// Why a specification was not understood.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpecError {
    /// The specification as it was written.
    pub text: String,
    /// The bytes of the text at fault.
    pub columns: Range<usize>,
    /// What is wrong with them.
    pub problem: SpecProblem,
}

/// The kinds of fault in a specification.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SpecProblem {
    /// Nothing was written.
    Empty,
    /// The kind in front is missing; a spelling with it.
    NoKind {
        /// The specification with a kind in front.
        with_kind: String,
    },
    /// The kind in front is none that exists.
    UnknownKind {
        /// What was written, with the kind in front, if that makes sense.
        with_kind: Option<String>,
    },
    /// A kind of probe that this version does not have.
    NotYet {
        /// What such probes are called.
        what: &'static str,
    },
    /// A watchpoint, which has a command of its own.
    Watchpoint,
    /// A probe in the kernel.
    Kernel,
    /// The spelling of another tool.
    Foreign {
        /// That tool.
        tool: &'static str,
        /// The same in this tool's spelling, if it has one.
        here: Option<String>,
    },
    /// A return probe on an instruction.
    ReturnOfInstruction,
    /// There is no `:FUNC` after the library.
    NoFunction,
    /// The function's name is empty.
    EmptyFunction,
    /// A quotation mark without its partner.
    OpenQuote,
    /// A regular expression without its closing slash.
    OpenRegex,
    /// The regular expression cannot be compiled, and why.
    BadRegex(String),
    /// The offset is not a number, or is larger than 64 bits.
    BadOffset,
    /// The address is not hexadecimal with `0x`, or is larger than 64 bits.
    BadAddress,
    /// Something is behind the end of the specification.
    Trailing,
}

impl SpecError {
    /// The specification and, below it, marks under the columns at fault.
    pub fn underlined(&self) -> String {
        let before = self.text.get(..self.columns.start).unwrap_or(&self.text).chars().count();
        let marked = self.text.get(self.columns.clone()).unwrap_or_default().chars().count().max(1);
        format!("{}\n{}{}", self.text, " ".repeat(before), "^".repeat(marked))
    }

    /// The first column at fault, from 1.
    pub fn column(&self) -> usize {
        self.text.get(..self.columns.start).unwrap_or(&self.text).chars().count() + 1
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "probe '{}', column {}: {}", self.text, self.column(), self.problem)
    }
}

impl std::error::Error for SpecError {}

impl fmt::Display for SpecProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("a probe is written u:LIB:FUNC, this is empty"),
            Self::NoKind { with_kind } => {
                write!(f, "a probe begins with its kind; for a function entry: {with_kind}")
            }
            Self::UnknownKind { with_kind: None } => {
                f.write_str("no such kind of probe; u: (uprobe:) is for function entries and addresses")
            }
            Self::UnknownKind { with_kind: Some(spelling) } => {
                write!(f, "no such kind of probe; for a function entry: {spelling}")
            }
            Self::NotYet { what } => {
                write!(
                    f,
                    "{what} are not yet in this version; function entries, addresses (u:) and returns (ur:) are"
                )
            }
            Self::Watchpoint => f.write_str(
                "this is a watchpoint, for nanoprobe watch; here are function entries and addresses (u:), returns (ur:) \
                 and marks (U:)",
            ),
            Self::Kernel => {
                f.write_str("this is a probe in the kernel; only user space is traced here, by u:")
            }
            Self::Foreign { tool, here: Some(spelling) } => {
                write!(f, "this is the spelling of {tool}; here it is {spelling}")
            }
            Self::Foreign { tool, here: None } => {
                write!(f, "this is the spelling of {tool}; here a probe is written u:LIB:FUNC")
            }
            Self::ReturnOfInstruction => {
                f.write_str("only a function returns: ur:LIB:FUNC, without an offset or an address")
            }
            Self::NoFunction => f.write_str("the function is missing: u:LIB:FUNC"),
            Self::EmptyFunction => f.write_str("the function's name is empty; all functions are *"),
            Self::OpenQuote => f.write_str("this quotation mark is not closed"),
            Self::OpenRegex => f.write_str("this regular expression is not closed by /"),
            Self::BadRegex(why) => write!(f, "this is not a regular expression: {why}"),
            Self::BadOffset => f.write_str("an offset is a decimal number or 0x and hexadecimal digits"),
            Self::BadAddress => f.write_str("an address is 0x and at most 14 hexadecimal digits: no code lies higher"),
            Self::Trailing => f.write_str("nothing was expected here"),
        }
    }
}
