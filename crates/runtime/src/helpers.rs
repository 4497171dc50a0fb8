//! What programs call, by families.
//!
//! For:     `helper`, which gives each its place in the table of helpers; tests.
//! State:   maps, rings and counts of errors in the arena.
//! Context: hit, inside a program's run: every loop is bounded by a length of at most 128 KiB or by a map's shape.
//! Keeps:   see `around`; contracts are those of `bpf::helper`.
//! Checked: tests/helpers.

pub mod changes;
pub mod maps;
pub mod output;
pub(crate) mod quick;
pub mod reads;
#[cfg(target_arch = "x86_64")]
pub mod stacks;
pub mod text;
pub mod vectors;
pub mod world;
