//! The grammar of specifications.
//!
//! For:     `Spec::parse`.
//! State:   none.
//! Context: control.
//! Keeps:   P1 every text gives a specification or a fault inside the text; none panics.
//! Checked: spec/tests.rs.

use super::{Fault, FunctionSpec, Library, MarkSpec, Pattern, Place, Spec, SpecProblem, When, foreign};
use crate::ImageAddr;

pub(super) fn parse(text: &str) -> Result<Spec, Fault> {
    if text.trim().is_empty() {
        return Err((0..text.len(), SpecProblem::Empty));
    }
    for known in ["U:", "usdt:"] {
        if text.starts_with(known) {
            let (library, at) = library(text, known.len())?;
            let place = Place::Mark(mark(text, at)?);
            return Ok(Spec { text: text.to_owned(), when: When::Before, library, place });
        }
    }
    let (when, at) = kind(text)?;
    let (library, at) = library(text, at)?;
    let bare = text.strip_suffix("%return");
    let place = place(bare.unwrap_or(text), at)?;
    let when = if bare.is_some() { When::Return } else { when };
    let is_inside =
        matches!(&place, Place::Function(f) if f.offset != 0) || matches!(place, Place::Address(_));
    if when == When::Return && is_inside {
        return Err((at..text.len(), SpecProblem::ReturnOfInstruction));
    }
    Ok(Spec { text: text.to_owned(), when, library, place })
}

/// Reads the kind and returns where the library begins.
fn kind(text: &str) -> Result<(When, usize), Fault> {
    const KNOWN: [(&str, When); 4] = [
        ("u:", When::Before),
        ("uprobe:", When::Before),
        ("ur:", When::Return),
        ("uretprobe:", When::Return),
    ];
    if let Some((known, when)) = KNOWN.into_iter().find(|(known, _)| text.starts_with(known)) {
        return Ok((when, known.len()));
    }
    let end = text.find(':').unwrap_or(text.len());
    let word = &text[..end];
    let problem = match word {
        _ if foreign::spelling(text).is_some() => return Err((0..text.len(), foreign_problem(text))),
        "w" | "watchpoint" => SpecProblem::Watchpoint,
        "i" | "interval" | "profile" | "begin" | "BEGIN" | "end" | "END" | "self" => {
            not_yet("timers and marks")
        }
        "k" | "kr" | "kprobe" | "kretprobe" | "t" | "tracepoint" | "rt" | "rawtracepoint" | "fentry"
        | "fexit" | "f" | "fr" | "s" | "software" | "h" | "hardware" => SpecProblem::Kernel,
        _ if end == text.len() => SpecProblem::NoKind { with_kind: format!("u:LIB:{text}") },
        _ => {
            let looks_right = !word.is_empty() && !text[end + 1..].is_empty();
            SpecProblem::UnknownKind { with_kind: looks_right.then(|| format!("u:{text}")) }
        }
    };
    Err((0..end, problem))
}

/// No file has code at a higher address, and no process memory.
const ADDRESS_MAX: u64 = (1 << 56) - 1;

fn not_yet(what: &'static str) -> SpecProblem {
    SpecProblem::NotYet { what }
}

fn foreign_problem(text: &str) -> SpecProblem {
    match foreign::spelling(text) {
        Some((tool, here)) => SpecProblem::Foreign { tool, here },
        None => SpecProblem::UnknownKind { with_kind: None },
    }
}

/// Reads the library and returns where the function begins.
fn library(text: &str, start: usize) -> Result<(Library, usize), Fault> {
    let rest = &text[start..];
    if let Some(quoted) = rest.strip_prefix('"') {
        let Some(len) = quoted.find('"') else { return Err((start..text.len(), SpecProblem::OpenQuote)) };
        let after = start + len + 2;
        if !text[after..].starts_with(':') {
            return Err((after..text.len(), SpecProblem::NoFunction));
        }
        return Ok((Library::Named(quoted[..len].to_owned()), after + 1));
    }
    let Some(len) = rest.find(':') else {
        return Err(match rest.split_once('!') {
            Some((library, function)) => {
                let here = Some(format!("u:{library}:{function}"));
                (start..text.len(), SpecProblem::Foreign { tool: "frida-trace", here })
            }
            None => (start..text.len(), SpecProblem::NoFunction),
        });
    };
    let name = &rest[..len];
    if name.contains('@') {
        return Err((start..text.len(), not_yet("source lines (LIB@FILE:LINE)")));
    }
    let library = if name.is_empty() { Library::Main } else { Library::Named(name.to_owned()) };
    Ok((library, start + len + 1))
}

