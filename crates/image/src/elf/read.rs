//! Reading the parts of an ELF file that tracing needs.
//!
//! For:     opening programs whose debug information is a hundred times their code.
//! State:   none.
//! Context: control.
//! Keeps:   P1 headers, loaded segments, symbol tables, notes and `.gnu_debugdata` are as in the file;
//!          other bytes are zero, and their pages are never touched.
//!          P2 no byte is read twice, no zero page is written, and no file that is not a regular one is read.
//! Checked: tests below, tests/suite/mutants.rs.

use std::fs::{File, FileType};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use object::elf;
use object::endian::LittleEndian as LE;
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _};

use super::bounds;
use crate::ImageError;

type Header = elf::FileHeader64<LE>;

/// Larger files are refused: no image is this large, and a sparse file might be.
const MAX_BYTES: u64 = 4 << 30;
/// What is not zero of the parts that are read; the largest browsers have a third of this.
const MAX_PARTS: u64 = 768 << 20;
const CHUNK: usize = 1 << 16;

/// A file for reading, without waiting for somebody to write to a FIFO that took its path.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    const O_NONBLOCK: i32 = 0o4000;
    File::options().read(true).custom_flags(O_NONBLOCK).open(path)
}

/// The bytes of the file, those that tracing does not need left zero.
pub(super) fn needed_parts(file: &File, path: &Path) -> Result<Vec<u8>, ImageError> {
    let io = |e| ImageError::io(path, e);
    let refused = |why| ImageError::Refused { path: path.to_owned(), why };
    let metadata = file.metadata().map_err(io)?;
    other_kind(metadata.file_type()).map_or(Ok(()), |why| Err(refused(why)))?;
    let len = metadata.len();
    if len > MAX_BYTES {
        return Err(refused("it is longer than 4 GiB"));
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
    bounds::excess(&data).map_or(Ok(()), |why| Err(refused(why)))?;
    let mut parts = 0;
    for range in merged(wanted_ranges(&data)) {
        parts += read_range(file, &mut data, range).map_err(io)?;
        if parts > MAX_PARTS {
            return Err(refused("it has more than 768 MiB to load"));
        }
    }
    Ok(data)
}

/// What a file is that is none to read from.
fn other_kind(kind: FileType) -> Option<&'static str> {
    match () {
        () if kind.is_file() => None,
        () if kind.is_dir() => Some("it is a directory"),
        () if kind.is_fifo() => Some("it is a FIFO"),
        () => Some("it is a device or a socket"),
    }
}

/// Reads a range, its part inside the file, up to more than `MAX_PARTS`; how many bytes of pages were not all zero.
fn read_range(file: &File, data: &mut [u8], (start, len): (u64, u64)) -> io::Result<u64> {
    let start = usize::try_from(start).unwrap_or(usize::MAX).min(data.len());
    let end = start.saturating_add(usize::try_from(len).unwrap_or(usize::MAX)).min(data.len());
    let mut buffer = vec![0; CHUNK.min(end - start)];
    let (mut at, mut written) = (start as u64, 0);
    for chunk in data[start..end].chunks_mut(CHUNK) {
        let read = &mut buffer[..chunk.len()];
        file.read_exact_at(read, at)?;
        at += chunk.len() as u64;
        // A sparse file's zeros are not written down: they would cost memory.
        if read.iter().any(|&byte| byte != 0) {
            chunk.copy_from_slice(read);
            written += chunk.len() as u64;
        }
        if written > MAX_PARTS {
            break;
        }
    }
    Ok(written)
}

/// The same bytes, each in one range.
fn merged(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (start, len) in ranges {
        let end = start.saturating_add(len);
        match merged.last_mut() {
            Some((first, bytes)) if start <= first.saturating_add(*bytes) => {
                *bytes = (*bytes).max(end - *first)
            }
            _ => merged.push((start, end - start)),
        }
    }
    merged
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
