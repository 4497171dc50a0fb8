//! Names close to one that was not found.
//!
//! For:     "no such function; did you mean ...".
//! State:   none.
//! Context: control.
//! Keeps:   N1 at most as many names as asked for, the closest first.
//! Checked: tests/suite/select.rs.

use std::fmt;

use crate::spec::{FunctionSpec, Place};
use crate::{ElfImage, ImageAddr, Spec, Unread};

/// How many close names a message holds.
const SHOWN: usize = 3;

/// Names longer than this are not compared letter by letter.
const COMPARED_BYTES: usize = 64;

/// Nothing in an image matches a specification.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoMatch {
    /// The pattern that was asked for.
    pub asked: String,
    /// Names that are close to it, the closest first.
    pub near: Vec<String>,
    /// Whether the image takes a function of this name from another image.
    pub is_imported: bool,
    /// Whether only the dynamic symbols and the unwind table are known: the file is stripped.
    pub is_stripped: bool,
    /// How many functions with a name the image has.
    pub named_functions: usize,
    /// How many functions without a name the unwind table shows, and where the first is.
    pub unnamed: (usize, Option<ImageAddr>),
    /// Why the image's compressed symbols are not among them.
    pub unread: Option<Unread>,
}

impl fmt::Display for NoMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no function '{}' among {} names", self.asked, self.named_functions)?;
        if self.is_imported {
            f.write_str("; it is called here but defined in another file")?;
        }
        match self.unnamed {
            (n, Some(first)) if self.named_functions == 0 => write!(
                f,
                "; the file is stripped of names; its unwind table shows {n} functions without a name, which are written by \
                 address: u:LIB:{:#x} is the first",
                first.0
            )?,
            _ if self.is_stripped => f.write_str("; the file is stripped of other names")?,
            _ => {}
        }
        if let Some(unread) = &self.unread {
            write!(f, "; {unread}")?;
        }
        if !self.near.is_empty() {
            write!(f, "; near: {}", self.near.join(", "))?;
        }
        Ok(())
    }
}

impl NoMatch {
    /// What is known about a specification that selects nothing in `image`; `None` for an address.
    pub fn explain(spec: &Spec, image: &ElfImage) -> Option<NoMatch> {
        use crate::Source;
        let Place::Function(wanted) = &spec.place else { return None };
        let asked = match &wanted.version {
            Some(version) => format!("{}@{version}", wanted.pattern),
            None => wanted.pattern.to_string(),
        };
        let functions = image.functions();
        let has_table =
            |s| matches!(s, Source::Symtab | Source::DebugFile | Source::DebugData | Source::GoTable);
        Some(NoMatch {
            near: nearest(wanted, image),
            is_imported: wanted.pattern.is_exact()
                && image.imports().iter().any(|i| i == wanted.pattern.text()),
            is_stripped: !functions.iter().any(|f| has_table(f.source)),
            named_functions: functions.iter().filter(|f| !f.names.is_empty()).count(),
            unnamed: {
                let mut unnamed = functions.iter().filter(|f| f.names.is_empty()).map(|f| f.addr).peekable();
                (unnamed.clone().count(), unnamed.peek().copied())
            },
            unread: image.unread_symbols(),
            asked,
        })
    }
}

/// The names closest to the one that is wanted.
fn nearest(wanted: &FunctionSpec, image: &ElfImage) -> Vec<String> {
    let asked = wanted.pattern.text().trim_matches(['*', '^', '$']);
    let mut ranked: Vec<(usize, String)> = Vec::new();
    if asked.is_empty() {
        return Vec::new();
    }
    for name in image.functions().iter().flat_map(|f| &f.names) {
        let shown = name.demangled();
        if let Some(distance) = distance(asked, &name.text, &shown) {
            let shown = if name.version.is_some() && wanted.version.is_some() {
                name.to_string()
            } else {
                shown.into_owned()
            };
            ranked.push((distance, shown));
        }
    }
    ranked.sort();
    ranked.dedup();
    ranked.truncate(SHOWN);
    ranked.into_iter().map(|(_, name)| name).collect()
}

/// How far a name is from the one asked for, `None` if it is not worth showing.
fn distance(asked: &str, raw: &str, shown: &str) -> Option<usize> {
    let bare = raw.split('.').next().unwrap_or(raw);
    if raw == asked || bare == asked {
        return Some(0);
    }
    if raw.eq_ignore_ascii_case(asked) || bare.trim_start_matches('_') == asked.trim_start_matches('_') {
        return Some(1);
    }
    let plain = shown.split('(').next().unwrap_or(shown);
    let last = plain.rsplit("::").next().unwrap_or(plain);
    if plain.eq_ignore_ascii_case(asked) || last == asked {
        return Some(1);
    }
    let asked_last = asked.rsplit("::").next().unwrap_or(asked);
    let by_letters = |a: &str, b: &str| {
        let allowed = 1 + b.chars().count() / 5;
        let is_close = a.len().abs_diff(b.len()) <= allowed && a.len() <= COMPARED_BYTES;
        is_close.then(|| strsim::osa_distance(a, b)).filter(|&d| d <= allowed)
    };
    by_letters(plain, asked).into_iter().chain(by_letters(last, asked_last)).min().map(|d| d + 1)
}
