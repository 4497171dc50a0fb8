//! From a specification and an image to the places that are meant.
//!
//! For:     listing and attaching.
//! State:   none.
//! Context: control.
//! Keeps:   L1 one place is selected once, however many of its names match.
//!          L2 an ifunc's resolver is never selected by its name.
//!          L3 what matches and is not selected is refused with a reason.
//! Checked: tests/select.rs.

use std::fmt;

use crate::elf::{cpp_name, rust_name};
use crate::spec::{FunctionSpec, Place};
use crate::{ElfImage, Function, FunctionKind, ImageAddr, Spec, SymbolName};

mod ifunc;
mod near;

pub use near::NoMatch;

/// The places that a specification selects in one image.
#[derive(Clone, Debug, Default)]
pub struct Selection<'a> {
    /// Where probes can go, by address.
    pub selected: Vec<Selected<'a>>,
    /// What matches and is left out.
    pub refused: Vec<Refused<'a>>,
}

/// One place.
#[derive(Clone, Debug)]
pub struct Selected<'a> {
    /// Where it is.
    pub addr: ImageAddr,
    /// The function that it is in, `None` for an address that is in no known one.
    pub function: Option<&'a Function>,
    /// The name that matched, `None` for an address.
    pub name: Option<&'a SymbolName>,
    /// The ifunc that this is an implementation of, if it was selected through one.
    pub ifunc: Option<&'a Function>,
}

/// Something that matches and is left out.
#[derive(Clone, Debug)]
pub struct Refused<'a> {
    /// Where it is.
    pub addr: ImageAddr,
    /// The name that matched, `None` for an address.
    pub name: Option<&'a SymbolName>,
    /// Why it is left out.
    pub reason: Reason,
}

/// Why something that matches is not selected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// The name stands for a resolver, and its implementations have no names here.
    Ifunc {
        /// The resolver.
        resolver: ImageAddr,
    },
    /// The offset is not inside the function.
    OffsetPastEnd {
        /// The offset that was asked for.
        offset: u64,
        /// The function's size.
        size_bytes: u64,
    },
    /// The address holds no code.
    NotCode,
    /// A label without a type that a pattern matched: it may be data. Its exact name selects it.
    Untyped,
    /// The rarely used part of another function, which a pattern matched. Its exact name selects it.
    ColdPart,
    /// Inside a restartable sequence, which a probe would break.
    RestartableSequence {
        /// Where the sequence begins.
        start: ImageAddr,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ifunc { resolver } => write!(
                f,
                "an ifunc: {resolver} is its resolver, and the implementations have no names in this file"
            ),
            Self::OffsetPastEnd { offset, size_bytes } => {
                write!(f, "offset {offset:#x} is past the function's end, it has {size_bytes:#x} bytes")
            }
            Self::NotCode => f.write_str("no code at this address"),
            Self::Untyped => f.write_str("a label without a type, it may be data"),
            Self::ColdPart => f.write_str("the cold part of another function"),
            Self::RestartableSequence { start } => {
                write!(f, "inside the restartable sequence that starts at {start}")
            }
        }
    }
}

/// The places in `image` that `spec` means.
///
/// Names are matched as in the symbol table (exactly, or by a pattern that contains `_Z` or `_R`), and as
/// people write them: C++ without parameters, and with them if the pattern has a parenthesis; Rust without
/// the hash, and with it. If some name equals the pattern letter by letter, only that name is meant.
pub fn select<'a>(spec: &Spec, image: &'a ElfImage) -> Selection<'a> {
    let mut selection = Selection::default();
    match &spec.place {
        Place::Address(addr) => select_address(image, *addr, &mut selection),
        Place::Function(wanted) => select_functions(image, wanted, &mut selection),
    }
    selection.selected.sort_by_key(|s| s.addr);
    selection.selected.dedup_by_key(|s| s.addr);
    selection
}

fn select_address<'a>(image: &'a ElfImage, addr: ImageAddr, selection: &mut Selection<'a>) {
    if image.is_code(addr) {
        let function = image.function_at(addr);
        accept(image, Selected { addr, function, name: None, ifunc: None }, selection);
    } else {
        selection.refused.push(Refused { addr, name: None, reason: Reason::NotCode });
    }
}

fn select_functions<'a>(image: &'a ElfImage, wanted: &FunctionSpec, selection: &mut Selection<'a>) {
    for (function, name) in matching(image, wanted) {
        let is_exact = wanted.pattern.is_exact() || &*name.text == wanted.pattern.text();
        let mut refuse = |reason| {
            selection.refused.push(Refused { addr: function.addr, name: Some(name), reason });
        };
        match function.kind {
            FunctionKind::Ifunc => {
                let found = ifunc::implementations(image, &name.text);
                if found.is_empty() {
                    refuse(Reason::Ifunc { resolver: function.addr });
                }
                for (implementation, name) in found {
                    add(image, implementation, name, wanted.offset, Some(function), selection);
                }
            }
            FunctionKind::Untyped if !is_exact => refuse(Reason::Untyped),
            _ if !is_exact && is_cold(&name.text) => refuse(Reason::ColdPart),
            _ => add(image, function, name, wanted.offset, None, selection),
        }
    }
}

