//! From a specification and an image to the places that are meant.
//!
//! For:     listing and attaching.
//! State:   none.
//! Context: control.
//! Keeps:   L1 one place is selected once, however many of its names match.
//!          L2 an ifunc's resolver is never selected by its name.
//!          L3 what matches and is not selected is refused with a reason.
//! Checked: tests/suite/select.rs.

use std::fmt;
use std::ops::Range;

use crate::elf::{cpp_name, rust_name};
use crate::spec::{FunctionSpec, MarkSpec, Place};
use crate::{ElfImage, Function, FunctionKind, ImageAddr, Mark, Spec, SymbolName};

mod ifunc;
mod near;

pub use ifunc::chosen_implementation;
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
    /// The USDT mark that it is.
    pub mark: Option<Mark>,
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
    /// Inside the code that returns from signal handlers, which unwinders recognise by its bytes.
    SignalReturn,
    /// Inside data that lies between functions.
    Data,
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
            Self::SignalReturn => f.write_str("the code that returns from signal handlers"),
            Self::Data => f.write_str("data between functions"),
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
    let mut chooser = Chooser { image, forbidden: forbidden(image), selection: Selection::default() };
    match &spec.place {
        Place::Address(addr) => chooser.address(*addr),
        Place::Function(wanted) => chooser.functions(wanted),
        Place::Mark(wanted) => chooser.marks(wanted),
    }
    let mut selection = chooser.selection;
    // Of several ways to one place, the direct one is shown.
    selection.selected.sort_by_key(|s| (s.addr, s.ifunc.is_some()));
    selection.selected.dedup_by_key(|s| s.addr);
    selection.refused.sort_by_key(|r| r.addr);
    selection
}

/// Where no probe may stand, and why.
fn forbidden(image: &ElfImage) -> Vec<(Range<ImageAddr>, Reason)> {
    let sequences = image.rseq_ranges().into_iter();
    let sequences =
        sequences.map(|s| (s.range.clone(), Reason::RestartableSequence { start: s.range.start }));
    let returns = image.signal_return_ranges().into_iter().map(|r| (r, Reason::SignalReturn));
    sequences.chain(returns).chain(image.data_in_code().into_iter().map(|r| (r, Reason::Data))).collect()
}

struct Chooser<'a> {
    image: &'a ElfImage,
    forbidden: Vec<(Range<ImageAddr>, Reason)>,
    selection: Selection<'a>,
}

impl<'a> Chooser<'a> {
    fn address(&mut self, addr: ImageAddr) {
        if self.image.is_code(addr) {
            let function = self.image.function_at(addr);
            self.accept(Selected { addr, function, name: None, ifunc: None, mark: None });
        } else {
            self.refuse(addr, None, Reason::NotCode);
        }
    }

    fn marks(&mut self, wanted: &MarkSpec) {
        for mark in self.image.marks() {
            let is_provider = wanted.provider.as_ref().is_none_or(|p| p.matches(&mark.provider));
            if !is_provider || !wanted.name.matches(&mark.name) {
                continue;
            }
            let (addr, function) = (mark.addr, self.image.function_at(mark.addr));
            self.accept(Selected { addr, function, name: None, ifunc: None, mark: Some(mark) });
        }
    }

    fn functions(&mut self, wanted: &FunctionSpec) {
        for (function, name) in matching(self.image, wanted) {
            let is_exact = wanted.pattern.is_exact() || &*name.text == wanted.pattern.text();
            match function.kind {
                FunctionKind::Ifunc => self.ifunc(function, name, wanted.offset),
                FunctionKind::Untyped if !is_exact => {
                    self.refuse(function.addr, Some(name), Reason::Untyped);
                }
                _ if !is_exact && is_cold(&name.text) => {
                    self.refuse(function.addr, Some(name), Reason::ColdPart);
                }
                _ => self.function(function, name, wanted.offset, None),
            }
        }
    }

    fn ifunc(&mut self, resolver: &'a Function, name: &'a SymbolName, offset: u64) {
        let found = ifunc::implementations(self.image, &name.text);
        if found.is_empty() {
            self.refuse(resolver.addr, Some(name), Reason::Ifunc { resolver: resolver.addr });
        }
        for (implementation, name) in found {
            self.function(implementation, name, offset, Some(resolver));
        }
    }

    fn function(
        &mut self,
        function: &'a Function,
        name: &'a SymbolName,
        offset: u64,
        ifunc: Option<&'a Function>,
    ) {
        if offset >= function.size_bytes.max(1) {
            let reason = Reason::OffsetPastEnd { offset, size_bytes: function.size_bytes };
            return self.refuse(function.addr, Some(name), reason);
        }
        let addr = ImageAddr(function.addr.0 + offset);
        self.accept(Selected { addr, function: Some(function), name: Some(name), ifunc, mark: None });
    }

    fn accept(&mut self, place: Selected<'a>) {
        match self.forbidden.iter().find(|(range, _)| range.contains(&place.addr)) {
            Some(&(_, reason)) => self.refuse(place.addr, place.name, reason),
            None => self.selection.selected.push(place),
        }
    }

    fn refuse(&mut self, addr: ImageAddr, name: Option<&'a SymbolName>, reason: Reason) {
        self.selection.refused.push(Refused { addr, name, reason });
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
    if pattern.fits_all() {
        return true;
    }
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
