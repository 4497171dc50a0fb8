//! Attach points: raw text up to a predicate, a comma or a block.
//!
//! For:     probes; `-l` and `--probe-filter` parse single ones.
//! State:   none.
//! Context: control.
//! Keeps:   1. A `/` belongs to a path where a path may stand, and begins a predicate elsewhere.
//! Checked: tests/language.rs.

use super::cursor::{Cursor, Read};
use super::literal::number;
use crate::ast::{AttachPoint, Location, Provider, Spec};
use crate::diagnostic::Diagnostic;
use crate::names;
use crate::probes::WatchAt;
use crate::source::Span;

/// Long name, short and old names, provider.
const PROVIDERS: [(&str, &[&str], Provider); 20] = [
    ("begin", &["BEGIN"], Provider::Begin),
    ("end", &["END"], Provider::End),
    ("test", &[], Provider::Test),
    ("bench", &[], Provider::Bench),
    ("self", &[], Provider::SelfSignal),
    ("interval", &["i"], Provider::Interval),
    ("profile", &["p"], Provider::Profile),
    ("software", &["s"], Provider::Software),
    ("hardware", &["h"], Provider::Hardware),
    ("uprobe", &["u"], Provider::Uprobe),
    ("uretprobe", &["ur"], Provider::Uretprobe),
    ("usdt", &["U"], Provider::Usdt),
    ("watchpoint", &["w"], Provider::Watchpoint),
    ("kprobe", &["k"], Provider::Kprobe),
    ("kretprobe", &["kr"], Provider::Kretprobe),
    ("fentry", &["f", "kfunc"], Provider::Fentry),
    ("fexit", &["fr", "kretfunc"], Provider::Fexit),
    ("tracepoint", &["t"], Provider::Tracepoint),
    ("rawtracepoint", &["rt"], Provider::Rawtracepoint),
    ("iter", &["it"], Provider::Iter),
];

impl Provider {
    /// As messages and the builtin `probe` name it.
    pub fn name(self) -> &'static str {
        PROVIDERS.iter().find(|(.., p)| *p == self).map_or("", |(name, ..)| name)
    }

    /// The provider of a long or short name.
    pub fn of(name: &str) -> Option<Provider> {
        let fits = |long: &str, short: &[&str]| long == name || short.contains(&name);
        PROVIDERS.iter().find(|(long, short, _)| fits(long, short)).map(|(.., p)| *p)
    }

    /// Whether its programs run where something is traced, and not in the controller.
    pub fn is_traced(self) -> bool {
        matches!(self, Provider::Uprobe | Provider::Uretprobe | Provider::Usdt) || self.is_kernel()
    }

    /// Whether it is the kernel's own: refused in process.
    pub fn is_kernel(self) -> bool {
        matches!(
            self,
            Provider::Kprobe
                | Provider::Kretprobe
                | Provider::Fentry
                | Provider::Fexit
                | Provider::Tracepoint
                | Provider::Rawtracepoint
                | Provider::Iter
        )
    }
}

impl Cursor<'_> {
    /// The attach points of a probe.
    pub fn attach_points(&mut self) -> Read<Vec<AttachPoint>> {
        let mut points = Vec::new();
        loop {
            points.push(self.attach_point()?);
            if self.eat(",").is_none() {
                return Ok(points);
            }
            // A comma before the block is let pass.
            if matches!(self.byte(0), b'{' | b'/') {
                return Ok(points);
            }
        }
    }

    fn attach_point(&mut self) -> Read<AttachPoint> {
        let name = self.peek_ident();
        let label = (!name.is_empty() && self.byte(name.len()) == b'=').then(|| name.to_string());
        if label.is_some() {
            self.take(name.len());
            self.take(1);
        }
        let start = self.at;
        let (raw, len) = self.raw_point()?;
        if raw.is_empty() {
            return Err(self.unexpected("expected a probe"));
        }
        let span = self.take(len);
        debug_assert_eq!(span.start as usize, start);
        let mut point = parse_point(&raw, span).map_err(Box::new)?;
        point.label = label;
        Ok(point)
    }

    /// The text of an attach point with positional parameters put in, and how many bytes it takes.
    fn raw_point(&self) -> Read<(String, usize)> {
        let rest = self.rest();
        let (mut raw, mut colons, mut path) = (String::new(), 0, true);
        let mut chars = rest.char_indices().peekable();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    let end = closing_quote(&rest[at + 1..]);
                    let Some(end) = end else {
                        return self.error(self.span(self.at + at, self.at + at + 1), "unterminated string");
                    };
                    raw.push_str(&rest[at..at + end + 2]);
                    while chars.peek().is_some_and(|(n, _)| *n < at + end + 2) {
                        chars.next();
                    }
                    continue;
                }
                '$' => {
                    let digits = rest[at + 1..].bytes().take_while(u8::is_ascii_digit).count();
                    if let Ok(n) = rest[at + 1..at + 1 + digits].parse::<usize>() {
                        raw.push_str(self.params.get(n.wrapping_sub(1)).map_or("", String::as_str));
                        for _ in 0..digits {
                            chars.next();
                        }
                        continue;
                    }
                }
                ':' => {
                    colons += 1;
                    let provider = Provider::of(raw.split(':').next().unwrap_or(""));
                    path = match provider {
                        Some(Provider::Iter) => true,
                        Some(
                            Provider::Uprobe | Provider::Uretprobe | Provider::Usdt | Provider::Watchpoint,
                        ) => colons < 2,
                        _ => provider.is_none(),
                    };
                }
                '/' if !path || colons == 0 => return Ok((raw, at)),
                _ if c.is_whitespace() || c == '{' || c == ',' => return Ok((raw, at)),
                _ => {}
            }
            raw.push(c);
        }
        Ok((raw, rest.len()))
    }
}

