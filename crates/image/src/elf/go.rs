//! Go's own function table, `.gopclntab`.
//!
//! For:     names in stripped Go programs, the places where a recovered panic continues, where no goroutine is parked, and how
//!          its functions are left.
//! State:   none.
//! Context: control.
//! Keeps:   O1 entries that lead outside the table are left out.
//! Checked: `a_stripped_go_program_keeps_its_names` in tests/suite/languages.rs; tests/suite/go.rs.
//! Source:  the layout of Go 1.18 to 1.26 (runtime's pcHeader, _func); older ones have no names here.

mod frames;
mod unsafe_points;

pub use frames::GoFrames;

use std::ops::Range;

use super::symbols::{Symbol, SymbolKind};
use super::{ElfImage, Source};
use crate::ImageAddr;

/// Go 1.20 and later.
const MAGIC_1_20: u32 = 0xffff_fff1;
/// Go 1.18 and 1.19, the same layout but for the records of functions, which lack the number of their first line.
const MAGIC_1_18: u32 = 0xffff_fff0;

/// Flag of functions written in assembly.
const IS_ASSEMBLY: u8 = 1 << 2;
/// The value before a list's first entry.
const FIRST_VALUE: i32 = -1;

struct Table<'d> {
    bytes: &'d [u8],
    text_start: u64,
    /// Not guessed from the name of a section.
    is_text_known: bool,
    functions: usize,
    names_at: usize,
    /// Tables of values by address.
    values_at: usize,
    functions_at: usize,
    /// Length of a function's record without the two lists behind it.
    record_bytes: usize,
}

struct Entry<'d> {
    addr: u64,
    end: u64,
    name: &'d [u8],
    recovery: Option<u64>,
    /// Where its record is.
    record: usize,
}

impl<'d> Table<'d> {
    fn parse(image: &'d ElfImage) -> Option<Table<'d>> {
        let section = image.sections().iter().find(|s| s.name.ends_with(".gopclntab"))?;
        let bytes = image.section_bytes(section)?;
        let record_bytes = match u32_at(bytes, 0)? {
            MAGIC_1_20 => 44,
            MAGIC_1_18 => 40,
            _ => return None,
        };
        if bytes.get(7) != Some(&8) {
            return None;
        }
        let word = |i: usize| usize::try_from(u64_at(bytes, 8 + 8 * i)?).ok();
        // The third word is the start of the text; in a position-independent image it is relocated, and
        // newer linkers leave it zero.
        let in_header = image.word(ImageAddr(section.range.start.0 + 24))?;
        let text = || image.section(".text").map(|s| s.range.start.0);
        let known = if in_header != 0 { Some(in_header) } else { go_text(image) };
        Some(Table {
            bytes,
            text_start: known.or_else(text)?,
            is_text_known: known.is_some(),
            functions: word(0)?,
            names_at: word(3)?,
            values_at: word(6)?,
            functions_at: word(7)?,
            record_bytes,
        })
    }

    fn entry(&self, index: usize) -> Option<Entry<'d>> {
        let at = self.functions_at.checked_add(index.checked_mul(8)?)?;
        let start = u32_at(self.bytes, at)?;
        let end = u32_at(self.bytes, at.checked_add(8)?)?;
        let record = self.functions_at.checked_add(u32_at(self.bytes, at + 4)? as usize)?;
        let name_at = self.names_at.checked_add(u32_at(self.bytes, record.checked_add(4)?)? as usize)?;
        let name = self.bytes.get(name_at..)?;
        let name = &name[..name.iter().position(|&b| b == 0)?];
        let recovery = u32_at(self.bytes, record.checked_add(12)?)?;
        let addr = self.text_start.checked_add(u64::from(start))?;
        Some(Entry {
            addr,
            end: self.text_start.checked_add(u64::from(end))?,
            name,
            recovery: (recovery != 0).then(|| addr.wrapping_add(u64::from(recovery))),
            record,
        })
    }

    fn entries(&self) -> impl Iterator<Item = Entry<'d>> {
        // Names may lie in one another: the table's length bounds what is read of them.
        let mut left = self.bytes.len().saturating_mul(4);
        (0..self.functions).map_while(move |i| {
            let entry = self.entry(i)?;
            left = left.checked_sub(entry.name.len())?;
            Some(entry)
        })
    }
}

impl Table<'_> {
    /// What the linker says of a function.
    fn flags(&self, entry: &Entry<'_>) -> Option<u8> {
        self.bytes.get(entry.record.checked_add(self.record_bytes - 3)?).copied()
    }

    /// A list of values by address: each with where it holds. `None` if it leads outside of the table or the function.
    fn values(
        &self,
        entry: &Entry<'_>,
        offset: u32,
        left: &mut usize,
        mut each: impl FnMut(Range<u64>, i32),
    ) -> Option<()> {
        let mut values = self.bytes.get(self.values_at.checked_add(offset as usize)?..)?;
        let (mut at, mut value) = (entry.addr, FIRST_VALUE);
        loop {
            // Functions may share a list, but not all the same long one.
            *left = left.checked_sub(1)?;
            let change = varint(&mut values)?;
            if change == 0 && at != entry.addr {
                return Some(());
            }
            value = value.checked_add(signed(change))?;
            let end = at.checked_add(u64::from(varint(&mut values)?))?;
            if end > entry.end {
                return None;
            }
            each(at..end, value);
            at = end;
        }
    }
}

/// The start of Go's text as its symbol says, if the symbol table is there.
fn go_text(image: &ElfImage) -> Option<u64> {
    // With cgo, `.text` begins with C code; the table of modules then tells where Go's begins.
    let section = image.sections().iter().find(|s| s.name.ends_with(".go.module"))?;
    // runtime.moduledata: header pointer, six slices, findfunctab, minpc, maxpc, text.
    image.word(ImageAddr(section.range.start.0 + 8 + 6 * 24 + 3 * 8)).filter(|&a| image.is_code(ImageAddr(a)))
}

/// Adds the functions of Go's table.
pub(super) fn collect<'d>(image: &'d ElfImage, to: &mut Vec<Symbol<'d>>) {
    let Some(table) = Table::parse(image) else { return };
    for entry in table.entries().filter(|e| image.is_code(ImageAddr(e.addr)) && !e.name.is_empty()) {
        to.push(Symbol {
            addr: entry.addr,
            size_bytes: entry.end.saturating_sub(entry.addr),
            name: entry.name,
            version: None,
            kind: SymbolKind::Func,
            source: Source::GoTable,
        });
    }
}

/// Where functions continue after a panic that a deferred call recovered.
pub(super) fn recovery_points(image: &ElfImage) -> Vec<ImageAddr> {
    let Some(table) = Table::parse(image) else { return Vec::new() };
    table.entries().filter_map(|e| e.recovery).map(ImageAddr).collect()
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// The next number: seven bits a byte, the lowest first, up to the first byte below 128.
fn varint(bytes: &mut &[u8]) -> Option<u32> {
    let mut value = 0;
    for shift in [0, 7, 14, 21, 28] {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u32::from(first & 0x7f) << shift;
        if *first < 0x80 {
            return Some(value);
        }
    }
    None
}

/// A change that may be negative: the lowest bit says so.
fn signed(change: u32) -> i32 {
    (change >> 1) as i32 ^ -((change & 1) as i32)
}
