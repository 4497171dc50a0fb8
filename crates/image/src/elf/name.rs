//! Names of functions: which of several to show, how they read to people, and what is at an address.
//!
//! For:     listing, messages, matching.
//! State:   none.
//! Context: control.
//! Keeps:   N1 the order of names does not depend on the order of symbols.
//! Checked: tests below, tests/suite/elf.rs.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use cpp_demangle::{DemangleOptions, Symbol as CppSymbol};

use super::ElfImage;
use super::symbols::{Symbol, SymbolKind};
use crate::ImageAddr;

/// A symbol's version, as in `memcpy@GLIBC_2.2.5`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Version {
    /// Its name.
    pub name: Box<str>,
    /// True if a program that asks for no version gets this one (written `@@`).
    pub is_default: bool,
}

/// One name of a function.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SymbolName {
    /// The name as in the symbol table, without a version.
    pub text: Box<str>,
    /// Its version, if it has one.
    pub version: Option<Version>,
}

impl SymbolName {
    /// The name as people write it: C++ with parameters, Rust without the hash.
    pub fn demangled(&self) -> Cow<'_, str> {
        demangle(&self.text)
    }
}

impl fmt::Display for SymbolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.version {
            None => f.write_str(&self.text),
            Some(v) => write!(f, "{}{}{}", self.text, if v.is_default { "@@" } else { "@" }, v.name),
        }
    }
}

/// The names of the symbols of one address, distinct, the one to show first.
pub(super) fn names(symbols: &[Symbol<'_>]) -> Vec<SymbolName> {
    let mut sorted: Vec<_> = symbols.iter().collect();
    sorted.sort_by(|a, b| rank(a).cmp(&rank(b)).then(b.version.cmp(&a.version)));
    // The same name from two tables, or with and without a version, is one name.
    sorted.dedup_by(|b, a| a.name == b.name && (b.version.is_none() || same_version(a, b)));
    let text = |bytes: &[u8]| Box::from(String::from_utf8_lossy(bytes));
    let name = |s: &&Symbol<'_>| SymbolName {
        text: text(s.name),
        version: s.version.map(|(v, is_default)| Version { name: text(v), is_default }),
    };
    sorted.iter().map(name).collect()
}

fn same_version(a: &Symbol<'_>, b: &Symbol<'_>) -> bool {
    a.version.map(|v| v.0) == b.version.map(|v| v.0)
}

/// Public names before internal ones, short ones before long ones.
fn rank<'d>(s: &Symbol<'d>) -> (bool, usize, usize, &'d [u8]) {
    let underscores = s.name.iter().take_while(|&&b| b == b'_').count();
    (s.kind == SymbolKind::Untyped, underscores, s.name.len(), s.name)
}

/// A mangled name as people write it, others unchanged: C++ with parameters, Rust without the hash.
pub fn demangle(name: &str) -> Cow<'_, str> {
    if let Some(rust) = rust_name(name, false) {
        return Cow::Owned(rust);
    }
    cpp_name(name, true).map_or(Cow::Borrowed(name), Cow::Owned)
}

/// A text that stays within bounds: names refer to their own parts, and again to these, so that fifty bytes can stand
/// for a gigabyte.
struct Short {
    text: String,
    max_bytes: usize,
}

impl Short {
    const GROWTH: usize = 64;

    fn for_name(name: &str) -> Short {
        Short { text: String::new(), max_bytes: 1024 + Short::GROWTH * name.len() }
    }
}

impl fmt::Write for Short {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        if self.text.len() + s.len() > self.max_bytes {
            return Err(fmt::Error);
        }
        self.text.push_str(s);
        Ok(())
    }
}

/// A Rust name, with the hash that keeps it apart from others if it has one and that is wanted.
pub(crate) fn rust_name(name: &str, with_hash: bool) -> Option<String> {
    if !name.starts_with("_R") && !name.starts_with("_ZN") {
        return None;
    }
    let whole = name;
    let name = rustc_demangle::try_demangle(name).ok()?;
    // Both schemes share the prefix `_ZN` with C++; only Rust's ends in a hash.
    let mut plain = Short::for_name(whole);
    if with_hash { write!(plain, "{name}") } else { write!(plain, "{name:#}") }.ok()?;
    Some(plain.text)
}

