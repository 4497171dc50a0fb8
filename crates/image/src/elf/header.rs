//! The facts about an ELF file that are read at once when it is opened.
//!
//! For:     `ElfImage`, which answers from them.
//! State:   plain data, made once.
//! Context: control.
//! Keeps:   H1 every segment's file range lies inside the file; code ranges are sorted and disjoint.
//! Checked: tests/suite/elf.rs, `broken_files_give_errors_or_less_but_never_a_panic`.

use std::ops::Range;
use std::path::{Path, PathBuf};

use object::elf;
use object::endian::LittleEndian as LE;
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _};

use super::{Machine, Section, Segment, bounds};
use crate::{FileOffset, ImageAddr, ImageError};

pub(super) type Header = elf::FileHeader64<LE>;
type ProgramHeader = elf::ProgramHeader64<LE>;

/// The largest browsers have half of this.
const CODE_MAX: u64 = 512 << 20;
/// Of a name of a library or a path in the headers.
const STRING_MAX: usize = 4096;
const NEEDED_MAX: usize = 4096;

#[derive(Debug)]
pub(super) struct Head {
    pub machine: Machine,
    pub is_fixed: bool,
    pub is_guarded: bool,
    pub entry: ImageAddr,
    pub segments: Vec<Segment>,
    pub sections: Vec<Section>,
    pub code: Vec<Range<ImageAddr>>,
    pub soname: Option<String>,
    pub needed: Vec<String>,
    pub build_id: Option<Vec<u8>>,
    pub interpreter: Option<PathBuf>,
}

impl Head {
    pub fn parse(data: &[u8], path: &Path) -> Result<Head, ImageError> {
        let header = parse_header(data, path)?;
        let refused = |why| ImageError::Refused { path: path.to_owned(), why };
        match header.e_type(LE) {
            elf::ET_REL => return Err(refused("it is an object file, which no process loads")),
            elf::ET_CORE => return Err(refused("it is a core file, a dead process's memory")),
            _ => {}
        }
        bounds::excess(data).map_or(Ok(()), |why| Err(refused(why)))?;
        let malformed = |table| ImageError::Malformed { path: path.to_owned(), table };
        let programs = header.program_headers(LE, data).map_err(|_| malformed("program header table"))?;
        let segments = segments(programs, data).ok_or_else(|| malformed("loaded segments"))?;
        // A file whose section headers were cut off still runs; it is read with less.
        let sections = sections(header, data);
        let code = code_ranges(&sections, &segments);
        if code.iter().map(|r| r.end.0 - r.start.0).sum::<u64>() > CODE_MAX {
            return Err(refused("it has more than 512 MiB of code"));
        }
        let (soname, needed) = dynamic_names(programs, &segments, data);
        Ok(Head {
            machine: match header.e_machine(LE) {
                elf::EM_X86_64 => Machine::X86_64,
                elf::EM_AARCH64 => Machine::Aarch64,
                other => Machine::Other(other.0),
            },
            is_guarded: is_guarded(programs, data),
            is_fixed: header.e_type(LE) == elf::ET_EXEC,
            entry: ImageAddr(header.e_entry(LE)),
            build_id: build_id(data),
            interpreter: interpreter(programs, data),
            segments,
            sections,
            code,
            soname,
            needed,
        })
    }
}

fn parse_header<'d>(data: &'d [u8], path: &Path) -> Result<&'d Header, ImageError> {
    let path = || path.to_owned();
    if data.get(..4) != Some(b"\x7fELF") {
        return Err(ImageError::NotElf { path: path() });
    }
    let is_64 = data.get(4) == Some(&2);
    let is_little = data.get(5) == Some(&1);
    if !is_64 || !is_little {
        return Err(ImageError::OtherClass { path: path(), is_64, is_little });
    }
    Header::parse(data).map_err(|_| ImageError::Malformed { path: path(), table: "header" })
}

/// The loaded segments, `None` if one is not inside the file or wraps around.
fn segments(programs: &[ProgramHeader], data: &[u8]) -> Option<Vec<Segment>> {
    let loaded = programs.iter().filter(|p| p.p_type(LE) == elf::PT_LOAD);
    loaded
        .map(|p| {
            let (offset, len) = p.file_range(LE);
            let start = p.p_vaddr(LE);
            let end = start.checked_add(len)?;
            start.checked_add(p.p_memsz(LE))?;
            (offset.checked_add(len)? <= data.len() as u64).then_some(())?;
            Some(Segment {
                range: ImageAddr(start)..ImageAddr(end),
                offset: FileOffset(offset),
                memory_bytes: p.p_memsz(LE),
                is_writable: p.p_flags(LE).contains(elf::PF_W),
                is_executable: p.p_flags(LE).contains(elf::PF_X),
            })
        })
        .collect()
}

fn sections(header: &Header, data: &[u8]) -> Vec<Section> {
    let Ok(table) = header.sections(LE, data) else { return Vec::new() };
    let loaded = table.iter().filter(|s| s.sh_flags(LE).contains(elf::SHF_ALLOC));
    loaded
        .filter_map(|s| {
            let start = s.sh_addr(LE);
            let end = start.checked_add(s.sh_size(LE))?;
            let name = table.section_name(LE, s).unwrap_or_default();
            Some(Section {
                name: String::from_utf8_lossy(name).into_owned(),
                range: ImageAddr(start)..ImageAddr(end),
                is_executable: s.sh_flags(LE).contains(elf::SHF_EXECINSTR),
                is_writable: s.sh_flags(LE).contains(elf::SHF_WRITE),
                is_in_file: s.sh_type(LE) != elf::SHT_NOBITS,
            })
        })
        .collect()
}

