//! What went wrong in a test's surroundings, with the facts.
//!
//! For:     tests that end with `?` and print a cure.
//! State:   none.
//! Context: control.
//! Keeps:   G1 a missing tool names the command that installs it.
//! Checked: error::tests (G1).

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The result of a step of a test.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a step of a test could not be made.
#[non_exhaustive]
pub enum Error {
    /// A program that the test needs is not installed.
    MissingTool {
        /// The program.
        tool: String,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// The nanoprobe binary is not built.
    NoNanoprobe {
        /// Where it was looked for.
        looked: Vec<PathBuf>,
    },
    /// A compiler refused a target program.
    Compiler {
        /// The command, to repeat by hand.
        command: String,
        /// What it wrote.
        output: String,
    },
    /// The system refused something.
    Io {
        /// What was being done.
        doing: String,
        /// The system's answer.
        error: std::io::Error,
    },
    /// Something did not happen in time.
    Deadline {
        /// What was waited for.
        waited_for: String,
        /// For how long.
        within: Duration,
        /// What was seen instead.
        seen: String,
    },
    /// A process said something that cannot be read.
    Unexpected {
        /// What was wanted.
        wanted: String,
        /// What was seen.
        seen: String,
    },
}

impl Error {
    /// An `Io` error, to be given to `map_err`.
    pub fn io(doing: impl fmt::Display) -> impl FnOnce(std::io::Error) -> Self {
        let doing = doing.to_string();
        move |error| Self::Io { doing, error }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingTool { tool, package } => {
                write!(f, "{tool} is not installed (Debian package {package}): run scripts/debian-packages")
            }
            Self::NoNanoprobe { looked } => {
                write!(f, "no nanoprobe binary in")?;
                looked.iter().try_for_each(|p| write!(f, " {}", p.display()))?;
                write!(f, ": run cargo build --release -p nanoprobe-cli, or set NANOPROBE_BIN")
            }
            Self::Compiler { command, output } => write!(f, "failed: {command}\n{output}"),
            Self::Io { doing, error } => write!(f, "{doing}: {error}"),
            Self::Deadline { waited_for, within, seen } => {
                write!(f, "waited {within:?} for {waited_for}\nseen so far:\n{seen}")
            }
            Self::Unexpected { wanted, seen } => write!(f, "wanted {wanted}\nseen: {seen}"),
        }
    }
}

/// The same as `Display`, since it is what a failed test prints.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_tool_names_its_package_and_the_cure() {
        let text = Error::MissingTool { tool: "musl-gcc".into(), package: "musl-tools" }.to_string();
        assert!(text.contains("musl-tools") && text.contains("scripts/debian-packages"), "{text}");
    }
}
