//! What functions return and take, from debug information.
//!
//! For:     showing an `int` of -1 as -1: a register does not say how wide a value is.
//! State:   none; each call reads the file's debug sections anew.
//! Context: control.
//! Keeps:   T1 what is not known is not guessed.
//!          T2 sections of more than `SECTION_MAX` bytes, more than `UNITS_MAX` units and more than `ENTRIES_MAX` entries
//!          are not read, nor is anything after `TIME_MAX`.
//! Checked: tests below, on this test's own debug information; cli's tests of `trace`.

use super::ElfImage;
use super::header::Header;
use crate::ImageAddr;
use gimli::{AttributeValue, EndianSlice, LittleEndian, UnitOffset, constants as c};
use object::endian::LittleEndian as LE;
use object::read::elf::{FileHeader as _, SectionHeader as _};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::Path;
use std::time::{Duration, Instant};

const SECTION_MAX: u64 = 64 << 20;
const FILE_MAX: u64 = 256 << 20;
/// Chromium has 30,000.
const UNITS_MAX: usize = 1 << 17;
const ENTRIES_MAX: usize = 2_000_000;
const TIME_MAX: Duration = Duration::from_secs(5);
/// Longer chains of types are a circle.
const DEPTH_MAX: usize = 16;

type Slice<'a> = EndianSlice<'a, LittleEndian>;
type Unit<'a> = gimli::Unit<Slice<'a>>;
type Entry<'a> = gimli::DebuggingInformationEntry<Slice<'a>>;

/// A value's kind, as far as it decides how a register is shown.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// No value.
    Void,
    /// A number with a sign, of so many bytes.
    Signed(u8),
    /// A number without.
    Unsigned(u8),
    /// An address.
    Pointer,
    /// Not in a general register: a floating-point number, a structure.
    Other,
}

/// What a function returns and takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Signature {
    /// What it returns.
    pub returns: Kind,
    /// What it takes; without those behind `...`.
    pub arguments: Vec<Kind>,
}

impl ElfImage {
    /// The signatures of those of these functions that the file's debug information, or a separate debug file's, tells of.
    pub fn signatures(&self, functions: &[ImageAddr]) -> BTreeMap<ImageAddr, Signature> {
        let files = std::iter::once(self.path().to_owned()).chain(self.debug_file_path());
        let mut found = BTreeMap::new();
        for path in files {
            let Some(data) = whole(&path) else { continue };
            if super::bounds::excess(&data).is_none()
                && super::header::build_id(&data).as_deref() == self.build_id()
            {
                let _ = read(&data, functions, &mut found);
            }
            if !found.is_empty() {
                break;
            }
        }
        found
    }
}

/// The whole of a regular file that is not too long.
fn whole(path: &Path) -> Option<Vec<u8>> {
    let mut file = super::read::open(path).ok()?;
    let is_short = file.metadata().is_ok_and(|m| m.is_file() && m.len() <= FILE_MAX);
    let mut data = Vec::new();
    (is_short && file.read_to_end(&mut data).is_ok()).then_some(data)
}

fn read(
    data: &[u8],
    wanted: &[ImageAddr],
    found: &mut BTreeMap<ImageAddr, Signature>,
) -> Result<(), gimli::Error> {
    let section = |id: gimli::SectionId| -> Result<Slice<'_>, gimli::Error> {
        Ok(EndianSlice::new(section(data, id.name()).unwrap_or_default(), LittleEndian))
    };
    let dwarf = gimli::Dwarf::load(section)?;
    let mut units = dwarf.units();
    let (mut units_left, mut left) = (UNITS_MAX, ENTRIES_MAX);
    let wanted: BTreeSet<_> = wanted.iter().copied().collect();
    let end = Instant::now() + TIME_MAX;
    while let Some(header) = units.next()? {
        // Units may share a table of abbreviations, or tables may lie in one another: each unit reads its own anew.
        if units_left == 0 || Instant::now() > end {
            return Ok(());
        }
        units_left -= 1;
        let unit = dwarf.unit(header)?;
        let mut entries = unit.entries();
        // With line tables alone every function would look like one without arguments and result.
        let (mut has_types, mut of_unit) = (false, Vec::new());
        while let Some(entry) = entries.next_dfs()? {
            left = left.saturating_sub(1);
            if left == 0 {
                return Ok(());
            }
            has_types |= entry.tag() == c::DW_TAG_base_type;
            if entry.tag() != c::DW_TAG_subprogram {
                continue;
            }
            let Some(start) = entry.attr_value(c::DW_AT_low_pc) else { continue };
            let Some(start) = dwarf.attr_address(&unit, start)?.map(ImageAddr) else { continue };
            if wanted.contains(&start) && Instant::now() < end {
                let offset = entry.offset();
                of_unit.push((start, signature(&unit, offset)?));
            }
        }
        found.extend(of_unit.into_iter().filter(|_| has_types));
        if found.len() == wanted.len() {
            return Ok(());
        }
    }
    Ok(())
}

fn section<'d>(data: &'d [u8], name: &str) -> Option<&'d [u8]> {
    const COMPRESSED: u64 = 1 << 11;
    let sections = Header::parse(data).ok()?.sections(LE, data).ok()?;
    let (_, section) = sections.section_by_name(LE, name.as_bytes())?;
    let is_plain = section.sh_flags(LE).0 & COMPRESSED == 0 && section.sh_size(LE) <= SECTION_MAX;
    is_plain.then(|| section.data(LE, data).ok()).flatten()
}

