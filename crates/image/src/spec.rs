//! Probe specifications: what a user writes to say where a probe goes.
//!
//! For:     the command line, and every API that takes a probe as text.
//! State:   none.
//! Context: control.
//! Keeps:   S1 a spelling of another tool is answered with this tool's spelling.
//!          S2 every error knows its columns.
//! Checked: spec/tests.rs.

use std::fmt;
use std::ops::Range;

use crate::ImageAddr;

mod error;
mod foreign;
mod parse;
mod pattern;
#[cfg(test)]
mod tests;

pub use error::{SpecError, SpecProblem};
pub use pattern::Pattern;

/// A parsed probe specification.
///
/// Written `u:LIB:FUNC`, or in the long form `uprobe:LIB:FUNC`; with `ur:` or `uretprobe:`, or as `FUNC%return`,
/// the probe is where the function is left:
///
/// | part | written as |
/// |---|---|
/// | LIB | a path, a file name (`libc.so.6`), a stem (`libc`), or nothing for the main executable |
/// | FUNC | a name, a glob (`*`, `?`, `[a-z]`), `/regex/`, in quotes if it has odd characters |
/// | FUNC@VERSION | one version of a symbol (`memcpy@GLIBC_2.2.5`) |
/// | FUNC+OFF | an offset into the function, decimal or `0x` hexadecimal |
/// | `U:LIB:[PROVIDER:]NAME` | a USDT mark, in place of `u:` |
/// | 0xADDR | an address as nm(1) and objdump(1) print it, not a file offset |
#[derive(Clone, Debug)]
pub struct Spec {
    /// The whole specification as it was written.
    pub text: String,
    /// When it is hit.
    pub when: When,
    /// Which image.
    pub library: Library,
    /// Where in it.
    pub place: Place,
}

impl Spec {
    /// Whether it names one thing, by a whole name or an address, and is no pattern that may fit many.
    pub fn is_exact(&self) -> bool {
        match &self.place {
            Place::Function(function) => function.pattern.is_exact(),
            Place::Address(_) => true,
            Place::Mark(mark) => mark.name.is_exact(),
        }
    }
}

/// When a probe is hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// Before the instruction at the place is run.
    Before,
    /// Before the function at the place is left.
    Return,
}

/// The image that a specification names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Library {
    /// The main executable of the process (nothing was written).
    Main,
    /// The image with this path, file name, soname or stem.
    Named(String),
}

/// The place in the image that a specification names.
#[derive(Clone, Debug)]
pub enum Place {
    /// Functions by name.
    Function(FunctionSpec),
    /// One address.
    Address(ImageAddr),
    /// Marks of the program's authors (USDT).
    Mark(MarkSpec),
}

/// USDT marks by name.
#[derive(Clone, Debug)]
pub struct MarkSpec {
    /// Only of this provider.
    pub provider: Option<Pattern>,
    /// Which names.
    pub name: Pattern,
}

/// Functions by name, and an offset into each.
#[derive(Clone, Debug)]
pub struct FunctionSpec {
    /// Which names.
    pub pattern: Pattern,
    /// Only symbols of this version.
    pub version: Option<String>,
    /// Bytes from the function's first instruction.
    pub offset: u64,
}

impl Spec {
    /// The specification that `text` spells.
    ///
    /// # Errors
    /// [`SpecError`] with the columns at fault.
    pub fn parse(text: &str) -> Result<Spec, SpecError> {
        parse::parse(text).map_err(|(columns, problem)| SpecError { text: text.to_owned(), columns, problem })
    }
}

impl std::str::FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Spec, SpecError> {
        Spec::parse(text)
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A problem and the bytes of the text that it concerns.
type Fault = (Range<usize>, SpecProblem);
