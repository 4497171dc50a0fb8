//! Preprocessor lines: `#define` of constants, `#include` of headers for their constants, conditions on names.
use super::Names;
use crate::diagnostic::Diagnostic;
use crate::source::{FileId, Span};

/// How many bytes of headers are read for their constants.
const HEADERS_MAX: usize = 8 << 20;

/// One line. `conditions` are the open `#if`s, and whether each holds.
pub(super) fn read(
    text: &str,
    span: Span,
    names: &mut Names,
    conditions: &mut Vec<bool>,
    include: &mut dyn FnMut(&str) -> Option<String>,
) -> Result<(), Diagnostic> {
    let line = text.get(span.start as usize..span.end as usize).unwrap_or("").replace("\\\n", " ");
    let body = line.trim_start_matches('#').trim_start();
    let word = body.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or("");
    let rest = body[word.len()..].trim();
    let active = !conditions.contains(&false);
    match word {
        "ifdef" => conditions.push(is_defined(names, rest)),
        "ifndef" => conditions.push(!is_defined(names, rest)),
        "if" => conditions.push(rest != "0"),
        "elif" => {
            if let Some(last) = conditions.last_mut() {
                *last = false;
            }
        }
        "else" => {
            if let Some(last) = conditions.last_mut() {
                *last = !*last;
            }
        }
        "endif" => {
            conditions.pop();
        }
        "define" if active => define(rest, span.file, names),
        "undef" if active => {
            names.defines.remove(rest);
        }
        "include" if active => {
            let missed = |name: &str| missing(text, span, name);
            return include_header(rest, span, names, include, &missed);
        }
        "define" | "undef" | "include" | "pragma" | "line" | "" => {}
        _ => return Err(Diagnostic::error(span, format!("unknown preprocessor line: #{word}"))),
    }
    Ok(())
}

fn is_defined(names: &Names, name: &str) -> bool {
    // Kernel types are nobody's business here: scripts that ask need no headers.
    name == "BPFTRACE_HAVE_BTF" || names.defines.contains_key(name)
}

/// `NAME value`; macros with parameters are not taken.
fn define(rest: &str, file: FileId, names: &mut Names) {
    let len = rest.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count();
    let (name, value) = rest.split_at(len);
    if !name.is_empty() && !value.starts_with('(') {
        let value = value.split("//").next().unwrap_or("").split("/*").next().unwrap_or("").trim();
        names.defines.insert(name.to_string(), (file, value.to_string()));
    }
}

/// A header that is not there. The second line is what a C compiler says, as bpftrace passes it on: there the script's
/// C part is a file of its own, one line further down.
fn missing(text: &str, span: Span, name: &str) -> Diagnostic {
    let start = span.start as usize;
    let line = text[..start].bytes().filter(|b| *b == b'\n').count() + 2;
    let column = text[start..].find(['<', '"']).unwrap_or(0) + 1;
    let said = format!("definitions.h:{line}:{column}: fatal error: '{name}' file not found");
    Diagnostic::error(span, format!("the header {name} is not in the include directories\n{said}"))
}

/// The constants of a header and of those that it includes.
fn include_header(
    rest: &str,
    span: Span,
    names: &mut Names,
    include: &mut dyn FnMut(&str) -> Option<String>,
    missed: &dyn Fn(&str) -> Diagnostic,
) -> Result<(), Diagnostic> {
    let name = rest.trim_matches(|c| matches!(c, '<' | '>' | '"'));
    let (mut seen, mut queue, mut read) = (std::collections::HashSet::new(), vec![name.to_string()], 0);
    while let Some(next) = queue.pop() {
        if !seen.insert(next.clone()) || read > HEADERS_MAX || seen.len() > 200 {
            continue;
        }
        let Some(text) = include(&next) else {
            if next == name {
                return Err(missed(name));
            }
            continue;
        };
        read += text.len();
        for line in text.replace("\\\n", " ").lines() {
            let Some(body) = line.trim_start().strip_prefix('#').map(str::trim_start) else { continue };
            if let Some(rest) = body.strip_prefix("define") {
                define(rest.trim(), span.file, names);
            } else if let Some(rest) = body.strip_prefix("include") {
                queue.push(rest.trim().trim_matches(|c| matches!(c, '<' | '>' | '"')).to_string());
            }
        }
    }
    Ok(())
}
