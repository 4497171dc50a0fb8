//! Values as people and programs read them.
//!
//! For:     `print`, maps, `printf`.
//! State:   none.
//! Context: control.
//! Keeps:   S1 bytes that are not as long as their type says are shown as zeros, never read beyond.
//! Checked: tests below, tests/output.rs.
//! Source:  bpftrace 0.26's output: text, and JSON lines in which names of numbers are numbers, integers that a double does
//!          not hold are strings.

use super::os;
use super::stacks::Lines;
use crate::program::Script;
use crate::types::{Int, Type};

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Shown {
    /// Nothing.
    Null,
    /// `true`, `false`.
    Bool(bool),
    /// A number.
    Int(i128),
    /// A number with a name.
    Named(String, u64),
    /// A fraction.
    Float(f64),
    /// Text as it came.
    Text(Vec<u8>),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A stack.
    Stack(Lines),
    /// In square brackets.
    Array(Vec<Shown>),
    /// In round brackets.
    Tuple(Vec<Shown>),
    /// With names.
    Record(Vec<(String, Shown)>),
}

/// The value of a type in these bytes; numbers are divided by `div`.
pub fn value(script: &Script, trailer: &str, ty: &Type, bytes: &[u8], div: i128) -> Shown {
    let ctypes = &script.ctypes;
    let part = |ty: &Type, at: usize| {
        let end = at.saturating_add(ctypes.size(ty) as usize).min(bytes.len());
        value(script, trailer, ty, bytes.get(at..end).unwrap_or_default(), div)
    };
    match ty {
        Type::None | Type::Void => Shown::Null,
        Type::Bool => Shown::Bool(number(bytes, U8) != 0),
        Type::Int(int) => Shown::Int(number(bytes, *int) / div),
        Type::Float(4) => Shown::Float(f64::from(f32::from_bits(number(bytes, U32) as u32))),
        Type::Float(_) => Shown::Float(f64::from_bits(number(bytes, U64) as u64)),
        Type::Pointer(_) => {
            let n = number(bytes, U64) as u64;
            Shown::Named(format!("0x{n:x}"), n)
        }
        Type::Enum(id) => {
            let int = ctypes.enumeration(*id).map_or(U32, |e| e.int);
            let n = number(bytes, int);
            let variants = ctypes.enumeration(*id).map_or(&[][..], |e| &e.variants);
            let name = variants.iter().find(|(_, v)| i128::from(*v) == n);
            Shown::Named(name.map_or_else(|| n.to_string(), |(name, _)| name.clone()), n as u64)
        }
        Type::Str(size) => {
            let mut text = super::host::until_nul(bytes).to_vec();
            if text.len() == *size as usize && *size > 0 {
                text.extend_from_slice(trailer.as_bytes());
            }
            Shown::Text(text)
        }
        Type::Buffer(_) => {
            let len = number(bytes, U32) as usize;
            let data = bytes.get(4..).unwrap_or_default();
            Shown::Bytes(data[..len.min(data.len())].to_vec())
        }
        Type::Array(of, count) => {
            let size = ctypes.size(of) as usize;
            Shown::Array((0..*count as usize).map(|i| part(of, i * size)).collect())
        }
        Type::Struct(id) => {
            let of = |f: &crate::types::Field| (f.name.clone(), field(script, trailer, f, bytes, div));
            Shown::Record(ctypes.get(*id).fields.iter().map(of).collect())
        }
        Type::Tuple(items) => {
            let (offsets, _) = ctypes.layout(items.iter());
            Shown::Tuple(items.iter().zip(offsets).map(|(ty, at)| part(ty, at as usize)).collect())
        }
        Type::Record(items) => {
            let (offsets, _) = ctypes.layout(items.iter().map(|(_, ty)| ty));
            let of = |((name, ty), at): (&(String, Type), u32)| (name.clone(), part(ty, at as usize));
            Shown::Record(items.iter().zip(offsets).map(of).collect())
        }
        _ => special(script, ty, bytes),
    }
}

const U8: Int = Int::new(1, false);
const U32: Int = Int::new(4, false);
const U64: Int = Int::new(8, false);

