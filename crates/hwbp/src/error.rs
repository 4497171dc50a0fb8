//! Why a breakpoint gets no debug register.
//!
//! For:     callers of `Accounts`.
//! State:   the facts.
//! Context: target, control.
//! Keeps:   E1 each situation has the kernel's error number.
//! Checked: tests below, `tests/errors.rs`.

use crate::{Kind, Place};
use core::fmt;
use sys::Errno;

/// Why a request was refused; the accounts are as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Refused {
    /// All debug registers are taken on a CPU where the breakpoint could become active.
    NoSlot {
        /// Where it was wanted.
        place: Place,
        /// What each CPU has.
        slots: u32,
    },
    /// The machine has no debug registers of this kind.
    NoSuchKind {
        /// The kind.
        kind: Kind,
    },
    /// There is no such CPU.
    NoSuchCpu {
        /// The number asked for.
        cpu: u32,
        /// How many there are.
        cpus: u32,
    },
    /// A lock is held, and the caller must not wait.
    Locked,
    /// No memory to remember the breakpoint.
    NoMemory,
    /// More was to change than a modification may.
    OtherPlace {
        /// Where it is.
        place: Place,
        /// Where it was to be.
        asked: Place,
    },
}

impl Refused {
    /// The kernel's error number for it.
    pub fn errno(&self) -> Errno {
        match self {
            Refused::NoSlot { .. } => Errno::ENOSPC,
            Refused::NoSuchKind { .. } | Refused::NoSuchCpu { .. } | Refused::OtherPlace { .. } => {
                Errno::EINVAL
            }
            Refused::Locked => Errno::EPERM,
            Refused::NoMemory => Errno::ENOMEM,
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::NoSlot { place, slots } => {
                write!(f, "all {slots} debug registers are taken for {place}")
            }
            Refused::NoSuchKind { kind: Kind::Data } => f.write_str("no debug registers for data"),
            Refused::NoSuchKind { kind: Kind::Instruction } => {
                f.write_str("no debug registers for instructions")
            }
            Refused::NoSuchCpu { cpu, cpus } => write!(f, "no CPU {cpu}: there are {cpus}"),
            Refused::Locked => f.write_str("the accounts are locked"),
            Refused::NoMemory => f.write_str("no memory for another breakpoint"),
            Refused::OtherPlace { place, asked } => {
                write!(f, "a breakpoint on {place} cannot become one on {asked}")
            }
        }
    }
}

impl std::error::Error for Refused {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_machine_is_no_space_and_names_the_place() {
        let refused = Refused::NoSlot { place: Place::TaskOnCpu(7, 1), slots: 4 };
        assert_eq!(refused.errno(), Errno::ENOSPC);
        assert_eq!(refused.to_string(), "all 4 debug registers are taken for task 7 on CPU 1");
        assert_eq!(Refused::Locked.errno(), Errno(1));
    }
}