/// Where the next quote is that has no backslash before it.
fn closing_quote(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return Some(at),
            _ => at += 1,
        }
    }
    None
}

/// The parts between colons, quotes undone; in quotes a colon is text.
fn parts(raw: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let (mut quoted, mut chars) = (false, raw.chars());
    while let Some(c) = chars.next() {
        let last = parts.len() - 1;
        match c {
            '"' => quoted = !quoted,
            '\\' if quoted => parts[last].extend(chars.next()),
            ':' if !quoted => parts.push(String::new()),
            _ => parts[last].push(c),
        }
    }
    parts
}

impl AttachPoint {
    /// An attach point of its text alone.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<AttachPoint, String> {
        parse_point(text, Span::default()).map_err(|d| d.message)
    }
}

/// One attach point of its text.
///
/// # Errors
/// What is wrong with it, at `span`.
fn parse_point(raw: &str, span: Span) -> Result<AttachPoint, Diagnostic> {
    let parts = parts(raw);
    let refuse = |message: String| Err(Diagnostic::error(span, message));
    let Some(provider) = Provider::of(&parts[0]) else {
        let known = PROVIDERS.iter().map(|(name, ..)| *name);
        let diagnostic = Diagnostic::error(span, format!("Invalid probe type: {}", parts[0]));
        return Err(match names::nearest(&parts[0], known) {
            Some(near) => diagnostic.hint(format!("Did you mean {near}?")),
            None => diagnostic,
        });
    };
    let rest: Vec<&str> = parts[1..].iter().map(String::as_str).collect();
    match spec(provider, &rest) {
        Ok(spec) => {
            let text =
                std::iter::once(provider.name()).chain(rest.iter().copied()).collect::<Vec<_>>().join(":");
            Ok(AttachPoint { span, label: None, text, provider, spec, sites: [].into() })
        }
        Err(message) => refuse(message),
    }
}

fn spec(provider: Provider, rest: &[&str]) -> Result<Spec, String> {
    let name = provider.name();
    let count = |wanted: &str| format!("{name} probe type requires {wanted}, found {}", rest.len());
    match (provider, rest) {
        (Provider::Begin, []) => Ok(Spec::Begin),
        (Provider::End, []) => Ok(Spec::End),
        (Provider::Begin | Provider::End, _) => Err(count("0 arguments")),
        (Provider::Test, [name]) if !name.is_empty() => Ok(Spec::Test((*name).into())),
        (Provider::Bench, [name]) if !name.is_empty() => Ok(Spec::Bench((*name).into())),
        (Provider::Test | Provider::Bench, _) => Err(count("a name")),
        (Provider::SelfSignal, ["signal", signal]) => Ok(Spec::Signal((*signal).into())),
        (Provider::SelfSignal, ["signal"]) => Err("self:signal probe must have a signal name".into()),
        (Provider::SelfSignal, [other, ..]) => {
            Err(format!("{other} is not a supported trigger: self:signal:SIGUSR1"))
        }
        (Provider::SelfSignal, []) => Err("self:signal probe must have a signal name".into()),
        (Provider::Interval | Provider::Profile, _) => period(name, rest).map(Spec::Period),
        (Provider::Software | Provider::Hardware, [event])
        | (Provider::Software | Provider::Hardware, [event, ""]) => Ok(Spec::Event((*event).into(), None)),
        (Provider::Software | Provider::Hardware, [event, n]) => match positive(n) {
            Some(n) => Ok(Spec::Event((*event).into(), Some(n))),
            None => Err(format!("Invalid count for {name} probe: {n}")),
        },
        (Provider::Software | Provider::Hardware, _) => Err(count("1 or 2 arguments")),
        (Provider::Uprobe | Provider::Uretprobe, _) => uprobe(provider, rest),
        (Provider::Usdt, _) => usdt(rest),
        (Provider::Watchpoint, _) => watchpoint(rest),
        (_, []) => Err(count("at least 1 argument")),
        (_, rest) => Ok(Spec::Kernel(rest.iter().map(|s| (*s).to_string()).collect())),
    }
}

fn positive(text: &str) -> Option<u64> {
    number(text).and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0)
}

