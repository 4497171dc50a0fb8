//! Where the functions and types of the debug information are.
//!
//! For:     questions by address and by name.
//! State:   plain numbers; made in one pass over all entries.
//! Context: control.
//! Keeps:   I1 at most [`ENTRIES_MAX`] entries are read, and none after [`TIME_MAX`].
//! Checked: dwarf/tests.rs.

use super::{DEPTH_MAX, DebugInfo, Dwarf, Entry, TypeRef, Unit, flag, is_type, text};
use crate::ImageAddr;
use gimli::constants as c;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

const ENTRIES_MAX: usize = 4_000_000;
const TIME_MAX: Duration = Duration::from_secs(5);

/// What was found.
#[derive(Debug, Default)]
pub struct Index {
    /// By first address.
    pub functions: BTreeMap<u64, TypeRef>,
    /// By name, with its namespaces and without; the tag's word before it: `struct Foo`, `enum E`; typedefs and basic types bare.
    pub types: HashMap<String, TypeRef>,
    /// First addresses of inlined copies, by the entry of the function.
    pub inlined: HashMap<TypeRef, Vec<ImageAddr>>,
    /// Entries of functions by name.
    pub named: HashMap<String, Vec<TypeRef>>,
}

impl Index {
    pub fn of(info: &DebugInfo) -> Index {
        let mut index = Index::default();
        let (mut left, end) = (ENTRIES_MAX, Instant::now() + TIME_MAX);
        for (number, file) in info.files.iter().enumerate() {
            for &unit in &file.units {
                if left == 0 || Instant::now() > end {
                    return index;
                }
                let at = TypeRef { file: number as u32, unit, entry: 0 };
                info.with_unit(at.file, unit, |dwarf, unit| index.unit(info, at, dwarf, unit, &mut left));
            }
        }
        index
    }

    fn unit<'a>(
        &mut self,
        info: &DebugInfo,
        at: TypeRef,
        dwarf: &Dwarf<'a>,
        unit: &Unit<'a>,
        left: &mut usize,
    ) {
        let mut entries = unit.entries();
        // Names of what stands around an entry, by depth.
        let mut around: Vec<(isize, String)> = Vec::new();
        while let Ok(Some(entry)) = entries.next_dfs() {
            *left = left.saturating_sub(1);
            if *left == 0 {
                return;
            }
            let depth = entry.depth();
            while around.last().is_some_and(|(of, _)| *of >= depth) {
                around.pop();
            }
            let here = TypeRef { entry: entry.offset().0, ..at };
            match entry.tag() {
                c::DW_TAG_subprogram => self.function(here, dwarf, unit, entry),
                c::DW_TAG_inlined_subroutine => self.inlined_copy(info, here, dwarf, unit, entry),
                c::DW_TAG_namespace if around.len() < DEPTH_MAX => {
                    around.extend(text(dwarf, unit, entry, c::DW_AT_name).map(|name| (depth, name)));
                }
                tag if is_type(tag) => {
                    let Some(name) = text(dwarf, unit, entry, c::DW_AT_name) else { continue };
                    self.ty(here, entry, &name, &around);
                    if around.len() < DEPTH_MAX {
                        around.push((depth, name));
                    }
                }
                _ => {}
            }
        }
    }

    fn ty(&mut self, here: TypeRef, entry: &Entry<'_>, name: &str, around: &[(isize, String)]) {
        if flag(entry, c::DW_AT_declaration) {
            return;
        }
        let word = match entry.tag() {
            c::DW_TAG_structure_type | c::DW_TAG_class_type => "struct ",
            c::DW_TAG_union_type => "union ",
            c::DW_TAG_enumeration_type => "enum ",
            _ => "",
        };
        self.types.entry(format!("{word}{name}")).or_insert(here);
        if !around.is_empty() {
            let full: Vec<&str> = around.iter().map(|(_, name)| name.as_str()).chain([name]).collect();
            self.types.entry(format!("{word}{}", full.join("::"))).or_insert(here);
        }
    }

    fn function<'a>(&mut self, here: TypeRef, dwarf: &Dwarf<'a>, unit: &Unit<'a>, entry: &Entry<'a>) {
        if let Some(name) = text(dwarf, unit, entry, c::DW_AT_name) {
            self.named.entry(name).or_default().push(here);
        }
        if let Some(start) = first_address(dwarf, unit, entry).filter(|start| *start != 0) {
            self.functions.entry(start).or_insert(here);
        }
    }

    fn inlined_copy<'a>(
        &mut self,
        info: &DebugInfo,
        here: TypeRef,
        dwarf: &Dwarf<'a>,
        unit: &Unit<'a>,
        entry: &Entry<'a>,
    ) {
        let origin = entry.attr_value(c::DW_AT_abstract_origin);
        let origin = origin.and_then(|value| info.reference(here, &value));
        if let (Some(origin), Some(start)) = (origin, first_address(dwarf, unit, entry)) {
            self.inlined.entry(origin).or_default().push(ImageAddr(start));
        }
    }
}

/// Where execution enters.
fn first_address<'a>(dwarf: &Dwarf<'a>, unit: &Unit<'a>, entry: &Entry<'a>) -> Option<u64> {
    let of = |name| {
        let value = entry.attr_value(name)?;
        dwarf.attr_address(unit, value).ok().flatten()
    };
    if let Some(start) = of(c::DW_AT_entry_pc).or_else(|| of(c::DW_AT_low_pc)) {
        return Some(start);
    }
    let mut ranges = dwarf.die_ranges(unit, entry).ok()?;
    ranges.next().ok().flatten().map(|range| range.begin)
}
