//! What this process has mapped, as files of the registry.
//!
//! For:     the space, and lookups by mapping.
//! State:   a sorted table, replaced whole when a mapping is added.
//! Context: `find`: hit, inside the engine's reader. The rest: target.
//! Keeps:   M1 a table that was replaced is freed after a grace period.
//! Checked: `tests/engine.rs`.

use probe::{File, FileId, Insn, MAX_INSN};
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, Ordering::AcqRel, Ordering::Acquire};

/// Part of a file, mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Module {
    pub file: FileId,
    pub range: Range<u64>,
    /// Offset in the file of the first byte.
    pub offset: u64,
    pub is_private: bool,
    pub is_text: bool,
}

impl Module {
    /// The offset in the file of an address.
    pub fn offset_of(&self, at: u64) -> u64 {
        at - self.range.start + self.offset
    }

    /// The address of an offset of the file.
    pub fn addr_of(&self, offset: u64) -> Option<u64> {
        let at = self.range.start + offset.checked_sub(self.offset)?;
        self.range.contains(&at).then_some(at)
    }
}

/// All mappings of this process.
pub(crate) fn all() -> std::io::Result<Vec<Module>> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    Ok(maps.lines().filter_map(parse).collect())
}

/// The mapping of an address.
pub(crate) fn of(at: u64) -> Option<Module> {
    all().ok()?.into_iter().find(|module| module.range.contains(&at))
}

fn parse(line: &str) -> Option<Module> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let rights = words.next()?.as_bytes();
    let offset = hex(words.next()?)?;
    let (major, minor) = words.next()?.split_once(':')?;
    let inode: u64 = words.next()?.parse().ok()?;
    let start = hex(start)?;
    // Memory without a file is a file of its own.
    let (file, offset) = match inode {
        0 => (1 << 63 | start, 0),
        _ => (inode ^ (hex(major)? << 40) ^ (hex(minor)? << 52), offset),
    };
    let is_text = rights.get(2) == Some(&b'x') && rights.get(1) != Some(&b'w');
    Some(Module { file, range: start..hex(end)?, offset, is_private: rights.get(3) == Some(&b'p'), is_text })
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

/// The table.
#[derive(Debug)]
pub(crate) struct Modules(AtomicPtr<Vec<Module>>);

impl Modules {
    pub fn new() -> Modules {
        Modules(AtomicPtr::new(Box::into_raw(Box::default())))
    }

    /// The mapping of an address.
    ///
    /// # Safety
    /// The caller must be inside the engine's reader, or the only writer.
    pub unsafe fn find(&self, at: u64) -> Option<&Module> {
        // [TRAP-1] Orders the pointer before the table. Pairs with [TRAP-2].
        // SAFETY: never null; tables are freed after a grace period of the engine's readers.
        let table = unsafe { &*self.0.load(Acquire) };
        let module = table[..table.partition_point(|module| module.range.start <= at)].last()?;
        module.range.contains(&at).then_some(module)
    }

    /// A copy of the table.
    ///
    /// # Safety
    /// The caller must be the only writer.
    pub unsafe fn copy(&self) -> Vec<Module> {
        // [TRAP-3] As [TRAP-1]. Pairs with [TRAP-2].
        // SAFETY: as in `find`.
        unsafe { &*self.0.load(Acquire) }.clone()
    }

    /// Puts another table in its place; the old one must be freed after a grace period.
    #[allow(clippy::box_collection, reason = "readers hold a reference to what is in the box")]
    pub fn replace(&self, mut table: Vec<Module>) -> Box<Vec<Module>> {
        table.sort_by_key(|module| module.range.start);
        // [TRAP-2] Orders the table before the pointer. Pairs with [TRAP-1], [TRAP-3].
        let old = self.0.swap(Box::into_raw(Box::new(table)), AcqRel);
        // SAFETY: made by `into_raw`, and nobody finds it any more.
        unsafe { Box::from_raw(old) }
    }
}

/// A module as the registry's file: its bytes are read from memory.
#[derive(Debug)]
pub(crate) struct OwnFile(pub Module);

impl File for OwnFile {
    fn id(&self) -> FileId {
        self.0.file
    }

    fn size(&self) -> u64 {
        self.0.offset + (self.0.range.end - self.0.range.start)
    }

    fn read(&self, offset: u64, bytes: &mut [u8; MAX_INSN]) -> usize {
        let Some(at) = self.0.addr_of(offset) else { return 0 };
        let len = (self.0.range.end - at).min(MAX_INSN as u64) as usize;
        let read = sys::remote::read_process(sys::getpid() as i32, at, &mut bytes[..len]).unwrap_or(0);
        if let Some(inner) = crate::engine::running() {
            inner.space.without_probes(at, &mut bytes[..read]);
        }
        read
    }

    fn is_probeable(&self, insn: &Insn) -> bool {
        crate::site::can_run(&insn.bytes[..usize::from(insn.len)], 0)
    }
}
