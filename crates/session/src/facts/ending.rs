//! How a program ended.
//!
//! For:     whoever started one.
//! State:   the fact.
//! Context: control.
//! Keeps:   E1 what was not seen is [`Ending::Unseen`], never a guess.
//! Checked: testkit `launching`.

use std::fmt;
use sys::wait::Status;

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
    /// Somebody else took its status.
    Unseen,
}

impl Ending {
    pub(crate) fn of(status: Status) -> Ending {
        match status {
            Status::Exited(code) => Ending::Exited(code),
            Status::Killed(signal) => Ending::Killed(signal),
            _ => Ending::Unseen,
        }
    }

    /// As a shell gives it on: the code, or 128 and the signal.
    pub fn exit_code(self) -> i32 {
        match self {
            Ending::Exited(code) => code,
            Ending::Killed(signal) => 128 + signal,
            Ending::Unseen => 1,
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Exited(code) => write!(f, "exit code {code}"),
            Ending::Killed(signal) => write!(f, "killed by signal {signal}"),
            Ending::Unseen => write!(f, "how is not known"),
        }
    }
}
