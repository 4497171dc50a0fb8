//! Executable segments and functions of ELF files that are on the machine.
//!
//! For:     tests over real code. The product's own reader is another crate; this one is made of `object` and
//!          thirty lines for `.eh_frame`.
//! State:   the file's bytes.
//! Context: test only.
//! Keeps:   G1 what is not on this machine is skipped by name, never silently.
//! Checked: by the tests over it, which fail when they find no functions.

use std::collections::BTreeMap;
use std::ops::Range;

use insn::{Code, Flow, Table};
use object::read::elf::{ElfFile64, FileHeader};
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SegmentFlags, SymbolKind};

pub struct File {
    pub path: String,
    bytes: Vec<u8>,
}

pub struct Loaded<'a> {
    pub codes: Vec<Code<'a>>,
    data: Vec<Code<'a>>,
    pub functions: Vec<Range<u64>>,
    pub starts: Vec<u64>,
    pub indirect: Vec<u64>,
}

/// The first of some files that is here.
pub fn open(candidates: &[&str]) -> Option<File> {
    for path in candidates {
        if let Ok(bytes) = std::fs::read(path) {
            return Some(File { path: path.to_string(), bytes });
        }
    }
    println!("skipped, not on this machine: {candidates:?}");
    None
}

pub const LIBC: &[&str] = &["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6"];
pub const LIBSTDCXX: &[&str] = &["/usr/lib/x86_64-linux-gnu/libstdc++.so.6", "/usr/lib64/libstdc++.so.6"];
pub const PYTHON: &[&str] = &["/usr/bin/python3", "/usr/local/bin/python3"];
pub const GO: &[&str] = &["/usr/local/go/bin/go", "/usr/lib/go/bin/go"];

impl File {
    pub fn load(&self) -> Loaded<'_> {
        let elf = ElfFile64::<object::Endianness>::parse(&*self.bytes).expect("an ELF file");
        let mut codes = vec![];
        let mut data = vec![];
        for segment in elf.segments() {
            let code = Code { base: segment.address(), bytes: segment.data().expect("its bytes") };
            match segment.flags() {
                SegmentFlags::Elf { p_flags } if p_flags & object::elf::PF_X != 0 => codes.push(code),
                _ => data.push(code),
            }
        }
        let mut found: BTreeMap<u64, u64> = BTreeMap::new();
        let is_code = |addr: u64| codes.iter().any(|code: &Code<'_>| code.range().contains(&addr));
        for symbol in elf.symbols().chain(elf.dynamic_symbols()) {
            if symbol.kind() == SymbolKind::Text && symbol.size() > 0 && is_code(symbol.address()) {
                let size = found.entry(symbol.address()).or_default();
                *size = symbol.size().max(*size);
            }
        }
        if let Some(section) = elf.section_by_name(".eh_frame") {
            for (start, size) in frames(section.address(), section.data().unwrap_or_default()) {
                if is_code(start) {
                    found.entry(start).or_insert(size);
                }
            }
        }
        let functions: Vec<_> = found.iter().map(|(start, size)| *start..*start + *size).collect();
        let starts = found.keys().copied().collect();
        let indirect = pointers(&elf, &data, &is_code);
        Loaded { codes, data, functions, starts, indirect }
    }
}

/// Code addresses in relative relocations, and in data where the file is not position independent.
fn pointers(
    elf: &ElfFile64<'_, object::Endianness>,
    data: &[Code<'_>],
    is_code: &dyn Fn(u64) -> bool,
) -> Vec<u64> {
    let mut found: Vec<u64> = vec![];
    for (_, relocation) in elf.dynamic_relocations().into_iter().flatten() {
        found.push(relocation.addend() as u64);
    }
    let is_fixed = elf.elf_header().e_type(elf.endian()) == object::elf::ET_EXEC;
    if is_fixed {
        for segment in data {
            found.extend(
                segment.bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())),
            );
        }
    }
    found.retain(|addr| is_code(*addr));
    found.sort_unstable();
    found.dedup();
    found
}

/// (start, size) of each frame description with the usual pc-relative 4-byte encoding.
fn frames(base: u64, bytes: &[u8]) -> Vec<(u64, u64)> {
    let word = |at: usize| bytes.get(at..at + 4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
    let mut found = vec![];
    let mut at = 0;
    while let (Some(len), Some(cie)) = (word(at), word(at + 4)) {
        if len == 0 || len == u32::MAX {
            break;
        }
        if cie != 0
            && let (Some(start), Some(size)) = (word(at + 8), word(at + 12))
        {
            let start = (base + at as u64 + 8).wrapping_add_signed(i64::from(start as i32));
            found.push((start, u64::from(size)));
        }
        at += 4 + len as usize;
    }
    found
}

/// Where a table ends is not written anywhere; no longer one was seen.
const ENTRIES: usize = 4096;

impl Loaded<'_> {
    #[allow(dead_code)] // not every test over it needs it
    pub fn flow(&self) -> Flow {
        Flow::analyse(&self.codes, &self.starts, &self.indirect, &|table| self.table(table))
    }

    #[allow(dead_code)] // nor this
    pub fn flow_near(&self, near: &[Range<u64>]) -> Flow {
        Flow::analyse_near(&self.codes, &self.starts, &self.indirect, &|table| self.table(table), near)
    }

    /// The entries of a jump table: 32-bit offsets, or 64-bit addresses, up to the first that is no code.
    pub fn table(&self, table: &Table) -> Vec<u64> {
        let Some(segment) = self.data.iter().find(|segment| segment.range().contains(&table.at)) else {
            return vec![];
        };
        let bytes = segment.from_addr(table.at);
        let is_code = |addr: &u64| match &table.within {
            Some(within) => within.contains(addr),
            None => self.codes.iter().any(|code| code.range().contains(addr)),
        };
        let offsets = bytes.chunks_exact(4).map(|word| {
            table.base.wrapping_add_signed(i64::from(i32::from_le_bytes(word.try_into().unwrap())))
        });
        let addresses = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        offsets.take(ENTRIES).take_while(is_code).chain(addresses.take(ENTRIES).take_while(is_code)).collect()
    }
}
