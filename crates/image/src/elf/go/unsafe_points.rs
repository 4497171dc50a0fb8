//! Where Go never stops a goroutine by a signal.
//!
//! For:     jumps over several instructions of Go code: nobody is parked between these.
//! State:   none.
//! Context: control.
//! Keeps:   U1 at no address in the result does the runtime's `isAsyncSafePoint` say yes, whatever the moment.
//!          U2 a table that is of an unknown version, or leads outside itself, adds nothing.
//! Checked: tests/suite/go.rs: U1 by that very function of the runtime at every instruction of a program, U2 by tables
//!          that were changed.
//! Source:  Go 1.18 to 1.26: runtime's `isAsyncSafePoint`, `pcvalue` and `_func`. Of its rules those are used that ask
//!          for nothing but the address, but for one, the names of inlined functions; and addresses where a
//!          stopped goroutine goes on at the start of a sequence (`UnsafePointRestart1` and its like) are left out,
//!          since x86-64 has none.

use std::ops::Range;

use super::{Entry, IS_ASSEMBLY, Table, u32_at};
use crate::ImageAddr;
use crate::elf::ElfImage;

/// The value in a table of unsafe points of what is no place to stop at.
const UNSAFE: i32 = -2;
/// Index of the pointer maps of locals among a function's data; assembly has none.
const LOCALS_POINTER_MAPS: usize = 1;
/// An offset of function data that is not there.
const NO_DATA: u32 = u32::MAX;
/// More tables than Go's functions have (five in Go 1.26): what says so is no function.
const TABLES_MAX: usize = 64;

impl ElfImage {
    /// Code where Go's runtime never stops a goroutine by a signal (its unsafe points), sorted and joined.
    ///
    /// A goroutine that no thread runs is then at none of these addresses, but for those behind a call, where it waits
    /// for the call to return, and those where the image's [`ElfImage::code_pointers`] say that a panic goes on. Empty
    /// for programs that are not Go's, and for versions of Go whose tables are not known.
    ///
    /// # Cost
    /// One pass over the table of functions and the lists of those that have unsafe points.
    pub fn go_unsafe_points(&self) -> Vec<Range<ImageAddr>> {
        let Some(table) = Table::parse(self).filter(|table| table.is_text_known) else { return Vec::new() };
        let mut left = table.bytes.len();
        let points = table.entries().flat_map(|e| table.unsafe_points(&e, &mut left));
        let mut found: Vec<Range<u64>> = points.collect();
        found.retain(|range| self.is_code(ImageAddr(range.start)) && self.is_code(ImageAddr(range.end - 1)));
        if let Some(go) = table.range() {
            found.extend(outside(self, &go));
        }
        joined(found)
    }
}

impl Table<'_> {
    /// From the first function's start to the last one's end, where all functions of the table are in it.
    fn range(&self) -> Option<Range<u64>> {
        let first = self.entry(0)?;
        let last = self.entry(self.functions.checked_sub(1)?)?;
        (first.addr < last.end).then_some(first.addr..last.end)
    }

    /// Of one function; nothing if its record cannot be read.
    fn unsafe_points(&self, entry: &Entry<'_>, left: &mut usize) -> Vec<Range<u64>> {
        if entry.end > entry.addr && self.is_never_stopped(entry) == Some(true) {
            let whole = entry.addr..entry.end;
            return vec![whole];
        }
        self.marked_points(entry, left).unwrap_or_default()
    }

    /// Whether the runtime takes all of the function for assembly, where it stops nobody.
    fn is_never_stopped(&self, entry: &Entry<'_>) -> Option<bool> {
        // New goroutines return to the byte behind its first, and nothing else in the file says so.
        if entry.name.starts_with(b"runtime.goexit") {
            return Some(false);
        }
        let flags = self.flags(entry)?;
        let data = usize::from(*self.bytes.get(entry.record.checked_add(self.record_bytes - 1)?)?);
        let tables = self.tables(entry)?;
        let at = entry.record + self.record_bytes + 4 * (tables + LOCALS_POINTER_MAPS);
        let has_maps = data > LOCALS_POINTER_MAPS && u32_at(self.bytes, at)? != NO_DATA;
        Some(flags & IS_ASSEMBLY != 0 || !has_maps)
    }

    /// What the compiler and the assembler marked.
    fn marked_points(&self, entry: &Entry<'_>, left: &mut usize) -> Option<Vec<Range<u64>>> {
        // The unsafe points are the first.
        if self.tables(entry)? == 0 {
            return None;
        }
        let offset = u32_at(self.bytes, entry.record + self.record_bytes)?;
        if offset == 0 {
            return None;
        }
        let mut found = Vec::new();
        let unsafe_ones = |range: Range<u64>, value| {
            if value == UNSAFE && range.end > range.start {
                found.push(range);
            }
        };
        self.values(entry, offset, left, unsafe_ones).map(|()| found)
    }

    /// How many tables of values by address the function has.
    fn tables(&self, entry: &Entry<'_>) -> Option<usize> {
        let tables = u32_at(self.bytes, entry.record.checked_add(28)?)? as usize;
        (tables <= TABLES_MAX).then_some(tables)
    }
}

/// What lies before Go's first function and behind its last, as far as it is code: C.
fn outside(image: &ElfImage, go: &Range<u64>) -> Vec<Range<u64>> {
    let parts = |code: &Range<ImageAddr>| {
        let (start, end) = (code.start.0, code.end.0);
        [start..end.min(go.start), start.max(go.end)..end]
    };
    image.code_ranges().iter().flat_map(parts).collect()
}

/// Sorted, without empty ones, those that touch as one.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<ImageAddr>> {
    ranges.retain(|range| range.start < range.end);
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<ImageAddr>> = Vec::new();
    for range in ranges {
        let end = ImageAddr(range.end);
        match joined.last_mut() {
            Some(last) if range.start <= last.end.0 => last.end = last.end.max(end),
            _ => joined.push(ImageAddr(range.start)..end),
        }
    }
    joined
}
