//! One ELF file: its segments, sections, bytes and the facts about it as a whole.
//!
//! For:     everything that asks what is at an address of a file that a process maps.
//! State:   the bytes that matter (loaded segments, symbol tables), tables made on first use.
//! Context: control.
//! Keeps:   E1 `image_addr` and `file_offset` undo each other wherever both have an answer.
//!          E2 no byte of the file makes this crate panic or read outside the file.
//! Checked: tests/suite/elf.rs (E1 over every executable byte range), `broken_files_give_errors_or_less_but_never_a_panic` (E2).

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use crate::{FileId, FileOffset, ImageAddr, ImageError};

mod bounds;
mod debug;
mod eh;
mod function;
mod go;
mod header;
mod lsda;
mod lzma;
mod marks;
mod name;
mod pointers;
mod read;
mod reloc;
mod special;
mod symbols;
mod types;
mod xz;

pub(crate) use debug::DebugFile;
pub use debug::Unread;
pub use eh::Fde;
pub use function::{Function, FunctionKind, SizeSource, Source};
pub use go::GoFrames;
pub use marks::{Mark, Operand};
pub use name::{NameAt, SymbolName, Version, demangle};
pub(crate) use name::{cpp_name, rust_name};
pub(crate) use read::open as open_file;
pub use reloc::{ImportSlot, IrelativeSlot};
pub use special::CriticalSection;
pub use symbols::Variable;
pub use types::{Kind, Signature};

/// The type of machine that an image is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Machine {
    /// x86-64.
    X86_64,
    /// AArch64.
    Aarch64,
    /// Another one, by its ELF number.
    Other(u16),
}

/// One loadable part of an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The addresses that come from the file.
    pub range: Range<ImageAddr>,
    /// Where they begin in the file.
    pub offset: FileOffset,
    /// Bytes in memory, zeroed ones after the file's included.
    pub memory_bytes: u64,
    /// Whether it is mapped writable.
    pub is_writable: bool,
    /// Whether it is mapped executable.
    pub is_executable: bool,
}

/// One section that is loaded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Section {
    /// Its name, such as `.text`.
    pub name: String,
    /// Its addresses.
    pub range: Range<ImageAddr>,
    /// Whether it holds code.
    pub is_executable: bool,
    /// Whether it is mapped writable.
    pub is_writable: bool,
    /// Whether its bytes come from the file (`.bss` does not).
    pub is_in_file: bool,
}

/// An ELF file, read for tracing.
#[derive(Debug)]
pub struct ElfImage {
    path: PathBuf,
    file: Option<(FileId, SystemTime)>,
    data: Vec<u8>,
    head: header::Head,
    debug_root: PathBuf,
    fdes: OnceLock<Vec<Fde>>,
    functions: OnceLock<Vec<Function>>,
    labels: OnceLock<Vec<ImageAddr>>,
    pointers: OnceLock<Vec<ImageAddr>>,
    relocs: OnceLock<reloc::Relocs>,
    unread: OnceLock<Unread>,
}

impl ElfImage {
    /// Its variables, by address; thread-local ones are left out, since they have no one address.
    pub fn variables(&self) -> Vec<Variable> {
        symbols::variables(self)
    }

    /// Its USDT marks, in file order.
    pub fn marks(&self) -> Vec<Mark> {
        marks::marks(&self.data)
    }

    /// The image in the file at `path`.
    ///
    /// Only the loaded segments and the symbol tables are read: debug information is skipped.
    ///
    /// # Errors
    /// The file cannot be read, is not a 64-bit little-endian ELF file that was linked, or asks for too much.
    pub fn open(path: impl AsRef<Path>) -> Result<ElfImage, ImageError> {
        let path = path.as_ref();
        ElfImage::from_file(&read::open(path).map_err(|e| ImageError::io(path, e))?, path)
    }

