//! How far below its caller's end of the stack a Go function is, at each of its instructions.
//!
//! For:     unwind tables: Go programs have no `.eh_frame`.
//! State:   none.
//! Context: control.
//! Keeps:   F1 rows are sorted, lie in their function, and say what the linker wrote; a function whose list cannot be read has none.
//!          F2 a table that is of an unknown version, or leads outside itself, adds nothing.
//! Checked: tests/suite/go.rs (F2, and F1 beside the same program's `.debug_frame`); crate `unwind`, tests/steps.
//! Source:  Go 1.18 to 1.26: runtime's `funcspdelta`, `pcvalue`, `_func` and `abi.FuncFlag`.

use std::ops::Range;

use super::{IS_ASSEMBLY, Table, u32_at};
use crate::ImageAddr;
use crate::elf::ElfImage;

/// Flag of functions that nobody has called.
const IS_OUTERMOST: u8 = 1;
/// Flag of functions that go over to another stack.
const SWITCHES: u8 = 1 << 1;
/// Where a function's record has the place of its list of offsets.
const OFFSETS_AT: usize = 16;

/// One function of Go's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GoFrames {
    /// Its code.
    pub range: Range<ImageAddr>,
    /// From here on the stack pointer lies so many bytes below the return address.
    pub rows: Vec<(ImageAddr, u32)>,
    /// Nobody has called it: a goroutine or a thread begins there.
    pub is_outermost: bool,
    /// It writes to the stack pointer: its caller may be on another stack.
    pub switches: bool,
    /// It is assembly, which keeps no frame pointer at a place of its own.
    pub is_assembly: bool,
}

impl ElfImage {
    /// How Go's functions are left, by address. Empty for programs that are not Go's, and for versions of Go whose tables are
    /// not known.
    ///
    /// # Cost
    /// One pass over the table of functions and their lists of offsets.
    pub fn go_frames(&self) -> Vec<GoFrames> {
        let Some(table) = Table::parse(self).filter(|table| table.is_text_known) else { return Vec::new() };
        // Lists are shared: of a hundred bytes many thousand functions may be.
        let mut left = table.bytes.len().saturating_mul(4);
        let mut found: Vec<GoFrames> = table
            .entries()
            .filter(|e| {
                e.addr < e.end && self.is_code(ImageAddr(e.addr)) && self.is_code(ImageAddr(e.end - 1))
            })
            .filter_map(|entry| {
                let flags = table.flags(&entry)?;
                let offset = u32_at(table.bytes, entry.record.checked_add(OFFSETS_AT)?)?;
                let mut rows = Vec::new();
                let add = |range: Range<u64>, below: i32| {
                    if let (Ok(below), true) = (u32::try_from(below), range.start < range.end) {
                        rows.push((ImageAddr(range.start), below));
                    }
                };
                let is_read = offset != 0 && table.values(&entry, offset, &mut left, add).is_some();
                if !is_read {
                    rows.clear();
                }
                Some(GoFrames {
                    range: ImageAddr(entry.addr)..ImageAddr(entry.end),
                    rows,
                    is_outermost: flags & IS_OUTERMOST != 0,
                    switches: flags & SWITCHES != 0,
                    is_assembly: flags & IS_ASSEMBLY != 0,
                })
            })
            .collect();
        found.sort_by_key(|f| f.range.start);
        found
    }
}
