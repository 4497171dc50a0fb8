//! The places that an attach point leads to, and where arguments lie there.
//!
//! For:     the checker, which needs the names; the lowering, which makes loads of places; who attaches.
//! State:   none.
//! Context: control.
//! Keeps:   1. A place that is counted from the code is counted from the probed instruction: it holds wherever the file is mapped.
//! Checked: tests/sites.rs.

use image::dwarf::Part;
use image::{Address, INSTRUCTION_POINTER, ImageAddr, Loc, MarkArgument};
use std::sync::Arc;

/// One place of the traced code.
#[derive(Clone, Debug, PartialEq)]
pub struct Site {
    /// What the builtin `probe` gives.
    pub name: Arc<str>,
    /// The number by which the [`World`](crate::World) knows it.
    pub place: u32,
    /// Of a mark: its arguments.
    pub marks: Option<Arc<[MarkArgument]>>,
    /// Arguments are passed as Go does it.
    pub is_go: bool,
}

/// A type and where values of it lie, at each site of an attach point.
#[derive(Clone, Debug, PartialEq)]
pub struct Located<T> {
    /// What it is.
    pub ty: T,
    /// At each site; of a struct of arguments: of each field.
    pub at: Vec<Arc<[Vec<Part>]>>,
}

/// A variable of the traced file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Bytes.
    pub size: u64,
    /// How far it is behind the probed instruction, at each site.
    pub at: Vec<i64>,
}

/// The same place, counted from the instruction at `pc`.
pub fn from_here(loc: Loc, pc: ImageAddr) -> Loc {
    match loc {
        Loc::Image(addr) => Loc::Memory(Address {
            base: Some(INSTRUCTION_POINTER),
            index: None,
            displacement: addr.0.wrapping_sub(pc.0).cast_signed(),
        }),
        other => other,
    }
}