/// Executable sections that lie in executable segments; those segments if there are no sections.
fn code_ranges(sections: &[Section], segments: &[Segment]) -> Vec<Range<ImageAddr>> {
    let executable = || segments.iter().filter(|s| s.is_executable);
    let is_inside =
        |r: &Range<ImageAddr>| executable().any(|s| s.range.start <= r.start && r.end <= s.range.end);
    let of_sections = sections.iter().filter(|s| s.is_executable && s.is_in_file);
    let mut code: Vec<_> =
        of_sections.map(|s| s.range.clone()).filter(|r| !r.is_empty() && is_inside(r)).collect();
    if code.is_empty() {
        code = executable().map(|s| s.range.clone()).filter(|r| !r.is_empty()).collect();
    }
    code.sort_by_key(|r| r.start);
    // Overlapping ranges would break the binary search; only a hostile file has them.
    code.dedup_by(|next, kept| {
        let overlaps = next.start < kept.end;
        if overlaps {
            kept.end = kept.end.max(next.end);
        }
        overlaps
    });
    code
}

/// The soname and the needed names, read through the segments so that sections are not necessary.
fn dynamic_names(
    programs: &[ProgramHeader],
    segments: &[Segment],
    data: &[u8],
) -> (Option<String>, Vec<String>) {
    let Some(entries) = programs.iter().find_map(|p| p.dynamic(LE, data).ok().flatten()) else {
        return (None, Vec::new());
    };
    let value = |tag| entries.iter().find(|d| d.d_tag.get(LE) == tag).map(|d| d.d_val.get(LE));
    let Some(strings) = value(elf::DT_STRTAB) else { return (None, Vec::new()) };
    let string = |at: u64| string_at(segments, data, strings.checked_add(at)?);
    let soname = value(elf::DT_SONAME).and_then(string);
    let needed = entries.iter().filter(|d| d.d_tag.get(LE) == elf::DT_NEEDED).take(NEEDED_MAX);
    (soname, needed.filter_map(|d| string(d.d_val.get(LE))).collect())
}

fn string_at(segments: &[Segment], data: &[u8], addr: u64) -> Option<String> {
    let segment = segments.iter().find(|s| s.range.contains(&ImageAddr(addr)))?;
    let start = segment.offset.0 + (addr - segment.range.start.0);
    let end = segment.offset.0 + (segment.range.end.0 - segment.range.start.0);
    let bytes = data.get(start as usize..end as usize)?;
    let len = bytes.iter().take(STRING_MAX).position(|&b| b == 0)?;
    Some(String::from_utf8_lossy(&bytes[..len]).into_owned())
}

fn interpreter(programs: &[ProgramHeader], data: &[u8]) -> Option<PathBuf> {
    let bytes = programs.iter().find_map(|p| p.interpreter(LE, data).ok().flatten())?;
    (bytes.len() <= STRING_MAX).then(|| PathBuf::from(String::from_utf8_lossy(bytes).into_owned()))
}

/// Whether the note of properties asks for branch targets that are checked (AArch64).
fn is_guarded(programs: &[ProgramHeader], data: &[u8]) -> bool {
    /// `GNU_PROPERTY_AARCH64_FEATURE_1_AND`, and its bit for BTI.
    const FEATURES: u32 = 0xc000_0000;
    const BTI: u32 = 1;
    const NT_GNU_PROPERTY_TYPE_0: u32 = 5;
    let word = |bytes: &[u8], at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    programs.iter().filter_map(|p| p.notes(LE, data).ok().flatten()).any(|mut notes| {
        while let Ok(Some(note)) = notes.next() {
            if note.name() != b"GNU" || note.n_type(LE).0 != NT_GNU_PROPERTY_TYPE_0 {
                continue;
            }
            let (desc, mut at) = (note.desc(), 0);
            while let (Some(kind), Some(len)) = (word(desc, at), word(desc, at + 4)) {
                if kind == FEATURES && word(desc, at + 8).is_some_and(|features| features & BTI != 0) {
                    return true;
                }
                at = at.saturating_add(8).saturating_add((len as usize).next_multiple_of(8));
            }
        }
        false
    })
}

/// The build id in the ELF file `data`, be it an image or a debug file.
pub(super) fn build_id(data: &[u8]) -> Option<Vec<u8>> {
    let header = Header::parse(data).ok()?;
    let programs = header.program_headers(LE, data).unwrap_or_default();
    let in_segments = programs.iter().filter_map(|p| p.notes(LE, data).ok().flatten());
    // A debug file keeps the note's section, but its program headers lead to other bytes.
    let table = header.sections(LE, data).unwrap_or_default();
    let in_sections = table.iter().filter_map(|s| s.notes(LE, data).ok().flatten());
    in_sections.chain(in_segments).find_map(|mut notes| {
        while let Ok(Some(note)) = notes.next() {
            if note.name() == b"GNU" && note.n_type(LE) == elf::NT_GNU_BUILD_ID {
                return Some(note.desc().to_vec());
            }
        }
        None
    })
}