fn special(script: &Script, ty: &Type, bytes: &[u8]) -> Shown {
    let word = |at: usize| number(bytes.get(at..).unwrap_or_default(), U64) as u64;
    let text = |text: String| Shown::Text(text.into_bytes());
    match ty {
        Type::Inet => text(address(bytes)),
        Type::MacAddr => {
            let hex: Vec<String> = (0..6).map(|i| format!("{:02X}", bytes.get(i).unwrap_or(&0))).collect();
            text(hex.join(":"))
        }
        Type::Usym => {
            let named = script.symbols.as_ref().and_then(|symbols| symbols.0.name(word(8) as u32, word(0)));
            match named {
                Some((name, _)) => text(name),
                None => Shown::Named(format!("0x{:x}", word(0)), word(0)),
            }
        }
        Type::Ksym => Shown::Named(format!("0x{:x}", word(0)), word(0)),
        Type::Ustack(kind) => {
            let frames = match &script.symbols {
                Some(symbols) if word(8) > 0 => symbols.0.stack(word(0)),
                _ => Vec::new(),
            };
            Shown::Stack(Lines::of(&frames, kind.mode))
        }
        Type::Kstack(_) => Shown::Stack(Lines::default()),
        Type::Timestamp => {
            let format = script.time_formats.get(word(8) as usize).map_or(&[][..], Vec::as_slice);
            Shown::Text(os::format_time(format, wall_time(word(0), os::BOOT)))
        }
        Type::Username => text(os::user(word(0))),
        Type::Comm => text(os::comm(&word(0).to_string())),
        Type::CgroupPath => text(cgroup_path(word(0))),
        Type::Agg(_) => Shown::Int(number(bytes, Int::new(8, true))),
        _ => Shown::Null,
    }
}

/// The time of day at which a clock showed this.
pub fn wall_time(nanos: u64, id: libc::clockid_t) -> i128 {
    i128::from(os::clock(os::REAL)) - i128::from(os::clock(id)) + i128::from(nanos)
}

fn field(script: &Script, trailer: &str, f: &crate::types::Field, bytes: &[u8], div: i128) -> Shown {
    let at = f.offset as usize;
    let size = script.ctypes.size(&f.ty) as usize;
    let Some((first, count)) = f.bits else {
        let end = at.saturating_add(size).min(bytes.len());
        return value(script, trailer, &f.ty, bytes.get(at..end).unwrap_or_default(), div);
    };
    let mut word = [0; 8];
    bytes.get(at..).unwrap_or_default().iter().zip(&mut word).for_each(|(from, to)| *to = *from);
    let all = u64::from_le_bytes(word) << (64 - u32::from(first + count).min(64));
    let signed = matches!(f.ty, Type::Int(Int { signed: true, .. }));
    let shift = 64 - u32::from(count.clamp(1, 64));
    Shown::Int(if signed { i128::from(all.cast_signed() >> shift) } else { i128::from(all >> shift) })
}

/// A number in its first bytes.
pub fn number(bytes: &[u8], int: Int) -> i128 {
    let mut word = [0; 8];
    bytes.iter().take(usize::from(int.size)).zip(&mut word).for_each(|(from, to)| *to = *from);
    let unused = 64 - 8 * u32::from(int.size.clamp(1, 8));
    let high = u64::from_le_bytes(word) << unused;
    if int.signed { i128::from(high.cast_signed() >> unused) } else { i128::from(high >> unused) }
}

fn address(bytes: &[u8]) -> String {
    const AF_INET6: i128 = 10;
    let of = |n: usize| bytes.get(4..4 + n).unwrap_or_default().to_vec();
    if number(bytes, U32) == AF_INET6 {
        return <[u8; 16]>::try_from(of(16))
            .map_or(String::new(), |a| std::net::Ipv6Addr::from(a).to_string());
    }
    <[u8; 4]>::try_from(of(4)).map_or(String::new(), |a| std::net::Ipv4Addr::from(a).to_string())
}

/// The control group whose directory has this number.
fn cgroup_path(id: u64) -> String {
    use std::os::unix::fs::MetadataExt;
    const DIRECTORIES_MAX: usize = 100_000;
    let root = std::path::PathBuf::from("/sys/fs/cgroup");
    let mut left = vec![root.clone()];
    let mut seen = 0;
    while let Some(dir) = left.pop() {
        seen += 1;
        if seen > DIRECTORIES_MAX {
            break;
        }
        if std::fs::metadata(&dir).is_ok_and(|meta| meta.ino() == id) {
            let path = dir.strip_prefix(&root).unwrap_or(&dir);
            return format!("unified:/{}", path.display());
        }
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        left.extend(entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()));
    }
    String::new()
}

impl Shown {
    /// As text; bytes of the target as they are.
    pub fn text(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write_text(&mut out, false);
        out
    }

