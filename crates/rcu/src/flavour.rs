//! Reader flavours and which may meet on one domain.
//!
//! For:     readers (as types) and grace periods (as bits).
//! State:   none.
//! Context: hit, signal, target, control.
//! Keeps:   F1 a set of flavours is legal or not by this file alone.
//! Checked: tests below; `tests/restrictions.rs`.
//! Source:  kernel `include/linux/srcu.h` (v7.0) for the bits; lite is the seed's (6.13 to 6.15).

use core::fmt;

/// How a reader protects itself, and what its grace periods cost in return.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u32)]
pub enum Flavour {
    /// A fence on each side: slow readers, the cheapest grace periods.
    Normal = 0,
    /// Atomic adds: may run in a signal handler that interrupts another reader.
    Sigsafe = 1,
    /// No fence; the six restrictions of [`Rule`](crate::Rule).
    Lite = 2,
    /// Lite with a pointer for a cookie, on domains declared for it.
    Fast = 3,
    /// Fast, and any thread may leave.
    UpDown = 4,
    /// The implicit per-thread reader of [`tasks`](crate::tasks).
    Tasks = 5,
}

/// The number of flavours.
pub(crate) const FLAVOURS: usize = 6;

impl Flavour {
    /// Every flavour, in the order of their bits.
    pub const ALL: [Flavour; FLAVOURS] =
        [Self::Normal, Self::Sigsafe, Self::Lite, Self::Fast, Self::UpDown, Self::Tasks];

    /// The flavour's bit in a set.
    pub const fn bit(self) -> u32 {
        1 << self as u32
    }

    /// Its word in commands and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Sigsafe => "sigsafe",
            Self::Lite => "lite",
            Self::Fast => "fast",
            Self::UpDown => "updown",
            Self::Tasks => "tasks",
        }
    }
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of flavours, as recorded by a domain.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct FlavourSet(pub u32);

impl FlavourSet {
    /// Flavours whose readers have no fence, so that a grace period needs one for the whole process.
    pub const FENCELESS: FlavourSet =
        FlavourSet(Flavour::Lite.bit() | Flavour::Fast.bit() | Flavour::UpDown.bit() | Flavour::Tasks.bit());

    /// Flavours that v7.0 wants declared when the domain is made.
    pub const DECLARED_ONLY: FlavourSet =
        FlavourSet(Flavour::Fast.bit() | Flavour::UpDown.bit() | Flavour::Tasks.bit());

    /// True if `flavour` is in the set.
    pub const fn has(self, flavour: Flavour) -> bool {
        self.0 & flavour.bit() != 0
    }

    /// True if the sets share a flavour.
    pub const fn meets(self, other: FlavourSet) -> bool {
        self.0 & other.0 != 0
    }

    /// True if these flavours may be on one domain.
    ///
    /// One alone, or normal with sigsafe: both carry their own fences and their cells are apart.
    pub const fn is_legal(self) -> bool {
        let fenced = Flavour::Normal.bit() | Flavour::Sigsafe.bit();
        self.0.count_ones() <= 1 || self.0 & !fenced == 0
    }
}

impl fmt::Display for FlavourSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for flavour in Flavour::ALL.into_iter().filter(|x| self.has(*x)) {
            if !first {
                f.write_str("+")?;
            }
            first = false;
            f.write_str(flavour.name())?;
        }
        if first { f.write_str("none") } else { Ok(()) }
    }
}

impl fmt::Debug for FlavourSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A flavour as a type; sealed.
pub trait Reader: sealed::Sealed + 'static {
    /// The same flavour as a value.
    const FLAVOUR: Flavour;
    /// True if lock and unlock must carry a full fence beside the per-CPU add.
    const FENCED: bool;
    /// True if the adds must be atomic, never a restartable sequence.
    const ATOMIC: bool;
}

macro_rules! readers {
    ($($(#[$doc:meta])* $name:ident: $fenced:literal, $atomic:literal;)*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
        impl sealed::Sealed for $name {}
        impl Reader for $name {
            const FLAVOUR: Flavour = Flavour::$name;
            const FENCED: bool = $fenced;
            const ATOMIC: bool = $atomic;
        }
    )* };
}

readers! {
    /// Readers with a full fence on each side.
    Normal: true, false;
    /// Readers that may interrupt readers.
    #[doc(alias = "nmisafe")]
    Sigsafe: false, true;
    /// Readers without fences.
    Lite: false, false;
    /// Readers without fences, on a declared domain, with a pointer cookie.
    Fast: false, false;
    /// Fast readers that another thread may end.
    UpDown: false, false;
    /// The reader behind the second form of tasks-trace.
    Tasks: false, false;
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::string::ToString;

    #[test]
    fn only_normal_and_sigsafe_may_meet() {
        for a in Flavour::ALL {
            for b in Flavour::ALL {
                let fenced = |x| matches!(x, Flavour::Normal | Flavour::Sigsafe);
                let legal = a == b || (fenced(a) && fenced(b));
                assert_eq!(FlavourSet(a.bit() | b.bit()).is_legal(), legal, "{a} {b}");
            }
        }
    }

    #[test]
    fn a_set_prints_its_members() {
        assert_eq!(FlavourSet(0).to_string(), "none");
        assert_eq!(FlavourSet(0b101).to_string(), "normal+lite");
    }
}
