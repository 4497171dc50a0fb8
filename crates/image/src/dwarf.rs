//! What debug information says of functions, types and source lines.
//!
//! For:     scripts: `args`, typed `retval`, casts to the traced program's structs, `FILE:LINE`.
//! State:   the bytes of the debug sections; an index that is made on the first question.
//! Context: control.
//! Keeps:   D1 what is not known is not guessed.
//!          D2 no byte of the file makes this crate panic, loop for ever or read outside the file: the limits below.
//! Checked: dwarf/tests.rs, on programs that gcc builds with several options; `broken_debug_information_is_no_harm`.
//!
//! Found in this order: the file itself, the debug file of its build id, that of its debug link, beside it or below the
//! root of debug files. Split units (`.dwo`) are read from where the file says. Compressed sections (zlib, zstd) are.

mod index;
mod lines;
mod names;
mod place;
mod source;
mod types;

#[cfg(test)]
mod tests;

pub use place::{FunctionInfo, Parameter, Part};
pub use source::SourcePlace;
pub use types::{Aggregate, DebugType, Member};

use crate::elf::{DebugFile, ElfImage};
use gimli::{AttributeValue, EndianSlice, LittleEndian, UnitOffset, constants as c};
use index::Index;
use std::cell::OnceCell;
use std::path::PathBuf;

pub(crate) type Slice<'a> = EndianSlice<'a, LittleEndian>;
pub(crate) type Dwarf<'a> = gimli::Dwarf<Slice<'a>>;
pub(crate) type Unit<'a> = gimli::Unit<Slice<'a>>;
pub(crate) type Entry<'a> = gimli::DebuggingInformationEntry<Slice<'a>>;

/// Chromium has 30,000.
const UNITS_MAX: usize = 1 << 17;
/// Longer chains of types are a circle.
const DEPTH_MAX: usize = 32;

/// A type of the debug information: which file, unit and entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TypeRef {
    file: u32,
    unit: usize,
    entry: usize,
}

/// The debug information of one image.
#[derive(Debug)]
pub struct DebugInfo {
    /// The first is that of the image, the others are split units.
    files: Vec<File>,
    index: OnceCell<Index>,
}

/// One file with debug sections.
#[derive(Debug)]
struct File {
    data: DebugFile,
    /// Offsets of units, sorted.
    units: Vec<usize>,
    /// Of a split unit: the unit of the first file that it belongs to.
    skeleton: Option<usize>,
}

impl ElfImage {
    /// Its debug information, if there is any that can be read.
    pub fn debug_info(&self) -> Option<DebugInfo> {
        self.debug_info_in(&[])
    }

    /// The same, with separate debug files looked for in these directories too.
    pub fn debug_info_in(&self, dirs: &[PathBuf]) -> Option<DebugInfo> {
        let data = self.debug_files(dirs).into_iter().find(|data| data.section(".debug_info").is_some())?;
        let dir = data.path().parent().map(PathBuf::from).unwrap_or_default();
        let mut main = File { data, units: Vec::new(), skeleton: None };
        main.units = main.unit_offsets(None);
        let mut info = DebugInfo { files: vec![main], index: OnceCell::new() };
        for (skeleton, path) in info.split_units(&dir) {
            let Some(data) = DebugFile::open(&path) else { continue };
            let mut file = File { data, units: Vec::new(), skeleton: Some(skeleton) };
            file.units = file.unit_offsets(Some(&info.files[0]));
            info.files.push(file);
        }
        Some(info)
    }
}

impl File {
    fn dwarf<'a>(&'a self, parent: Option<&Dwarf<'a>>) -> Dwarf<'a> {
        let load = |id: gimli::SectionId| -> Result<Slice<'a>, gimli::Error> {
            let name = if parent.is_some() { id.dwo_name().unwrap_or("") } else { id.name() };
            Ok(EndianSlice::new(self.data.section(name).unwrap_or_default(), LittleEndian))
        };
        let mut dwarf = gimli::Dwarf::load(load).unwrap_or_default();
        if let Some(parent) = parent {
            dwarf.make_dwo(parent);
        }
        dwarf
    }

    fn unit_offsets(&self, parent: Option<&File>) -> Vec<usize> {
        let parent = parent.map(|parent| parent.dwarf(None));
        let dwarf = self.dwarf(parent.as_ref());
        let mut units = dwarf.units();
        let mut found = Vec::new();
        while let Ok(Some(header)) = units.next() {
            found.extend(header.debug_info_offset().map(|offset| offset.0));
            if found.len() == UNITS_MAX {
                break;
            }
        }
        found
    }
}