fn place(text: &str, start: usize) -> Result<Place, Fault> {
    // bpftrace marks C++ names; here they need no mark.
    let start = if text[start..].starts_with("cpp:") { start + 4 } else { start };
    let rest = &text[start..];
    if rest.is_empty() {
        return Err((start.saturating_sub(1)..text.len(), SpecProblem::EmptyFunction));
    }
    if rest.starts_with(|c: char| c.is_ascii_digit()) {
        let digits = rest.strip_prefix("0x").or_else(|| rest.strip_prefix("0X")).unwrap_or("");
        let addr = u64::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'));
        return addr
            .filter(|a| *a <= ADDRESS_MAX)
            .map(|a| Place::Address(ImageAddr(a)))
            .ok_or((start..text.len(), SpecProblem::BadAddress));
    }
    if let Some((tool, here)) = foreign::in_function(text, start) {
        return Err((start..text.len(), SpecProblem::Foreign { tool, here }));
    }
    if foreign::is_source_line(rest) {
        return Err((start..text.len(), not_yet("source lines (FUNC:LINE)")));
    }
    function(text, start).map(Place::Function)
}

/// `NAME` or `PROVIDER:NAME`, both may be globs.
fn mark(text: &str, start: usize) -> Result<MarkSpec, Fault> {
    let (provider, name) = match text[start..].split_once(':') {
        Some((provider, name)) => (Some(provider), name),
        None => (None, &text[start..]),
    };
    if name.is_empty() || provider == Some("") {
        return Err((start.saturating_sub(1)..text.len(), SpecProblem::EmptyFunction));
    }
    Ok(MarkSpec { provider: provider.map(Pattern::glob), name: Pattern::glob(name) })
}

fn function(text: &str, start: usize) -> Result<FunctionSpec, Fault> {
    let rest = &text[start..];
    if let Some(inner) = rest.strip_prefix('/') {
        let Some(len) = inner.rfind('/') else { return Err((start..text.len(), SpecProblem::OpenRegex)) };
        let end = start + len + 2;
        let pattern = Pattern::regex(&inner[..len])
            .map_err(|why| (start..end, SpecProblem::BadRegex(why.to_string())))?;
        return with_tail(text, end, pattern);
    }
    if let Some(inner) = rest.strip_prefix('"') {
        let Some(len) = inner.find('"') else { return Err((start..text.len(), SpecProblem::OpenQuote)) };
        let end = start + len + 2;
        if len == 0 {
            return Err((start..end, SpecProblem::EmptyFunction));
        }
        return with_tail(text, end, Pattern::glob(&inner[..len]));
    }
    let end = start + bare_name_len(rest);
    if end == start {
        return Err((start..text.len(), SpecProblem::EmptyFunction));
    }
    with_tail(text, end, Pattern::glob(&text[start..end]))
}

/// The length of an unquoted name, without the version and the offset behind it.
fn bare_name_len(rest: &str) -> usize {
    let mut len = rest.len();
    // `operator+` is a name, `operator+4` is an offset: an offset begins with a digit.
    if let Some(plus) = rest.rfind('+')
        && rest[plus + 1..].starts_with(|c: char| c.is_ascii_digit())
    {
        len = plus;
    }
    match rest[..len].find('@') {
        Some(at) if at > 0 => at,
        _ => len,
    }
}

/// Reads `@VERSION` and `+OFF` behind the pattern.
fn with_tail(text: &str, start: usize, pattern: Pattern) -> Result<FunctionSpec, Fault> {
    let tail = &text[start..];
    let plus = tail.rfind('+').unwrap_or(tail.len());
    let (version, offset) = tail.split_at(plus);
    let version = match version.strip_prefix('@').map(|v| v.strip_prefix('@').unwrap_or(v)) {
        Some(v) if !v.is_empty() => Some(v.to_owned()),
        None if version.is_empty() => None,
        _ => return Err((start..start + plus, SpecProblem::Trailing)),
    };
    let offset = match offset.strip_prefix('+') {
        None => 0,
        Some(digits) => number(digits).ok_or((start + plus..text.len(), SpecProblem::BadOffset))?,
    };
    Ok(FunctionSpec { pattern, version, offset })
}

fn number(digits: &str) -> Option<u64> {
    let (digits, radix) = digits.strip_prefix("0x").map_or((digits, 10), |hex| (hex, 16));
    if digits.starts_with('+') { None } else { u64::from_str_radix(digits, radix).ok() }
}
