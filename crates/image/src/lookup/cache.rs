//! The loader's cache of libraries, `/etc/ld.so.cache`.
//!
//! For:     `find_file`.
//! State:   none.
//! Context: control.
//! Keeps:   C1 a broken cache gives fewer entries, never an error or a panic.
//! Checked: lookup/tests.rs.
//! Source:  the layout "glibc-ld.so.cache1.1" of glibc 2.2 and later.

use std::path::PathBuf;

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEADER_BYTES: usize = 48;
const ENTRY_BYTES: usize = 24;

/// One library in the cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheEntry {
    /// Its soname.
    pub name: String,
    /// Its path.
    pub path: PathBuf,
    /// The kind of library, in the loader's numbers.
    pub flags: u32,
}

impl CacheEntry {
    /// Whether it is a 64-bit library for the machine that this runs on.
    pub fn is_for_this_machine(&self) -> bool {
        const X86_64: u32 = 0x0303;
        const AARCH64: u32 = 0x0a03;
        let wanted = match std::env::consts::ARCH {
            "x86_64" => X86_64,
            "aarch64" => AARCH64,
            _ => return true,
        };
        self.flags & 0xffff == wanted
    }
}

/// The entries of a cache, in its order, which is the loader's order of preference.
pub fn parse_cache(bytes: &[u8]) -> Vec<CacheEntry> {
    // An older table may stand in front; offsets count from the newer one's magic.
    let Some(start) = bytes.windows(MAGIC.len()).position(|w| w == MAGIC) else { return Vec::new() };
    let table = &bytes[start..];
    let number = |at: usize| Some(u32::from_le_bytes(table.get(at..at.checked_add(4)?)?.try_into().ok()?));
    let text = |at: u32| {
        let rest = table.get(at as usize..)?;
        Some(String::from_utf8_lossy(&rest[..rest.iter().position(|&b| b == 0)?]).into_owned())
    };
    let entries = number(20).unwrap_or(0) as usize;
    let entry = |i: usize| {
        let at = HEADER_BYTES + i * ENTRY_BYTES;
        Some(CacheEntry {
            flags: number(at)?,
            name: text(number(at + 4)?)?,
            path: PathBuf::from(text(number(at + 8)?)?),
        })
    };
    (0..entries.min(table.len() / ENTRY_BYTES)).map_while(entry).collect()
}
