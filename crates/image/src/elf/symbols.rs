//! Symbol tables, whatever file they come from, as one list of plain records.
//!
//! For:     `function.rs`, which makes functions of them.
//! State:   none.
//! Context: control.
//! Keeps:   S1 every record's address is in code of the image; records of data, sections and files are left out.
//! Checked: tests/suite/elf.rs.

use std::ops::Range;

use object::elf;
use object::endian::LittleEndian as LE;
use object::read::SymbolIndex;
use object::read::elf::{FileHeader as _, SectionTable, Sym as _, SymbolTable, VersionTable};

use super::bounds::{Names, are_versions_short};
use super::header::Header;
use super::{ElfImage, Source};
use crate::ImageAddr;

/// Of a version's name; each symbol has a copy of it.
const VERSION_MAX: usize = 256;

/// One symbol that stands for code.
pub(super) struct Symbol<'d> {
    pub addr: u64,
    pub size_bytes: u64,
    pub name: &'d [u8],
    /// Its version, and whether that is what others get who ask for none.
    pub version: Option<(&'d [u8], bool)>,
    pub kind: SymbolKind,
    pub source: Source,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum SymbolKind {
    Untyped,
    Func,
    Ifunc,
}

/// Adds the symbols for code in the ELF file `data`; `source` tells which file it is.
pub(super) fn collect<'d>(
    image: &ElfImage,
    data: &'d [u8],
    source: Option<Source>,
    to: &mut Vec<Symbol<'d>>,
) {
    let Ok(header) = Header::parse(data) else { return };
    let Ok(sections) = header.sections(LE, data) else { return };
    for kind in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
        let Ok(table) = sections.symbols(LE, data, kind) else { continue };
        let is_dynamic = kind == elf::SHT_DYNSYM;
        let versions = if is_dynamic { versions(&sections, data) } else { VersionTable::default() };
        let own = if is_dynamic { Source::Dynsym } else { Source::Symtab };
        let names = Names::of(data, &sections, &table);
        one_table(image, &table, names, &versions, source.unwrap_or(own), to);
    }
}

fn versions<'d>(sections: &SectionTable<'d, Header>, data: &'d [u8]) -> VersionTable<'d, Header> {
    let read = || sections.versions(LE, data).ok().flatten();
    are_versions_short(sections).then(read).flatten().unwrap_or_default()
}

fn one_table<'d>(
    image: &ElfImage,
    table: &SymbolTable<'d, Header>,
    mut names: Names<'d>,
    versions: &VersionTable<'d, Header>,
    source: Source,
    to: &mut Vec<Symbol<'d>>,
) {
    let is_go = image.is_go();
    to.reserve(table.len());
    for (index, symbol) in table.enumerate() {
        let kind = match symbol.st_type() {
            elf::STT_FUNC => SymbolKind::Func,
            elf::STT_GNU_IFUNC => SymbolKind::Ifunc,
            elf::STT_NOTYPE => SymbolKind::Untyped,
            _ => continue,
        };
        let addr = symbol.st_value(LE);
        if symbol.is_undefined(LE) || symbol.is_absolute(LE) || !image.is_code(ImageAddr(addr)) {
            continue;
        }
        let Some(name) = names.get(symbol.st_name(LE)) else { continue };
        if name.is_empty() || is_marker(name) {
            continue;
        }
        // A symbol table in a file of glibc spells versions out; Go's names may hold the sign.
        let (name, version) = match version_of(versions, index) {
            None if !is_go => split_version(name),
            version => (name, version),
        };
        to.push(Symbol { addr, size_bytes: symbol.st_size(LE), name, version, kind, source });
    }
}

/// Marks that assemblers and Go's linker leave, which name no function.
fn is_marker(name: &[u8]) -> bool {
    name[0] == b'$' || name.starts_with(b".L") || matches!(name, b"runtime.text" | b"runtime.etext")
}

fn version_of<'d>(versions: &VersionTable<'d, Header>, index: SymbolIndex) -> Option<(&'d [u8], bool)> {
    if versions.is_empty() {
        return None;
    }
    let version_index = versions.version_index(LE, index);
    let version = versions.version(version_index.index()).ok()??;
    let name = version.name();
    (name.len() <= VERSION_MAX).then(|| (name, !version_index.is_hidden()))
}