    /// The same for a file whose code is for the machine that this runs on.
    ///
    /// # Errors
    /// As [`ElfImage::open`], and the code is for another machine.
    pub fn open_native(path: impl AsRef<Path>) -> Result<ElfImage, ImageError> {
        let image = ElfImage::open(path)?;
        let is_native = match image.machine() {
            Machine::X86_64 => cfg!(target_arch = "x86_64"),
            Machine::Aarch64 => cfg!(target_arch = "aarch64"),
            Machine::Other(_) => false,
        };
        let other = || ImageError::OtherMachine { path: image.path.clone(), machine: image.machine() };
        if is_native { Ok(image) } else { Err(other()) }
    }

    /// The image in an open file; `path` is for messages and [`ElfImage::path`].
    ///
    /// # Errors
    /// As [`ElfImage::open`].
    pub fn from_file(file: &std::fs::File, path: &Path) -> Result<ElfImage, ImageError> {
        let as_it_was = file.metadata().ok();
        let image = ElfImage::from_data(read::needed_parts(file, path)?, path)?;
        let file = as_it_was.and_then(|m| Some((crate::maps::id_of(&m), m.modified().ok()?)));
        Ok(ElfImage { file, ..image })
    }

    /// The file that it was read from, and when that had been changed last; `None` for bytes of no file.
    pub fn file(&self) -> Option<(FileId, SystemTime)> {
        self.file
    }

    /// The image in `data`, a whole ELF file (a vdso read from a process, for example).
    ///
    /// # Errors
    /// As [`ElfImage::open`], without those of files.
    pub fn from_bytes(data: Vec<u8>) -> Result<ElfImage, ImageError> {
        ElfImage::from_data(data, Path::new(""))
    }

    fn from_data(data: Vec<u8>, path: &Path) -> Result<ElfImage, ImageError> {
        let head = header::Head::parse(&data, path)?;
        Ok(ElfImage {
            path: path.to_owned(),
            file: None,
            data,
            head,
            debug_root: PathBuf::from("/usr/lib/debug"),
            fdes: OnceLock::new(),
            functions: OnceLock::new(),
            labels: OnceLock::new(),
            pointers: OnceLock::new(),
            relocs: OnceLock::new(),
            unread: OnceLock::new(),
        })
    }

    /// The same image, with separate debug files looked for below `root`, not `/usr/lib/debug`.
    ///
    /// Call it before the first question about functions.
    pub fn with_debug_root(mut self, root: impl Into<PathBuf>) -> ElfImage {
        self.debug_root = root.into();
        self.functions = OnceLock::new();
        self.labels = OnceLock::new();
        self.unread = OnceLock::new();
        self
    }

    /// The path it was opened by, empty for bytes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The machine that its code is for.
    pub fn machine(&self) -> Machine {
        self.head.machine
    }

    /// Whether it asks for guarded pages, in which branches by register land on landing pads only (AArch64's BTI).
    pub fn is_guarded(&self) -> bool {
        self.head.is_guarded
    }

    /// The parts that are loaded, in the order of the program headers.
    pub fn segments(&self) -> &[Segment] {
        &self.head.segments
    }

    /// The executable parts and their bytes as in the file.
    pub fn executable_segments(&self) -> impl Iterator<Item = (&Segment, &[u8])> {
        self.head.segments.iter().filter(|s| s.is_executable).map(|s| {
            let start = s.offset.0 as usize;
            let len = (s.range.end.0 - s.range.start.0) as usize;
            (s, &self.data[start..start + len])
        })
    }

    /// The loaded sections, in file order; empty if the section headers were cut off.
    pub fn sections(&self) -> &[Section] {
        &self.head.sections
    }

    /// Where code is: the executable sections, or the executable segments of a file without any.
    pub fn code_ranges(&self) -> &[Range<ImageAddr>] {
        &self.head.code
    }

    /// Whether code is at `addr`.
    pub fn is_code(&self, addr: ImageAddr) -> bool {
        let after = self.head.code.partition_point(|r| r.start <= addr);
        after > 0 && addr < self.head.code[after - 1].end
    }

