//! What a file may ask of its reader: each byte is looked at a small constant number of times.
//!
//! For:     opening files that were written to exhaust the reader.
//! State:   none.
//! Context: control.
//! Keeps:   B1 the sections of a file that is read, and its segments and notes, are together at most twice as long as
//!          the file, so that a walk over all of them is linear whatever they overlap.
//!          B2 no name of a section is longer than `SECTION_NAME_MAX`; names of symbols are together at most
//!          `NAMES_PER_BYTE` times as long as their file.
//! Checked: tests/suite/mutants.rs.

use object::elf;
use object::endian::LittleEndian as LE;
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _, SectionTable, SymbolTable};

use super::header::Header;

/// A program has about ten; each question for the bytes at an address goes through them.
const LOADED_MAX: usize = 128;
/// As many as there are without the extended numbering that only object files need.
const HEADERS_MAX: usize = 0xffff;
const SECTION_NAME_MAX: usize = 4096;
const OVERLAP_MAX: u64 = 2;
const SYMBOL_NAME_MAX: usize = 1 << 20;
/// Tables of strings share endings; no linker gets near to this.
const NAMES_PER_BYTE: usize = 4;
/// The versions that an image needs of others: all of them by each of them are looked at.
const VERSIONS_MAX: u64 = 1 << 16;

/// Why the file `data` is not read, if it asks for too much.
pub(super) fn excess(data: &[u8]) -> Option<&'static str> {
    let header = Header::parse(data).ok()?;
    let programs = header.program_headers(LE, data).unwrap_or_default();
    if programs.len() > HEADERS_MAX {
        return Some("it has more than 65,535 program headers");
    }
    let of = |kind| programs.iter().filter(move |p| p.p_type(LE) == kind);
    if of(elf::PT_LOAD).count() > LOADED_MAX {
        return Some("it has more than 128 loaded segments");
    }
    let is_over = |kind| overlaps(data, of(kind).map(|p| p.file_range(LE)));
    if is_over(elf::PT_LOAD) || is_over(elf::PT_NOTE) {
        return Some("its segments lie over one another");
    }
    let sections = header.sections(LE, data).ok()?;
    if sections.len() > HEADERS_MAX {
        return Some("it has more than 65,535 sections");
    }
    if overlaps(data, sections.iter().filter_map(|s| s.file_range(LE))) {
        return Some("its sections lie over one another");
    }
    let names =
        header.shstrndx(LE, data).ok().and_then(|at| header.section_headers(LE, data).ok()?.get(at as usize));
    let names = names.and_then(|s| s.data(LE, data).ok()).unwrap_or_default();
    let is_endless = |at: u32| {
        let rest = names.get(at as usize..).unwrap_or_default();
        rest.len() > SECTION_NAME_MAX && !rest[..SECTION_NAME_MAX].contains(&0)
    };
    sections.iter().any(|s| is_endless(s.sh_name(LE))).then_some("a section's name is longer than 4096 bytes")
}

/// Whether those of `ranges` that lie in the file are together more than it can hold.
fn overlaps(data: &[u8], ranges: impl Iterator<Item = (u64, u64)>) -> bool {
    let len = data.len() as u64;
    let is_inside = |&(start, bytes): &(u64, u64)| start.checked_add(bytes).is_some_and(|end| end <= len);
    let sum = ranges.filter(is_inside).fold(0_u64, |sum, (_, bytes)| sum.saturating_add(bytes));
    sum > OVERLAP_MAX.saturating_mul(len)
}

/// Whether the table of needed versions can be read in a time that its size bounds.
pub(super) fn are_versions_short(sections: &SectionTable<'_, Header>) -> bool {
    let needed = |s: &&elf::SectionHeader64<LE>| s.sh_type(LE) == elf::SHT_GNU_VERNEED;
    sections.iter().filter(needed).all(|s| {
        let bytes = s.sh_size(LE);
        bytes <= VERSIONS_MAX && u64::from(s.sh_info(LE)) * 16 <= bytes
    })
}

/// The names of one table of symbols, with a bound on what is read of them in all.
pub(super) struct Names<'d> {
    strings: &'d [u8],
    left: usize,
}

impl<'d> Names<'d> {
    pub fn of(
        data: &'d [u8],
        sections: &SectionTable<'d, Header>,
        table: &SymbolTable<'d, Header>,
    ) -> Names<'d> {
        let section = sections.section(table.string_section()).ok();
        let strings = section.and_then(|s| s.data(LE, data).ok()).unwrap_or_default();
        Names { strings, left: data.len().saturating_mul(NAMES_PER_BYTE) }
    }

    /// The name at `at`; `None` if there is none, or all that was allowed has been read.
    pub fn get(&mut self, at: u32) -> Option<&'d [u8]> {
        let rest = self.strings.get(at as usize..)?;
        let rest = &rest[..rest.len().min(SYMBOL_NAME_MAX).min(self.left)];
        let end = rest.iter().position(|&byte| byte == 0);
        self.left -= end.map_or(rest.len(), |end| end + 1);
        Some(&rest[..end?])
    }
}