fn signature(unit: &Unit<'_>, function: UnitOffset) -> Result<Signature, gimli::Error> {
    let entry = unit.entry(function)?;
    let mut arguments = Vec::new();
    let mut children = unit.entries_at_offset(function)?;
    children.next_dfs()?;
    let depth = entry_depth(&mut children);
    while let Some(child) = children.next_dfs()? {
        if child.depth() <= depth || child.tag() == c::DW_TAG_unspecified_parameters {
            break;
        }
        if child.tag() == c::DW_TAG_formal_parameter && child.depth() == depth + 1 {
            arguments.push(kind_of(unit, child)?);
        }
    }
    Ok(Signature { returns: kind_of(unit, &entry)?, arguments })
}

fn entry_depth(at: &mut gimli::EntriesCursor<'_, Slice<'_>>) -> isize {
    at.current().map_or(0, gimli::DebuggingInformationEntry::depth)
}

/// The kind of what an entry's type says; an entry may refer to another that has it.
fn kind_of<'a>(unit: &Unit<'a>, entry: &Entry<'a>) -> Result<Kind, gimli::Error> {
    let mut entry = entry.clone();
    for _ in 0..DEPTH_MAX {
        if let Some(of) = entry.attr_value(c::DW_AT_type) {
            return resolve(unit, of);
        }
        let origin = entry.attr_value(c::DW_AT_abstract_origin);
        match origin.or_else(|| entry.attr_value(c::DW_AT_specification)) {
            Some(AttributeValue::UnitRef(at)) => entry = unit.entry(at)?,
            Some(_) => return Ok(Kind::Other),
            None => return Ok(Kind::Void),
        }
    }
    Ok(Kind::Other)
}

fn resolve<'a>(unit: &Unit<'a>, mut of: AttributeValue<Slice<'a>>) -> Result<Kind, gimli::Error> {
    for _ in 0..DEPTH_MAX {
        let AttributeValue::UnitRef(at) = of else { return Ok(Kind::Other) };
        let entry = unit.entry(at)?;
        let bytes = entry.attr_value(c::DW_AT_byte_size).and_then(|v| v.udata_value()).unwrap_or(0);
        let bytes = u8::try_from(bytes).ok().filter(|n| matches!(n, 1 | 2 | 4 | 8));
        let inner = entry.attr_value(c::DW_AT_type);
        match (entry.tag(), inner) {
            (c::DW_TAG_pointer_type | c::DW_TAG_reference_type | c::DW_TAG_rvalue_reference_type, _) => {
                return Ok(Kind::Pointer);
            }
            (c::DW_TAG_base_type, _) => {
                let encoding = entry.attr_value(c::DW_AT_encoding);
                return Ok(match (encoding, bytes) {
                    (Some(AttributeValue::Encoding(c::DW_ATE_signed | c::DW_ATE_signed_char)), Some(n)) => {
                        Kind::Signed(n)
                    }
                    (
                        Some(AttributeValue::Encoding(
                            c::DW_ATE_unsigned | c::DW_ATE_unsigned_char | c::DW_ATE_boolean | c::DW_ATE_UTF,
                        )),
                        Some(n),
                    ) => Kind::Unsigned(n),
                    _ => Kind::Other,
                });
            }
            (c::DW_TAG_enumeration_type, None) => {
                return Ok(bytes.map_or(Kind::Other, Kind::Signed));
            }
            (
                c::DW_TAG_typedef
                | c::DW_TAG_const_type
                | c::DW_TAG_volatile_type
                | c::DW_TAG_restrict_type
                | c::DW_TAG_atomic_type
                | c::DW_TAG_enumeration_type,
                Some(inner),
            ) => of = inner,
            _ => return Ok(Kind::Other),
        }
    }
    Ok(Kind::Other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    extern "C" fn signature_of_this_one(a: i32, b: u64, c: *const u8, d: i8) -> i16 {
        std::hint::black_box((a, b, c, d));
        -1
    }

    #[inline(never)]
    extern "C" fn signature_of_nothing(x: f64) {
        std::hint::black_box(x);
    }

    #[test]
    fn debug_information_tells_widths_and_signs() {
        assert_eq!(signature_of_this_one(1, 2, std::ptr::null(), 3), -1);
        signature_of_nothing(1.0);
        let path = std::env::current_exe().unwrap();
        let image = ElfImage::open(&path).unwrap();
        let at = |name: &str| {
            let is_it = |f: &&crate::Function| f.names.iter().any(|n| n.demangled().ends_with(name));
            image.functions().iter().find(is_it).unwrap().addr
        };
        let (first, second) = (at("signature_of_this_one"), at("signature_of_nothing"));
        let found = image.signatures(&[first, second]);
        if found.is_empty() {
            return; // built with line tables alone: then there is nothing to tell, and nothing is guessed
        }
        let arguments = vec![Kind::Signed(4), Kind::Unsigned(8), Kind::Pointer, Kind::Signed(1)];
        assert_eq!(found[&first], Signature { returns: Kind::Signed(2), arguments });
        assert_eq!(found[&second], Signature { returns: Kind::Void, arguments: vec![Kind::Other] });
    }

    #[test]
    fn broken_debug_information_is_none() {
        let data = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let mut broken = data.clone();
        // Every 97th byte of the second half, where the debug sections are.
        broken.iter_mut().skip(data.len() / 2).step_by(97).for_each(|b| *b ^= 0x5a);
        let _ = read(&broken, &[ImageAddr(0x1000)], &mut BTreeMap::new());
        let _ = read(&data[..data.len() / 3], &[ImageAddr(0x1000)], &mut BTreeMap::new());
    }
}