    fn write_text(&self, out: &mut Vec<u8>, is_key: bool) {
        let list = |out: &mut Vec<u8>, items: &[Shown], between: &[u8]| {
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.extend_from_slice(between);
                }
                item.write_text(out, is_key);
            }
        };
        match self {
            Shown::Null => out.extend_from_slice(b"null"),
            Shown::Bool(is) => out.extend_from_slice(is.to_string().as_bytes()),
            Shown::Int(n) => out.extend_from_slice(n.to_string().as_bytes()),
            Shown::Float(x) => out.extend_from_slice(x.to_string().as_bytes()),
            Shown::Named(name, _) => out.extend_from_slice(name.as_bytes()),
            Shown::Text(text) => out.extend_from_slice(text),
            Shown::Stack(lines) => out.extend_from_slice(lines.text(is_key).as_bytes()),
            Shown::Bytes(bytes) => out.extend_from_slice(&hex(bytes, true, true)),
            Shown::Array(items) => {
                out.push(b'[');
                list(out, items, b",");
                out.push(b']');
            }
            Shown::Tuple(items) => {
                out.push(b'(');
                list(out, items, b", ");
                if items.len() == 1 {
                    out.push(b',');
                }
                out.push(b')');
            }
            Shown::Record(fields) if fields.is_empty() => out.extend_from_slice(b"{}"),
            Shown::Record(fields) => {
                for (i, (name, item)) in fields.iter().enumerate() {
                    let before = if i == 0 { "{ ." } else { ", ." };
                    out.extend_from_slice(format!("{before}{name} = ").as_bytes());
                    item.write_text(out, is_key);
                }
                out.extend_from_slice(b" }");
            }
        }
    }

    /// As the key of a map, without a tuple's brackets.
    pub fn key(&self) -> Vec<u8> {
        let mut text = Vec::new();
        self.write_text(&mut text, true);
        match text.as_slice() {
            [b'(', inner @ .., b')'] => inner.to_vec(),
            _ => text,
        }
    }

    /// As JSON.
    pub fn json(&self) -> String {
        let list = |items: &[Shown]| {
            let items: Vec<String> = items.iter().map(Shown::json).collect();
            format!("[{}]", items.join(","))
        };
        match self {
            Shown::Null => "null".into(),
            Shown::Bool(is) => is.to_string(),
            Shown::Int(n) => json_number(*n),
            Shown::Float(x) => x.to_string(),
            Shown::Named(_, n) => json_number(i128::from(*n)),
            Shown::Text(text) => quoted(text),
            Shown::Stack(lines) => quoted(lines.text(true).as_bytes()),
            Shown::Bytes(bytes) => {
                list(&bytes.iter().map(|b| Shown::Int(i128::from(*b))).collect::<Vec<_>>())
            }
            Shown::Array(items) | Shown::Tuple(items) => list(items),
            Shown::Record(fields) => {
                let of =
                    |(name, item): &(String, Shown)| format!("{}: {}", quoted(name.as_bytes()), item.json());
                format!("{{{}}}", fields.iter().map(of).collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// A number, as a string where a double does not hold it.
fn json_number(n: i128) -> String {
    if n as f64 as i128 == n { n.to_string() } else { format!("\"{n}\"") }
}

/// A JSON string. What is not UTF-8 becomes U+FFFD.
pub fn quoted(text: &[u8]) -> String {
    let mut out = String::from("\"");
    for c in String::from_utf8_lossy(text).chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Bytes in hex; `keeps_ascii` leaves printable ones, `escapes` writes `\x` instead of spaces between.
pub fn hex(bytes: &[u8], keeps_ascii: bool, escapes: bool) -> Vec<u8> {
    let mut out = Vec::new();
    for (i, byte) in bytes.iter().enumerate() {
        if keeps_ascii && (b' '..=b'~').contains(byte) {
            out.push(*byte);
        } else if escapes {
            out.extend_from_slice(format!("\\x{byte:02x}").as_bytes());
        } else {
            let gap = if i > 0 { " " } else { "" };
            out.extend_from_slice(format!("{gap}{byte:02x}").as_bytes());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_json_of_nested_values() {
        let inner = Shown::Tuple(vec![Shown::Int(5), Shown::Text(b"a\"b".to_vec())]);
        let value = Shown::Record(vec![("x".into(), inner), ("e".into(), Shown::Named("ONE".into(), 1))]);
        assert_eq!(value.text(), b"{ .x = (5, a\"b), .e = ONE }");
        assert_eq!(value.json(), r#"{"x": [5,"a\"b"], "e": 1}"#);
        assert_eq!(Shown::Array(vec![Shown::Int(1), Shown::Bool(true)]).text(), b"[1,true]");
        assert_eq!(Shown::Tuple(vec![Shown::Int(1)]).text(), b"(1,)");
        assert_eq!(Shown::Tuple(vec![Shown::Int(1), Shown::Int(2)]).key(), b"1, 2");
    }

    #[test]
    fn numbers_that_a_double_does_not_hold_are_strings_in_json() {
        assert_eq!(Shown::Int(1 << 53).json(), "9007199254740992");
        assert_eq!(Shown::Int((1 << 53) + 1).json(), "\"9007199254740993\"");
        assert_eq!(Shown::Int(i128::from(u64::MAX)).json(), "\"18446744073709551615\"");
    }

    #[test]
    fn bytes_are_shown_in_three_ways() {
        assert_eq!(hex(b"A\0", true, true), b"A\\x00");
        assert_eq!(hex(b"A\0", false, true), b"\\x41\\x00");
        assert_eq!(hex(b"A\0", false, false), b"41 00");
    }
}