impl DebugInfo {
    /// Units of the first file whose rest is in another file.
    fn split_units(&self, dir: &std::path::Path) -> Vec<(usize, PathBuf)> {
        let dwarf = self.files[0].dwarf(None);
        let mut found = Vec::new();
        for &at in &self.files[0].units {
            let header = dwarf.unit_header(gimli::DebugInfoOffset(at));
            let Ok(unit) = header.and_then(|header| dwarf.unit(header)) else { continue };
            let Some(name) = unit.dwo_name().ok().flatten() else { continue };
            let Ok(name) = dwarf.attr_string(&unit, name) else { continue };
            let name = name.to_string_lossy().into_owned();
            let comp_dir = unit.comp_dir.map(|dir| dir.to_string_lossy().into_owned()).unwrap_or_default();
            let places = [PathBuf::from(&comp_dir).join(&name), dir.join(&name)];
            found.extend(places.into_iter().find(|path| path.is_file()).map(|path| (at, path)));
        }
        found
    }

    /// Asks something of one unit.
    fn with_unit<'a, T>(
        &'a self,
        file: u32,
        unit: usize,
        ask: impl FnOnce(&Dwarf<'a>, &Unit<'a>) -> T,
    ) -> Option<T> {
        let first = self.files[0].dwarf(None);
        let file = self.files.get(file as usize)?;
        match file.skeleton {
            None => {
                let header = first.unit_header(gimli::DebugInfoOffset(unit)).ok()?;
                Some(ask(&first, &first.unit(header).ok()?))
            }
            Some(skeleton) => {
                let dwarf = file.dwarf(Some(&first));
                let mut inner = dwarf.unit(dwarf.unit_header(gimli::DebugInfoOffset(unit)).ok()?).ok()?;
                let outer = first.unit(first.unit_header(gimli::DebugInfoOffset(skeleton)).ok()?).ok()?;
                inner.copy_relocated_attributes(&outer);
                Some(ask(&dwarf, &inner))
            }
        }
    }

    /// What an attribute of an entry of this unit refers to.
    fn reference(&self, from: TypeRef, value: &AttributeValue<Slice<'_>>) -> Option<TypeRef> {
        match value {
            AttributeValue::UnitRef(at) => Some(TypeRef { entry: at.0, ..from }),
            AttributeValue::DebugInfoRef(at) => {
                let units = &self.files.get(from.file as usize)?.units;
                let after = units.partition_point(|unit| *unit <= at.0);
                let unit = *units.get(after.checked_sub(1)?)?;
                Some(TypeRef { file: from.file, unit, entry: at.0 - unit })
            }
            _ => None,
        }
    }

    /// Asks something of one entry.
    fn with_entry<'a, T>(
        &'a self,
        at: TypeRef,
        ask: impl FnOnce(&Dwarf<'a>, &Unit<'a>, &Entry<'a>) -> Option<T>,
    ) -> Option<T> {
        self.with_unit(at.file, at.unit, |dwarf, unit| {
            let entry = unit.entry(UnitOffset(at.entry)).ok()?;
            ask(dwarf, unit, &entry)
        })?
    }

    fn index(&self) -> &Index {
        self.index.get_or_init(|| Index::of(self))
    }
}

fn text<'a>(dwarf: &Dwarf<'a>, unit: &Unit<'a>, entry: &Entry<'a>, name: gimli::DwAt) -> Option<String> {
    let value = entry.attr_value(name)?;
    dwarf.attr_string(unit, value).ok().map(|text| text.to_string_lossy().into_owned())
}

fn flag(entry: &Entry<'_>, name: gimli::DwAt) -> bool {
    matches!(entry.attr_value(name), Some(AttributeValue::Flag(true)))
}

fn number(entry: &Entry<'_>, name: gimli::DwAt) -> Option<u64> {
    let value = entry.attr_value(name)?;
    value.udata_value().or_else(|| value.sdata_value().map(i64::cast_unsigned))
}

fn is_type(tag: gimli::DwTag) -> bool {
    matches!(
        tag,
        c::DW_TAG_structure_type
            | c::DW_TAG_class_type
            | c::DW_TAG_union_type
            | c::DW_TAG_enumeration_type
            | c::DW_TAG_typedef
            | c::DW_TAG_base_type
    )
}
