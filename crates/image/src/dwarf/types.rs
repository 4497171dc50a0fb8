//! Types, one level at a time.
//!
//! For:     whoever needs a value's size and parts.
//! State:   none.
//! Context: control.
//! Keeps:   1. A type's parts are references: a circle is the caller's to notice.
//! Checked: dwarf/tests.rs.

use super::{DEPTH_MAX, DebugInfo, TypeRef, Unit, flag, number, text};
use gimli::{AttributeValue, UnitOffset, constants as c};

/// Entries inside one entry.
const PARTS_MAX: usize = 100_000;

/// What a type is; `None` as a reference is `void`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DebugType {
    /// One byte, true or false.
    Bool,
    /// A number of 1, 2, 4, 8 or 16 bytes.
    Int {
        /// Bytes.
        size: u8,
        /// It has a sign.
        is_signed: bool,
        /// It is a character.
        is_char: bool,
    },
    /// A floating-point number of 4 or 8 bytes.
    Float(u8),
    /// An address.
    Pointer(Option<TypeRef>),
    /// So many of one type, the outermost count first; 0: not said.
    Array(Option<TypeRef>, Vec<u64>),
    /// A struct, class or union.
    Aggregate(Aggregate),
    /// An enum.
    Enum {
        /// Its name, empty if it has none.
        name: String,
        /// Bytes.
        size: u8,
        /// It has a sign.
        is_signed: bool,
        /// Names and values.
        variants: Vec<(String, i64)>,
    },
    /// Another name, `const` and the like included.
    Alias(Option<TypeRef>),
    /// Something else of so many bytes.
    Other(u64),
}

/// A struct, class or union.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Aggregate {
    /// Empty if it has none.
    pub name: String,
    /// A union.
    pub is_union: bool,
    /// Bytes.
    pub size: u64,
    /// Nothing but its name is known.
    pub is_declaration: bool,
    /// In order; bases of a class are members without a name.
    pub members: Vec<Member>,
}

/// A member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// `None`: its own members are those of the struct.
    pub name: Option<String>,
    /// What it is.
    pub ty: Option<TypeRef>,
    /// Bytes from the start.
    pub offset: u64,
    /// Of a bit field: the first bit counted from `offset`, and how many.
    pub bits: Option<(u64, u64)>,
}

impl DebugInfo {
    /// The type that is written so: `struct Foo`, `enum E`, `my_typedef`, `ns::Name`.
    pub fn type_named(&self, name: &str) -> Option<TypeRef> {
        let types = &self.index().types;
        let words = ["", "struct ", "union ", "enum "];
        let bare = words.iter().find_map(|word| types.get(&format!("{word}{name}")));
        types.get(name).or(bare).copied()
    }

    /// What a type is.
    pub fn ty(&self, at: TypeRef) -> Option<DebugType> {
        self.with_entry(at, |dwarf, unit, entry| {
            let to = entry.attr_value(c::DW_AT_type).and_then(|value| self.reference(at, &value));
            let size = number(entry, c::DW_AT_byte_size);
            Some(match entry.tag() {
                c::DW_TAG_base_type => basic(entry.attr_value(c::DW_AT_encoding), size.unwrap_or(0)),
                c::DW_TAG_pointer_type | c::DW_TAG_reference_type | c::DW_TAG_rvalue_reference_type => {
                    DebugType::Pointer(to)
                }
                c::DW_TAG_typedef
                | c::DW_TAG_const_type
                | c::DW_TAG_volatile_type
                | c::DW_TAG_restrict_type
                | c::DW_TAG_atomic_type
                | c::DW_TAG_immutable_type => DebugType::Alias(to),
                c::DW_TAG_structure_type | c::DW_TAG_class_type | c::DW_TAG_union_type => {
                    let aggregate = Aggregate {
                        name: text(dwarf, unit, entry, c::DW_AT_name).unwrap_or_default(),
                        is_union: entry.tag() == c::DW_TAG_union_type,
                        size: size.unwrap_or(0),
                        is_declaration: flag(entry, c::DW_AT_declaration),
                        members: self.members(at, dwarf, unit),
                    };
                    return Some(DebugType::Aggregate(self.defined(aggregate)));
                }
                c::DW_TAG_array_type => DebugType::Array(to, counts(unit, at)),
                c::DW_TAG_enumeration_type => {
                    let variants = variants(dwarf, unit, at);
                    let is_signed = variants.iter().any(|(_, value)| *value < 0);
                    let size = size.filter(|n| matches!(n, 1 | 2 | 4 | 8)).unwrap_or(4) as u8;
                    let name = text(dwarf, unit, entry, c::DW_AT_name).unwrap_or_default();
                    DebugType::Enum { name, size, is_signed, variants }
                }
                c::DW_TAG_subroutine_type => DebugType::Other(0),
                _ => DebugType::Other(size.unwrap_or(0)),
            })
        })
    }

    /// The definition of what is only declared in this unit.
    fn defined(&self, declared: Aggregate) -> Aggregate {
        if !declared.is_declaration || declared.name.is_empty() {
            return declared;
        }
        let word = if declared.is_union { "union" } else { "struct" };
        let found = self.index().types.get(&format!("{word} {}", declared.name)).copied();
        match found.and_then(|at| self.ty(at)) {
            Some(DebugType::Aggregate(defined)) => defined,
            _ => declared,
        }
    }