/// `memcpy@@GLIBC_2.14` as a name, a version, and whether it is the default one.
fn split_version(name: &[u8]) -> (&[u8], Option<(&[u8], bool)>) {
    let Some(at) = name.iter().position(|&b| b == b'@').filter(|&at| at > 0) else { return (name, None) };
    let (bare, rest) = name.split_at(at);
    let is_default = rest.starts_with(b"@@");
    let version = &rest[if is_default { 2 } else { 1 }..];
    if version.is_empty() { (bare, None) } else { (bare, Some((version, is_default))) }
}

/// Ranges in code whose symbols say that they are data, from the file itself and sorted.
pub(super) fn data_in_code(image: &ElfImage) -> Vec<Range<ImageAddr>> {
    let data = image.data.as_slice();
    let Ok(header) = Header::parse(data) else { return Vec::new() };
    let Ok(sections) = header.sections(LE, data) else { return Vec::new() };
    let mut found = Vec::new();
    for kind in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
        let Ok(table) = sections.symbols(LE, data, kind) else { continue };
        let objects = table.iter().filter(|s| s.st_type() == elf::STT_OBJECT && s.st_size(LE) > 0);
        let ranges = objects.map(|s| {
            let start = s.st_value(LE);
            ImageAddr(start)..ImageAddr(start.saturating_add(s.st_size(LE)))
        });
        found.extend(ranges.filter(|r| image.is_code(r.start)));
    }
    found.sort_by_key(|r| r.start);
    found.dedup();
    found
}

/// A variable: where it is and how big.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Variable {
    /// Its name as in the symbol table.
    pub name: String,
    /// Its address.
    pub addr: ImageAddr,
    /// Its size, 0 if the symbol does not tell.
    pub size_bytes: u64,
}

/// The variables of an image, those of its debug file included; thread-local ones are left out.
pub(super) fn variables(image: &ElfImage) -> Vec<Variable> {
    let mut found = variables_in(&image.data);
    if let Some(debug) = image.debug_file() {
        found.extend(variables_in(&debug));
    }
    found.sort_by(|a, b| (a.addr, &a.name).cmp(&(b.addr, &b.name)));
    found.dedup_by(|a, b| a.addr == b.addr && a.name == b.name);
    found
}

fn variables_in(data: &[u8]) -> Vec<Variable> {
    let Ok(header) = Header::parse(data) else { return Vec::new() };
    let Ok(sections) = header.sections(LE, data) else { return Vec::new() };
    let mut found = Vec::new();
    for kind in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
        let Ok(table) = sections.symbols(LE, data, kind) else { continue };
        let mut names = Names::of(data, &sections, &table);
        for symbol in table.iter() {
            let is_object = matches!(symbol.st_type(), elf::STT_OBJECT | elf::STT_COMMON);
            if !is_object || symbol.is_undefined(LE) || symbol.is_absolute(LE) {
                continue;
            }
            let Some(name) = names.get(symbol.st_name(LE)) else { continue };
            let (name, _) = split_version(name);
            found.push(Variable {
                name: String::from_utf8_lossy(name).into_owned(),
                addr: ImageAddr(symbol.st_value(LE)),
                size_bytes: symbol.st_size(LE),
            });
        }
    }
    found
}

/// Names of functions that the image asks other images for, without repetition.
pub(super) fn imports(image: &ElfImage) -> Vec<String> {
    let data = image.data.as_slice();
    let Ok(header) = Header::parse(data) else { return Vec::new() };
    let Ok(sections) = header.sections(LE, data) else { return Vec::new() };
    let Ok(table) = sections.symbols(LE, data, elf::SHT_DYNSYM) else { return Vec::new() };
    let mut strings = Names::of(data, &sections, &table);
    let undefined = table.iter().filter(|s| s.is_undefined(LE) && s.st_name(LE) != 0);
    let mut names: Vec<_> = undefined
        .filter_map(|s| strings.get(s.st_name(LE)))
        .map(|n| String::from_utf8_lossy(n).into_owned())
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}
