//! Types as C writes them.
//!
//! For:     `-lv`.
//! State:   none.
//! Context: control.
//! Keeps:   nothing beyond the call.
//! Checked: dwarf/tests.rs.

use super::{DEPTH_MAX, DebugInfo, TypeRef, text};
use gimli::constants as c;

impl DebugInfo {
    /// `const char*`, `struct Foo*`, `int[3]`.
    pub fn type_text(&self, at: Option<TypeRef>) -> String {
        self.text_within(at, DEPTH_MAX)
    }

    fn text_within(&self, at: Option<TypeRef>, depth: usize) -> String {
        let (Some(at), Some(depth)) = (at, depth.checked_sub(1)) else { return "void".into() };
        let shown = self.with_entry(at, |dwarf, unit, entry| {
            let to = entry.attr_value(c::DW_AT_type).and_then(|value| self.reference(at, &value));
            let inner = || self.text_within(to, depth);
            let name = text(dwarf, unit, entry, c::DW_AT_name);
            let tagged = |word: &str| format!("{word} {}", name.clone().unwrap_or_else(|| "{}".into()));
            Some(match entry.tag() {
                c::DW_TAG_pointer_type => format!("{}*", inner()),
                c::DW_TAG_reference_type => format!("{}&", inner()),
                c::DW_TAG_rvalue_reference_type => format!("{}&&", inner()),
                c::DW_TAG_const_type => format!("const {}", inner()),
                c::DW_TAG_volatile_type => format!("volatile {}", inner()),
                c::DW_TAG_restrict_type | c::DW_TAG_atomic_type => inner(),
                c::DW_TAG_structure_type => tagged("struct"),
                c::DW_TAG_class_type => tagged("class"),
                c::DW_TAG_union_type => tagged("union"),
                c::DW_TAG_enumeration_type => tagged("enum"),
                c::DW_TAG_subroutine_type => format!("{}()", inner()),
                c::DW_TAG_array_type => match self.ty(at) {
                    Some(super::DebugType::Array(_, counts)) => {
                        let counts: Vec<String> = counts.iter().map(|n| format!("[{n}]")).collect();
                        format!("{}{}", inner(), counts.join(""))
                    }
                    _ => format!("{}[]", inner()),
                },
                _ => name.unwrap_or_else(|| "?".into()),
            })
        });
        shown.unwrap_or_else(|| "?".into())
    }
}
