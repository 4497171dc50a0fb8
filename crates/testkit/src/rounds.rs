//! How long a test goes on.
//!
//! For:     tests whose worth grows with rounds: kills at random instants, storms, fault injection.
//! State:   the environment variable NANOPROBE_NIGHTLY.
//! Context: control.
//! Keeps:   G1 without the variable a test is short.
//! Checked: by reading: one line.

/// `short` rounds, or `nightly` ones where NANOPROBE_NIGHTLY is set, as `scripts/nightly` does.
pub fn rounds(short: usize, nightly: usize) -> usize {
    if std::env::var_os("NANOPROBE_NIGHTLY").is_some() { nightly } else { short }
}
