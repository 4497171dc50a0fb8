//! Compilers with one instruction wrong. Without the feature `broken` there are none.
//!
//! For:     tests that must fail: `torture bpf --broken NAME`.
//! State:   none.
//! Context: control.
//! Keeps:   each is wrong in one place, and right everywhere else.
//! Checked: torture `bpf` finds each.

/// A mistake of the compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "broken"), allow(dead_code, reason = "made by tests only"))]
#[non_exhaustive]
pub enum Broken {
    /// A 32-bit addition leaves the upper half of its result.
    UpperHalf,
    /// A 32-bit arithmetic shift is a logical one.
    SignedShift,
    /// A signed 32-bit comparison is an unsigned one.
    SignedCompare,
    /// A signed load of two bytes is an unsigned one.
    SignedLoad,
    /// A division by a register that has 0 gives the dividend.
    DivisionByZero,
    /// The remainder's sign is the divisor's.
    SignOfRemainder,
    /// A compare and exchange of four bytes leaves r0.
    OldValue,
    /// Two bytes to big-endian are not cleared above.
    ByteOrder,
}
