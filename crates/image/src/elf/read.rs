//! Reading the parts of an ELF file that tracing needs.
//!
//! For:     opening programs whose debug information is a hundred times their code.
//! State:   none.
//! Context: control.
//! Keeps:   P1 headers, loaded segments, symbol tables, notes and `.gnu_debugdata` are as in the file;
//!          other bytes are zero, and their pages are never touched.
//! Checked: tests below.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use object::elf;
use object::endian::LittleEndian as LE;
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _};

use crate::ImageError;

type Header = elf::FileHeader64<LE>;

/// Larger files are refused: no image is this large, and a sparse file might be.
const MAX_BYTES: u64 = 4 << 30;

/// The bytes of the file, those that tracing does not need left zero.
pub(super) fn needed_parts(file: &File, path: &Path) -> Result<Vec<u8>, ImageError> {
    let io = |e| ImageError::io(path, e);
    let len = file.metadata().map_err(io)?.len();
    if len > MAX_BYTES {
        return Err(ImageError::Malformed { path: path.to_owned(), table: "length" });
    }
    // Zeroed memory from the allocator: pages that are not written to cost nothing.
    let mut data = vec![0_u8; len as usize];
    let first = data.len().min(4096);
    file.read_exact_at(&mut data[..first], 0).map_err(io)?;
    for range in table_ranges(&data) {
        read_range(file, &mut data, range).map_err(io)?;
    }
    if let Some(range) = name_range(&data) {
        read_range(file, &mut data, range).map_err(io)?;
    }
    for range in wanted_ranges(&data) {
        read_range(file, &mut data, range).map_err(io)?;
    }
    Ok(data)
}

fn read_range(file: &File, data: &mut [u8], (start, len): (u64, u64)) -> std::io::Result<()> {
    let start = usize::try_from(start).unwrap_or(usize::MAX).min(data.len());
    let end = start.saturating_add(usize::try_from(len).unwrap_or(usize::MAX)).min(data.len());
    file.read_exact_at(&mut data[start..end], start as u64)
}

/// The program header table and the section header table.
fn table_ranges(data: &[u8]) -> Vec<(u64, u64)> {
    let Ok(header) = Header::parse(data) else { return Vec::new() };
    let sections = match header.e_shnum(LE) {
        // The number is in the first section header then.
        0 if header.e_shoff(LE) != 0 => 1 << 20,
        n => u64::from(n) * 64,
    };
    vec![
        (header.e_phoff(LE), u64::from(header.e_phnum(LE)) * u64::from(header.e_phentsize(LE))),
        (header.e_shoff(LE), sections),
    ]
}

/// The section names.
fn name_range(data: &[u8]) -> Option<(u64, u64)> {
    let header = Header::parse(data).ok()?;
    let sections = header.section_headers(LE, data).ok()?;
    sections.get(header.shstrndx(LE, data).ok()? as usize)?.file_range(LE)
}

/// Loaded segments, notes, symbol tables with their strings, compressed symbols.
fn wanted_ranges(data: &[u8]) -> Vec<(u64, u64)> {
    let Ok(header) = Header::parse(data) else { return Vec::new() };
    let mut wanted = Vec::new();
    for p in header.program_headers(LE, data).unwrap_or_default() {
        if matches!(p.p_type(LE), elf::PT_LOAD | elf::PT_NOTE | elf::PT_DYNAMIC | elf::PT_INTERP) {
            wanted.push(p.file_range(LE));
        }
    }
    let Ok(sections) = header.sections(LE, data) else { return wanted };
    for s in sections.iter() {
        match s.sh_type(LE) {
            elf::SHT_SYMTAB | elf::SHT_DYNSYM => {
                wanted.extend(s.file_range(LE));
                wanted.extend(sections.section(s.link(LE)).ok().and_then(|s| s.file_range(LE)));
            }
            elf::SHT_NOTE => wanted.extend(s.file_range(LE)),
            elf::SHT_PROGBITS if sections.section_name(LE, s) == Ok(b".gnu_debugdata") => {
                wanted.extend(s.file_range(LE));
            }
            _ => {}
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_and_symbols_are_read_and_debug_information_is_not() {
        let path = std::env::current_exe().unwrap();
        let whole = std::fs::read(&path).unwrap();
        let parts = needed_parts(&File::open(&path).unwrap(), &path).unwrap();
        assert_eq!(whole.len(), parts.len());
        let header = Header::parse(whole.as_slice()).unwrap();
        let sections = header.sections(LE, whole.as_slice()).unwrap();
        for (name, is_read) in [
            (".text", true),
            (".symtab", true),
            (".strtab", true),
            (".eh_frame", true),
            (".debug_line", false),
        ] {
            let (_, section) =
                sections.section_by_name(LE, name.as_bytes()).unwrap_or_else(|| panic!("{name}"));
            let (start, len) = section.file_range(LE).unwrap();
            let range = start as usize..(start + len) as usize;
            let (was, is) = (&whole[range.clone()], &parts[range]);
            assert!(if is_read { was == is } else { is.iter().all(|&b| b == 0) }, "{name}");
        }
    }
}