fn add<'a>(
    image: &ElfImage,
    function: &'a Function,
    name: &'a SymbolName,
    offset: u64,
    ifunc: Option<&'a Function>,
    selection: &mut Selection<'a>,
) {
    if offset >= function.size_bytes.max(1) {
        let reason = Reason::OffsetPastEnd { offset, size_bytes: function.size_bytes };
        selection.refused.push(Refused { addr: function.addr, name: Some(name), reason });
        return;
    }
    let addr = ImageAddr(function.addr.0 + offset);
    accept(image, Selected { addr, function: Some(function), name: Some(name), ifunc }, selection);
}

fn accept<'a>(image: &ElfImage, place: Selected<'a>, selection: &mut Selection<'a>) {
    match image.rseq_ranges().iter().find(|s| s.range.contains(&place.addr)) {
        Some(s) => {
            let reason = Reason::RestartableSequence { start: s.range.start };
            selection.refused.push(Refused { addr: place.addr, name: place.name, reason });
        }
        None => selection.selected.push(place),
    }
}

fn is_cold(name: &str) -> bool {
    name.ends_with(".cold") || name.contains(".cold.")
}

/// The functions that are meant, each with the first of its names that matches.
fn matching<'a>(image: &'a ElfImage, wanted: &FunctionSpec) -> Vec<(&'a Function, &'a SymbolName)> {
    let by = |test: &dyn Fn(&SymbolName) -> bool| -> Vec<_> {
        let has_version = |n: &&SymbolName| {
            wanted.version.is_none() || n.version.as_ref().map(|v| &*v.name) == wanted.version.as_deref()
        };
        let first = |f: &'a Function| Some((f, f.names.iter().filter(has_version).find(|n| test(n))?));
        image.functions().iter().filter_map(first).collect()
    };
    let text = wanted.pattern.text();
    let is_pattern = !wanted.pattern.is_exact();
    let literal = if wanted.pattern.is_exact() || wanted.pattern.is_glob() {
        let mut found = by(&|n| &*n.text == text);
        if found.is_empty() && may_be_demangled(text) {
            found =
                by(&|n| may_hold(&n.text, text) && spellings(&n.text, text.contains('(')).any(|s| s == text));
        }
        found
    } else {
        Vec::new()
    };
    if !literal.is_empty() || !is_pattern {
        return literal;
    }
    by(&|n| matches_pattern(wanted, &n.text))
}

fn matches_pattern(wanted: &FunctionSpec, name: &str) -> bool {
    let pattern = &wanted.pattern;
    let is_mangled = name.starts_with("_Z") || name.starts_with("_R");
    if !is_mangled {
        return pattern.matches(name);
    }
    let asks_for_mangled = pattern.text().contains("_Z") || pattern.text().contains("_R");
    if asks_for_mangled && pattern.matches(name) {
        return true;
    }
    let mut known = false;
    let found = spellings(name, pattern.text().contains('(')).any(|s| {
        known = true;
        pattern.matches(&s)
    });
    // A name that only looks mangled is matched as it is.
    found || !known && pattern.matches(name)
}

/// The ways in which people write a mangled name.
fn spellings(name: &str, with_parameters: bool) -> impl Iterator<Item = String> {
    let rust = rust_name(name, false);
    let is_rust = rust.is_some();
    let hashed = if is_rust { rust_name(name, true) } else { None };
    let cpp = if is_rust { None } else { cpp_name(name, false) };
    let full = if is_rust || !with_parameters { None } else { cpp_name(name, true) };
    [rust, hashed, cpp, full].into_iter().flatten()
}

fn may_be_demangled(text: &str) -> bool {
    !text.starts_with("_Z") && !text.starts_with("_R")
}

/// False if the mangled `name` cannot be that of `text`, without the cost of demangling it.
fn may_hold(name: &str, text: &str) -> bool {
    if !name.starts_with("_Z") && !name.starts_with("_R") {
        return false;
    }
    // Mangled names hold identifiers as they are; operators and abbreviations they do not.
    let plain = text.split(['(', '<']).next().unwrap_or_default();
    let last = plain.rsplit("::").next().unwrap_or_default();
    let is_identifier = !last.is_empty() && last.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let is_special = last.starts_with("operator") || plain.starts_with("std::") || last.starts_with("h");
    !is_identifier || is_special || name.contains(last)
}
