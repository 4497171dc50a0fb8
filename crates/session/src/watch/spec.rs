//! What to watch: `w:BIN:SYMBOL[+OFF]:LEN:ACCESS` or `w:0xADDR:LEN:ACCESS`.
//!
//! For:     `nanoprobe watch`.
//! State:   none.
//! Context: control.
//! Keeps:   P1 a length and an address that no debug register can have are refused here, with the reason.
//! Checked: tests below; testkit `watching`.

use super::WatchError;
use image::spec::Library;
use image::{ElfImage, ImageAddr, Process, lookup};

/// Which accesses count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Writes.
    Write,
    /// Reads and writes: the hardware cannot tell them apart.
    ReadWrite,
}

/// Where the bytes are.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Bytes {
    At(u64),
    Symbol { library: Library, name: String, offset: u64 },
}

/// A specification as it was typed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchSpec {
    /// The whole of it.
    pub text: String,
    bytes: Bytes,
    len: u32,
    access: Access,
}

/// Bytes of one process to be watched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Watch {
    /// What it is called in results.
    pub name: String,
    /// The address in the process.
    pub addr: u64,
    /// How many bytes.
    pub len: u32,
    /// Which accesses.
    pub access: Access,
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

impl WatchSpec {
    /// Reads a specification.
    ///
    /// # Errors
    /// [`WatchError::Spec`] with what is wrong.
    pub fn parse(text: &str) -> Result<WatchSpec, WatchError> {
        let bad = |why: &'static str| WatchError::Spec { text: text.to_owned(), why };
        let parts: Vec<&str> = text.split(':').collect();
        let (bytes, rest) = match parts.as_slice() {
            ["w" | "watchpoint", at, rest @ ..] if at.starts_with("0x") && rest.len() <= 2 => {
                (Bytes::At(number(at).ok_or_else(|| bad("the address is no number"))?), rest)
            }
            ["w" | "watchpoint", library, symbol, rest @ ..] if !symbol.is_empty() => {
                let (name, offset) = symbol.rsplit_once('+').unwrap_or((symbol, "0"));
                let offset = number(offset).ok_or_else(|| bad("the offset is no number"))?;
                let library = match *library {
                    "" => Library::Main,
                    name => Library::Named(name.to_owned()),
                };
                (Bytes::Symbol { library, name: name.to_owned(), offset }, rest)
            }
            _ => return Err(bad("write w:BIN:SYMBOL[+OFFSET]:LENGTH:w or w:0xADDRESS:LENGTH:rw")),
        };
        let (len, access) = match rest {
            [len, access] => (*len, *access),
            [len] => (*len, "w"),
            _ => return Err(bad("it ends in :LENGTH:w or :LENGTH:rw")),
        };
        let len = number(len).filter(|n| matches!(n, 1 | 2 | 4 | 8));
        let len = len.ok_or_else(|| bad("the length is 1, 2, 4 or 8"))? as u32;
        let access = match access {
            "w" => Access::Write,
            "rw" | "wr" => Access::ReadWrite,
            "r" => return Err(bad("reads alone cannot be watched: write rw")),
            "x" => return Err(bad("code is probed, not watched: nanoprobe count 'u:BIN:FUNC'")),
            _ => return Err(bad("the access is w or rw")),
        };
        Ok(WatchSpec { text: text.to_owned(), bytes, len, access })
    }
}

/// The watches of one process that specifications mean.
///
/// # Errors
/// No such file, symbol or memory; an address that is not aligned to the length.
pub fn resolve(pid: i32, specs: &[WatchSpec]) -> Result<Vec<Watch>, WatchError> {
    let process = Process::read(pid as u32).map_err(WatchError::Image)?;
    specs.iter().map(|spec| one(&process, spec)).collect()
}

fn one(process: &Process, spec: &WatchSpec) -> Result<Watch, WatchError> {
    let (name, addr) = match &spec.bytes {
        Bytes::At(addr) => (format!("{addr:#x}"), *addr),
        Bytes::Symbol { library, name, offset } => {
            let module = lookup::find_module(library, process).map_err(WatchError::Lookup)?;
            let image = module.open(process.pid).map_err(WatchError::Image)?;
            let addr = variable(&image, name, *offset, spec)?;
            let shown = if *offset > 0 { format!("{name}+{offset:#x}") } else { name.clone() };
            (shown, module.addr(addr).0)
        }
    };
    let watch = Watch { name, addr, len: spec.len, access: spec.access };
    if addr % u64::from(spec.len) != 0 {
        return Err(WatchError::NotAligned { name: watch.name, addr, len: spec.len });
    }
    let is_mapped = process.mappings.iter().any(|m| m.range.contains(&image::Addr(addr)));
    if !is_mapped {
        return Err(WatchError::NotMapped { name: watch.name, addr });
    }
    Ok(watch)
}

fn variable(image: &ElfImage, name: &str, offset: u64, spec: &WatchSpec) -> Result<ImageAddr, WatchError> {
    let all = image.variables();
    let mut found: Vec<_> = all.iter().filter(|v| v.name == name).collect();
    found.dedup_by_key(|v| v.addr);
    match found.as_slice() {
        [one] if one.size_bytes > 0 && offset + u64::from(spec.len) > one.size_bytes => {
            Err(WatchError::TooLong { name: name.to_owned(), size_bytes: one.size_bytes })
        }
        [one] => Ok(ImageAddr(one.addr.0 + offset)),
        [] => {
            let mut near: Vec<_> =
                all.iter().map(|v| (strsim::damerau_levenshtein(&v.name, name), v)).collect();
            near.sort_by_key(|(distance, _)| *distance);
            let close = near.iter().filter(|(d, _)| *d <= 1 + name.len() / 3);
            let near = close.take(3).map(|(_, v)| v.name.clone()).collect();
            let path = image.path().display().to_string();
            Err(WatchError::NoSymbol { name: name.to_owned(), path, near })
        }
        many => Err(WatchError::Ambiguous {
            name: name.to_owned(),
            addrs: many.iter().map(|v| v.addr.0).collect(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specifications_name_bytes_length_and_access() {
        let spec = WatchSpec::parse("w:./server:table+0x10:4:rw").unwrap();
        assert_eq!((spec.len, spec.access), (4, Access::ReadWrite));
        assert!(matches!(&spec.bytes, Bytes::Symbol { name, offset: 16, .. } if name == "table"));
        let spec = WatchSpec::parse("w:0x1000:8:w").unwrap();
        assert_eq!((spec.bytes, spec.access), (Bytes::At(0x1000), Access::Write));
        assert!(matches!(
            WatchSpec::parse("w::x:1").unwrap().bytes,
            Bytes::Symbol { library: Library::Main, .. }
        ));
    }

    #[test]
    fn what_no_debug_register_can_do_is_refused_with_the_reason() {
        for (text, part) in [
            ("w:a:x:3:w", "1, 2, 4 or 8"),
            ("w:a:x:8:r", "rw"),
            ("w:a:x:8:x", "count"),
            ("u:a:x:8:w", "w:BIN"),
            ("w:0xzz:8:w", "number"),
            ("w:a:x", "LENGTH"),
        ] {
            let error = WatchSpec::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
