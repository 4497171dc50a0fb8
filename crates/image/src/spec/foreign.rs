//! Spellings of other tools, recognised so that the message can say the right one.
//!
//! For:     people who come from DTrace, perf, bcc, libbpf, Frida or SystemTap.
//! State:   none.
//! Context: control.
//! Keeps:   nothing is accepted here, only answered.
//! Checked: spec/tests.rs.

/// A tool, and the same probe in this tool's spelling if it has one.
type Answer = (&'static str, Option<String>);

/// What `text` as a whole is a spelling of.
pub(super) fn spelling(text: &str) -> Option<Answer> {
    dtrace(text)
        .or_else(|| libbpf(text))
        .or_else(|| bcc(text))
        .or_else(|| systemtap(text))
        .or_else(|| frida(text))
}

/// `pid$target:MODULE:FUNC:entry`, `pid123::FUNC:1c`.
fn dtrace(text: &str) -> Option<Answer> {
    let rest = text.strip_prefix("pid")?;
    let mut parts = rest.splitn(2, ':');
    let who = parts.next()?;
    let is_pid = who == "$target" || !who.is_empty() && who.bytes().all(|b| b.is_ascii_digit());
    let fields: Vec<_> = parts.next()?.split(':').collect();
    if !is_pid {
        return None;
    }
    let here = match fields.as_slice() {
        [module, function] | [module, function, "entry" | ""] => Some(format!("u:{module}:{function}")),
        [_, _, "return"] => None,
        [module, function, offset] => Some(format!("u:{module}:{function}+0x{offset}")),
        _ => None,
    };
    Some(("DTrace", here.map(|h| h.replace("u::", "u:LIB:"))))
}

/// `uprobe/PATH:FUNC`, a section name.
fn libbpf(text: &str) -> Option<Answer> {
    let prefixes = ["uprobe/", "uprobe.s/", "uprobe.multi/", "uprobe.multi.s/", "uprobe.session/"];
    if let Some(rest) = prefixes.iter().find_map(|p| text.strip_prefix(p)) {
        return Some(("libbpf section names", Some(format!("u:{rest}"))));
    }
    ["uretprobe/", "uretprobe.s/", "usdt/"]
        .iter()
        .any(|p| text.starts_with(p))
        .then_some(("libbpf section names", None))
}

/// `p:c:malloc`, also tracefs's `p:NAME PATH:OFFSET`.
fn bcc(text: &str) -> Option<Answer> {
    let rest = text.strip_prefix("p:").or_else(|| text.strip_prefix("r:"))?;
    let (library, function) = rest.split_once(':')?;
    let is_bare = !library.is_empty() && !library.contains('/') && !library.starts_with("lib");
    let library = if is_bare { format!("lib{library}") } else { library.to_owned() };
    Some(("bcc and tracefs", text.starts_with("p:").then(|| format!("u:{library}:{function}"))))
}

/// `process("PATH").function("NAME")`.
fn systemtap(text: &str) -> Option<Answer> {
    let rest = text.strip_prefix("process(\"")?;
    let (path, rest) = rest.split_once("\")")?;
    let function = rest.strip_prefix(".function(\"").and_then(|r| r.strip_suffix("\")"));
    Some(("SystemTap", function.map(|f| format!("u:{path}:{f}"))))
}

/// `libc.so.6!open*`.
fn frida(text: &str) -> Option<Answer> {
    let (library, function) = text.split_once('!')?;
    (!text.contains(':')).then(|| ("frida-trace", Some(format!("u:{library}:{function}"))))
}

/// What the part of `text` from `start`, where the function should be, is a spelling of.
pub(super) fn in_function(text: &str, start: usize) -> Option<Answer> {
    let (before, function) = text.split_at(start);
    if function.starts_with("%sdt_") || function.contains(';') {
        return Some(("perf", None));
    }
    let name = function.strip_suffix(":entry")?;
    Some(("DTrace", Some(format!("{before}{name}"))))
}

/// `malloc:12`, `file.c:12`, `func@file.c`.
pub(super) fn is_source_line(function: &str) -> bool {
    let by_number = function.rsplit_once(':').is_some_and(|(before, after)| {
        !before.ends_with(':') && !after.is_empty() && after.bytes().all(|b| b.is_ascii_digit())
    });
    let sources = [".c", ".cc", ".cpp", ".cxx", ".h", ".rs", ".go"];
    let by_file =
        function.rsplit_once('@').is_some_and(|(_, file)| sources.iter().any(|s| file.ends_with(s)));
    !function.starts_with(['/', '"']) && (by_number || by_file)
}