    /// A type without other names for it.
    pub fn bare(&self, at: Option<TypeRef>) -> Option<(TypeRef, DebugType)> {
        let mut at = at?;
        for _ in 0..DEPTH_MAX {
            match self.ty(at)? {
                DebugType::Alias(to) => at = to?,
                ty => return Some((at, ty)),
            }
        }
        None
    }

    /// Bytes of a value.
    pub fn size(&self, at: Option<TypeRef>) -> Option<u64> {
        self.size_within(at, DEPTH_MAX)
    }

    fn size_within(&self, at: Option<TypeRef>, depth: usize) -> Option<u64> {
        let (_, ty) = self.bare(at)?;
        Some(match ty {
            DebugType::Bool => 1,
            DebugType::Int { size, .. } | DebugType::Float(size) | DebugType::Enum { size, .. } => {
                size.into()
            }
            DebugType::Pointer(_) => 8,
            DebugType::Aggregate(aggregate) => aggregate.size,
            DebugType::Other(size) => size,
            DebugType::Array(of, counts) => {
                let each = self.size_within(of, depth.checked_sub(1)?)?;
                counts.iter().try_fold(each, |size, count| size.checked_mul(*count))?
            }
            DebugType::Alias(_) => return None,
        })
    }

    fn members<'a>(&'a self, at: TypeRef, dwarf: &super::Dwarf<'a>, unit: &Unit<'a>) -> Vec<Member> {
        let mut found = Vec::new();
        children(unit, at, |entry| {
            let is_base = entry.tag() == c::DW_TAG_inheritance;
            let is_static = flag(entry, c::DW_AT_external) || flag(entry, c::DW_AT_declaration);
            if is_base || entry.tag() == c::DW_TAG_member && !is_static {
                let ty = entry.attr_value(c::DW_AT_type).and_then(|value| self.reference(at, &value));
                let name = if is_base { None } else { text(dwarf, unit, entry, c::DW_AT_name) };
                let mut offset = number(entry, c::DW_AT_data_member_location).unwrap_or(0);
                let bits = number(entry, c::DW_AT_bit_size).map(|count| {
                    let first = match number(entry, c::DW_AT_data_bit_offset) {
                        Some(first) => first,
                        // Counted from the most significant bit of the storage unit, before version 4.
                        None => {
                            let unit =
                                number(entry, c::DW_AT_byte_size).or_else(|| self.size(ty)).unwrap_or(4);
                            let from_top = number(entry, c::DW_AT_bit_offset).unwrap_or(0);
                            (offset * 8 + unit * 8).saturating_sub(from_top + count)
                        }
                    };
                    offset = first / 8;
                    (first % 8, count)
                });
                found.push(Member { name, ty, offset, bits });
            }
        });
        found
    }
}

fn basic(encoding: Option<AttributeValue<super::Slice<'_>>>, size: u64) -> DebugType {
    let Some(AttributeValue::Encoding(encoding)) = encoding else { return DebugType::Other(size) };
    let bytes = size as u8;
    match (encoding, size) {
        (c::DW_ATE_boolean, 1) => DebugType::Bool,
        (c::DW_ATE_float, 4 | 8) => DebugType::Float(bytes),
        (c::DW_ATE_signed_char | c::DW_ATE_unsigned_char | c::DW_ATE_UTF | c::DW_ATE_ASCII, 1 | 2 | 4) => {
            DebugType::Int { size: bytes, is_signed: encoding == c::DW_ATE_signed_char, is_char: true }
        }
        (c::DW_ATE_signed, 1 | 2 | 4 | 8 | 16) => {
            DebugType::Int { size: bytes, is_signed: true, is_char: false }
        }
        (c::DW_ATE_unsigned | c::DW_ATE_boolean | c::DW_ATE_address, 1 | 2 | 4 | 8 | 16) => {
            DebugType::Int { size: bytes, is_signed: false, is_char: false }
        }
        _ => DebugType::Other(size),
    }
}

/// Each child of an entry, one level down.
pub(super) fn children<'a>(unit: &Unit<'a>, at: TypeRef, mut each: impl FnMut(&super::Entry<'a>)) {
    let Ok(mut entries) = unit.entries_at_offset(UnitOffset(at.entry)) else { return };
    let Ok(Some(depth)) = entries.next_dfs().map(|entry| entry.map(|entry| entry.depth())) else { return };
    let mut left = PARTS_MAX;
    while let Ok(Some(entry)) = entries.next_dfs() {
        left -= 1;
        if entry.depth() <= depth || left == 0 {
            return;
        }
        if entry.depth() == depth + 1 {
            each(entry);
        }
    }
}

fn counts(unit: &Unit<'_>, at: TypeRef) -> Vec<u64> {
    let mut found = Vec::new();
    children(unit, at, |entry| {
        if entry.tag() == c::DW_TAG_subrange_type {
            let bound = number(entry, c::DW_AT_upper_bound).map(|last| last.wrapping_add(1));
            found.push(number(entry, c::DW_AT_count).or(bound).unwrap_or(0));
        }
    });
    found
}

fn variants<'a>(dwarf: &super::Dwarf<'a>, unit: &Unit<'a>, at: TypeRef) -> Vec<(String, i64)> {
    let mut found = Vec::new();
    children(unit, at, |entry| {
        let value = entry.attr_value(c::DW_AT_const_value);
        let value = value.and_then(|v| v.sdata_value().or_else(|| v.udata_value().map(u64::cast_signed)));
        if let (Some(name), Some(value)) = (text(dwarf, unit, entry, c::DW_AT_name), value) {
            found.push((name, value));
        }
    });
    found
}
