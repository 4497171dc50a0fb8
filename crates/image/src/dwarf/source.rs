//! Where in its source an instruction is, and what was inlined there.
//!
//! For:     names of a stack's frames.
//! State:   none; units are read as far as the addresses asked for need them.
//! Context: control.
//! Keeps:   S1 the innermost comes first; the last is the function that has the code.
//! Checked: dwarf/tests.rs.

use super::{DebugInfo, Slice};
use crate::{ImageAddr, demangle};
use addr2line::{Context, FrameIter};

/// So many functions are inlined into each other at most.
const INLINED_MAX: usize = 64;

/// A place in the source.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SourcePlace {
    /// The function, demangled; it may be one that was inlined. `None` if the debug information does not say.
    pub function: Option<String>,
    /// The file, as its compiler was told.
    pub file: Option<String>,
    /// The line, from 1.
    pub line: Option<u32>,
}

impl DebugInfo {
    /// The places of these addresses: of each the innermost function first, that which has the code last. None where nothing is
    /// known. Split units are not looked into.
    pub fn places(&self, addrs: &[ImageAddr]) -> Vec<Vec<SourcePlace>> {
        let Some(file) = self.files.first() else { return vec![Vec::new(); addrs.len()] };
        let Ok(context) = Context::from_dwarf(file.dwarf(None)) else { return vec![Vec::new(); addrs.len()] };
        addrs.iter().map(|addr| places(&context, addr.0)).collect()
    }
}

fn places<'a>(context: &Context<Slice<'a>>, addr: u64) -> Vec<SourcePlace> {
    let Ok(frames) = context.find_frames(addr).skip_all_loads() else { return Vec::new() };
    let mut found = Vec::new();
    collect(frames, &mut found);
    found
}

fn collect<'a>(mut frames: FrameIter<'_, Slice<'a>>, to: &mut Vec<SourcePlace>) {
    while let Ok(Some(frame)) = frames.next() {
        let name = frame.function.as_ref().and_then(|f| f.raw_name().ok());
        let location = frame.location.as_ref();
        to.push(SourcePlace {
            function: name.map(|name| demangle(&name).into_owned()),
            file: location.and_then(|l| l.file).map(str::to_owned),
            line: location.and_then(|l| l.line),
        });
        if to.len() == INLINED_MAX {
            return;
        }
    }
}