    /// The entry stubs for calls into other images: `.plt`, `.plt.sec`, `.plt.got`, `.iplt`.
    pub fn plt_ranges(&self) -> Vec<Range<ImageAddr>> {
        let is_plt = |s: &&Section| s.is_executable && (s.name.starts_with(".plt") || s.name == ".iplt");
        self.head.sections.iter().filter(is_plt).map(|s| s.range.clone()).collect()
    }

    /// Where execution of the image begins, if it can.
    pub fn entry(&self) -> Option<ImageAddr> {
        (self.head.entry.0 != 0).then_some(self.head.entry)
    }

    /// The name that other images ask for it by.
    pub fn soname(&self) -> Option<&str> {
        self.head.soname.as_deref()
    }

    /// The images that it asks for by name.
    pub fn needed(&self) -> &[String] {
        &self.head.needed
    }

    /// The linker's fingerprint of the build.
    pub fn build_id(&self) -> Option<&[u8]> {
        self.head.build_id.as_deref()
    }

    /// The dynamic loader that it asks for.
    pub fn interpreter(&self) -> Option<&Path> {
        self.head.interpreter.as_deref()
    }

    /// Whether it is loaded at the addresses that it was linked for, no other.
    pub fn is_fixed(&self) -> bool {
        self.head.is_fixed
    }

    /// Whether it is a program that needs no dynamic loader.
    pub fn is_static(&self) -> bool {
        let asks_for_nothing = self.head.interpreter.is_none() && self.head.needed.is_empty();
        asks_for_nothing && self.head.soname.is_none() && self.entry().is_some()
    }

    /// Whether it is loaded by programs and is none itself. The C library is both, and meant as a library.
    pub fn is_library(&self) -> bool {
        let is_program = self.head.interpreter.is_some() || self.is_fixed() || self.is_static();
        self.head.soname.is_some() || !is_program
    }

    /// Whether the Go tool chain made it.
    pub fn is_go(&self) -> bool {
        self.head.sections.iter().any(|s| s.name == ".go.buildinfo" || s.name.ends_with(".gopclntab"))
    }

    /// The address at which the byte at `offset` is loaded, `None` if it is not.
    pub fn image_addr(&self, offset: FileOffset) -> Option<ImageAddr> {
        self.head.segments.iter().find_map(|s| {
            let into = offset.0.checked_sub(s.offset.0)?;
            (into < s.range.end.0 - s.range.start.0).then(|| ImageAddr(s.range.start.0 + into))
        })
    }

    /// The place in the file of the byte at `addr`, `None` if it does not come from the file.
    pub fn file_offset(&self, addr: ImageAddr) -> Option<FileOffset> {
        let segment = self.head.segments.iter().find(|s| s.range.contains(&addr))?;
        Some(FileOffset(segment.offset.0 + (addr.0 - segment.range.start.0)))
    }

    /// The `len` bytes at `addr` as in the file, `None` if not all of them come from it.
    pub fn bytes(&self, addr: ImageAddr, len: usize) -> Option<&[u8]> {
        let rest = self.bytes_from(addr)?;
        rest.get(..len)
    }

    /// The bytes from `addr` to the end of its segment as in the file.
    pub fn bytes_from(&self, addr: ImageAddr) -> Option<&[u8]> {
        let segment = self.head.segments.iter().find(|s| s.range.contains(&addr))?;
        let start = segment.offset.0 + (addr.0 - segment.range.start.0);
        let end = segment.offset.0 + (segment.range.end.0 - segment.range.start.0);
        self.data.get(start as usize..end as usize)
    }

    pub(crate) fn section(&self, name: &str) -> Option<&Section> {
        self.head.sections.iter().find(|s| s.name == name)
    }

    pub(crate) fn section_bytes(&self, section: &Section) -> Option<&[u8]> {
        let len = (section.range.end.0 - section.range.start.0) as usize;
        if section.is_in_file { self.bytes(section.range.start, len) } else { None }
    }
}
