//! How a frame is left: what one row of a table says.
//!
//! For:     tables, which keep each different rule once; the walker, which applies them.
//! State:   five words a rule.
//! Context: hit, control.
//! Keeps:   R1 a rule and its words are the same.
//! Checked: tests below.

/// Words of a rule.
pub(crate) const WORDS: usize = 5;

/// The registers that a walk follows: those that a call keeps, and r10, from which gcc finds the frame of a function that
/// aligns its stack.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reg {
    /// The stack pointer.
    Rsp = 0,
    /// The frame pointer, if it is one.
    Rbp = 1,
    /// Kept by calls.
    Rbx = 2,
    /// Kept by calls.
    R12 = 3,
    /// Kept by calls.
    R13 = 4,
    /// Kept by calls.
    R14 = 5,
    /// Kept by calls.
    R15 = 6,
    /// Not kept.
    R10 = 7,
}

impl Reg {
    /// The register of this number.
    #[inline(always)]
    pub(crate) fn of(number: u8) -> Option<Reg> {
        const ALL: [Reg; REGS] =
            [Reg::Rsp, Reg::Rbp, Reg::Rbx, Reg::R12, Reg::R13, Reg::R14, Reg::R15, Reg::R10];
        ALL.get(usize::from(number)).copied()
    }
}

/// How many registers are followed.
pub(crate) const REGS: usize = 8;
/// Where the kernel's `pt_regs` has the registers that calls keep, and r10, in bytes: what a walk begins with beside the program counter
/// and the stack pointer.
pub const KEPT_IN_PT_REGS: [(Reg, u8); 7] = [
    (Reg::R15, 0),
    (Reg::R14, 8),
    (Reg::R13, 16),
    (Reg::R12, 24),
    (Reg::Rbp, 32),
    (Reg::Rbx, 40),
    (Reg::R10, 56),
];

/// Those whose places a rule names, in its order: from rbp to r15.
pub(crate) const SAVED: usize = 6;

/// How the caller's stack pointer (the frame's address, CFA) is found, or why not.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A register and an offset.
    Plain = 0,
    /// What lies at a register and an offset.
    Deref = 1,
    /// A stub of the linker's table: one word more from some byte of its 16 on.
    Plt = 2,
    /// The kernel's frame of a signal.
    Signal = 3,
    /// Nobody has called it.
    Outermost = 4,
    /// There is no table: by the frame pointer.
    FramePointer = 5,
    /// The table says something that is not understood here.
    Unknown = 6,
}

impl Kind {
    fn of(number: u32) -> Kind {
        match number {
            0 => Kind::Plain,
            1 => Kind::Deref,
            2 => Kind::Plt,
            3 => Kind::Signal,
            4 => Kind::Outermost,
            5 => Kind::FramePointer,
            _ => Kind::Unknown,
        }
    }
}

/// A register that is as it was in the caller.
pub(crate) const SAME: i16 = i16::MIN;
/// A register whose value in the caller is gone.
pub(crate) const LOST: i16 = i16::MIN + 1;
/// Saved registers lie at offsets from rbp, not from the frame's address.
const AT_RBP: u32 = 1 << 15;

/// How one frame is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rule {
    pub kind: u8,
    /// Number of the register that the frame is found by.
    pub base: u8,
    /// In bytes.
    pub offset: i32,
    /// Where the return address lies from the frame's address, in words; of a stub, from which byte it has one word more.
    pub ra: i16,
    /// Where the caller's registers lie, in words; or [`SAME`], or [`LOST`].
    pub saved: [i16; SAVED],
    pub is_at_rbp: bool,
}

impl Rule {
    /// By this register and offset, with no register saved.
    pub const fn plain(base: Reg, offset: i32) -> Rule {
        let saved = [SAME; SAVED];
        Rule { kind: Kind::Plain as u8, base: base as u8, offset, ra: -1, saved, is_at_rbp: false }
    }

    /// Of a kind that needs nothing more.
    pub const fn bare(kind: Kind) -> Rule {
        let mut rule = Rule::plain(Reg::Rsp, 0);
        rule.kind = kind as u8;
        rule
    }

    #[inline(always)]
    pub fn kind(&self) -> Kind {
        Kind::of(self.kind.into())
    }

    #[inline(always)]
    pub fn from_words(words: [u32; WORDS]) -> Rule {
        let [offset, head, a, b, c] = words;
        let low = |word: u32| (word as u16).cast_signed();
        let high = |word: u32| ((word >> 16) as u16).cast_signed();
        Rule {
            kind: (head >> 8) as u8 & 0x7f,
            base: head as u8,
            offset: offset.cast_signed(),
            ra: high(head),
            saved: [low(a), high(a), low(b), high(b), low(c), high(c)],
            is_at_rbp: head & AT_RBP != 0,
        }
    }

    #[cfg(any(feature = "std", test))]
    pub fn words(&self) -> [u32; WORDS] {
        let two = |a: i16, b: i16| u32::from(a.cast_unsigned()) | u32::from(b.cast_unsigned()) << 16;
        let at_rbp = if self.is_at_rbp { AT_RBP } else { 0 };
        let head = u32::from(self.base)
            | u32::from(self.kind) << 8
            | at_rbp
            | u32::from(self.ra.cast_unsigned()) << 16;
        let [rbp, rbx, r12, r13, r14, r15] = self.saved;
        [self.offset.cast_unsigned(), head, two(rbp, rbx), two(r12, r13), two(r14, r15)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_read_back_from_its_words() {
        let mut rule = Rule::plain(Reg::R10, -4096);
        for kind in [Kind::Plain, Kind::Deref, Kind::Plt, Kind::Signal, Kind::Outermost, Kind::Unknown] {
            rule.kind = kind as u8;
            rule.saved = [-2, SAME, LOST, 17, -300, 0];
            rule.ra = -3;
            for is_at_rbp in [false, true] {
                rule.is_at_rbp = is_at_rbp;
                assert_eq!(Rule::from_words(rule.words()), rule);
                assert_eq!(rule.kind(), kind);
            }
        }
    }
}