/// A C++ name without its return type, with or without the parameters.
pub(crate) fn cpp_name(name: &str, with_parameters: bool) -> Option<String> {
    if !name.starts_with("_Z") {
        return None;
    }
    // Parts that the compiler split off keep the mangled name in front: `_Z3fooi.part.0`.
    let split = name.find('.').unwrap_or(name.len());
    let symbol = CppSymbol::new(&name.as_bytes()[..split]).ok()?;
    let options = DemangleOptions::new().no_return_type();
    let options = if with_parameters { options } else { options.no_params() };
    let mut plain = Short::for_name(name);
    symbol.structured_demangle(&mut plain, &options).ok()?;
    plain.text.push_str(&name[split..]);
    Some(plain.text)
}

/// What an address is called in a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NameAt {
    /// The function's name, demangled; the section's or nothing if no function is known there.
    pub name: Option<String>,
    /// How far behind its start the address lies.
    pub offset: u64,
}

impl fmt::Display for NameAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.offset) {
            (Some(name), 0) => f.write_str(name),
            (Some(name), offset) => write!(f, "{name}+{offset:#x}"),
            (None, offset) => write!(f, "{offset:#x}"),
        }
    }
}

impl ElfImage {
    /// What `addr` is called: function and offset, else section and offset, else the address alone.
    pub fn name_at(&self, addr: ImageAddr) -> NameAt {
        if let Some(f) = self.function_at(addr).filter(|f| !f.names.is_empty()) {
            return NameAt { name: Some(f.names[0].demangled().into_owned()), offset: addr.0 - f.addr.0 };
        }
        if let Some(s) = self.sections().iter().find(|s| s.range.contains(&addr)) {
            return NameAt { name: Some(s.name.clone()), offset: addr.0 - s.range.start.0 };
        }
        NameAt { name: None, offset: addr.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(name: &'static str, version: Option<(&'static str, bool)>) -> Symbol<'static> {
        let version = version.map(|(v, is_default)| (v.as_bytes(), is_default));
        let (kind, source) = (SymbolKind::Func, crate::Source::Symtab);
        Symbol { addr: 1, size_bytes: 1, name: name.as_bytes(), version, kind, source }
    }

    #[test]
    fn public_names_come_first_and_none_comes_twice() {
        let mut symbols = [
            symbol("__f", None),
            symbol("public_name", None),
            symbol("f_1", Some(("V1", false))),
            symbol("f_1", None),
            symbol("f_1", Some(("V2", true))),
            symbol("public_name", None),
        ];
        let expected = ["f_1@@V2", "f_1@V1", "public_name", "__f"];
        for _ in 0..symbols.len() {
            symbols.rotate_left(1);
            let shown: Vec<_> = names(&symbols).iter().map(SymbolName::to_string).collect();
            assert_eq!(shown, expected);
        }
    }

    #[test]
    fn names_of_cpp_and_rust_read_as_in_the_source() {
        assert_eq!(demangle("_ZN2ns5Class6methodEi"), "ns::Class::method(int)");
        assert_eq!(
            demangle("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE"),
            "core::fmt::Write::write_fmt"
        );
        assert_eq!(demangle("_Z3fooi.part.0"), "foo(int).part.0");
        assert_eq!(demangle("malloc"), "malloc");
        assert_eq!(cpp_name("_Z4tmplIiEvT_", false).as_deref(), Some("tmpl<int>"));
        assert_eq!(
            rust_name("_ZN1a1b17h0123456789abcdefE", true).as_deref(),
            Some("a::b::h0123456789abcdef")
        );
    }

    #[test]
    fn a_broken_mangled_name_stays_as_it_is() {
        for name in ["_Z", "_ZN", "_R", "_ZN3fo", "_Z3foo\u{e9}", "__Z"] {
            assert_eq!(demangle(name), name);
        }
    }
}