/// Nanoseconds of `1s`, `s:1`, `hz:99`, `1000`.
fn period(name: &str, rest: &[&str]) -> Result<u64, String> {
    let (unit, text) = match rest {
        [text] => ("ns", *text),
        [unit, text] => (*unit, *text),
        _ => return Err(format!("{name} probe type requires 1 or 2 arguments, found {}", rest.len())),
    };
    let Some(count) = positive(text) else {
        return Err(match number(text) {
            Some(_) => format!("{name} interval cannot be 0"),
            None => format!("Invalid rate of {name} probe: {text}"),
        });
    };
    let factor = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "hz" => return Ok((1_000_000_000 / count).max(1)),
        _ => return Err(format!("{unit} is not an accepted unit for {name} probe: use us, ms, s or hz")),
    };
    count.checked_mul(factor).ok_or_else(|| format!("{name} interval is too long: {unit}:{text}"))
}

fn uprobe(provider: Provider, rest: &[&str]) -> Result<Spec, String> {
    let name = provider.name();
    let (path, function, cpp) = match rest {
        [path] if path.contains('@') => return by_line(name, path, None, None),
        [path, line] if path.contains('@') => return by_line(name, path, Some(line), None),
        [path, line, column] if path.contains('@') => return by_line(name, path, Some(line), Some(column)),
        [path, function] => (*path, *function, false),
        [path, "cpp", function] => (*path, *function, true),
        [_, language, _] => return Err(format!("{language} is no language of {name} probes: only cpp is")),
        _ => return Err(format!("{name} probe type requires 2 or 3 arguments, found {}", rest.len())),
    };
    if path.is_empty() {
        return Err(format!("{name} probe: the path is missing, as in {name}:/bin/bash:readline"));
    }
    let path = path.to_string();
    if function.is_empty() {
        return Err(format!("{name} probe: the function is missing, as in {name}:{path}:main"));
    }
    if let Some(address) = number(function) {
        let address = u64::try_from(address).map_err(|_| format!("{function} is no address"))?;
        return Ok(Spec::Uprobe { path, at: Location::Address(address) });
    }
    let (function, offset) = match function.rsplit_once('+') {
        Some((function, offset)) if !cpp || number(offset).is_some() => {
            let offset = number(offset).and_then(|n| u64::try_from(n).ok());
            (function, offset.ok_or_else(|| format!("Invalid offset of {name} probe: {function}"))?)
        }
        _ => (function, 0),
    };
    if offset != 0 && provider == Provider::Uretprobe {
        return Err("Offset not allowed".into());
    }
    Ok(Spec::Uprobe { path, at: Location::Function { name: function.into(), offset, cpp } })
}

fn by_line(name: &str, path: &str, line: Option<&str>, column: Option<&str>) -> Result<Spec, String> {
    let (path, file) = path.rsplit_once('@').unwrap_or((path, ""));
    if name == "uretprobe" {
        return Err("uretprobe can't be set on a source line".into());
    }
    let small = |text: &str, what: &str| {
        let number = positive(text).and_then(|n| u32::try_from(n).ok());
        number.ok_or_else(|| format!("Invalid {what} of {name} probe: {text}"))
    };
    let line = small(line.unwrap_or(""), "line")?;
    let column = column.map(|c| small(c, "column")).transpose()?;
    Ok(Spec::Uprobe { path: path.into(), at: Location::Line { file: file.into(), line, column } })
}

fn usdt(rest: &[&str]) -> Result<Spec, String> {
    let (path, namespace, name) = match rest {
        [path, name] => (*path, None, *name),
        [path, "", name] => (*path, None, *name),
        [path, namespace, name] => (*path, Some((*namespace).to_string()), *name),
        _ => return Err(format!("usdt probe type requires 2 or 3 arguments, found {}", rest.len())),
    };
    if name.is_empty() {
        return Err("usdt probe: the mark's name is missing".into());
    }
    Ok(Spec::Usdt { path: path.into(), namespace, name: name.into() })
}

fn watchpoint(rest: &[&str]) -> Result<Spec, String> {
    let (at, len, mode) = match rest {
        [address, len, mode] => match number(address).and_then(|n| u64::try_from(n).ok()) {
            Some(0) | None => return Err(format!("Invalid watchpoint address: {address}")),
            Some(address) => (WatchAt::Address(address), *len, *mode),
        },
        [path, name, len, mode] => {
            (WatchAt::Symbol { path: (*path).into(), name: (*name).into() }, *len, *mode)
        }
        _ => return Err(format!("watchpoint probe type requires 3 arguments, found {}", rest.len())),
    };
    let len = match number(len) {
        Some(n @ (1 | 2 | 4 | 8)) => n as u8,
        _ => return Err("Invalid watchpoint length: must be one of (1, 2, 4, 8)".into()),
    };
    let has = |c: char| mode.contains(c);
    let twice = mode.chars().any(|c| mode.matches(c).count() > 1);
    if mode.is_empty() || twice || mode.chars().any(|c| !"rwx".contains(c)) {
        return Err("watchpoint mode must be combination of (r,w,x)".into());
    }
    if has('x') && (has('r') || has('w')) {
        return Err("invalid watchpoint modes: x can't be combined with r or w".into());
    }
    if has('r') && !has('w') {
        return Err("a read-only watchpoint can't be set on x86: use rw".into());
    }
    Ok(Spec::Watchpoint { at, len, read: has('r'), write: has('w'), execute: has('x') })
}
