//! Symbols that were moved out of the file: a separate debug file, or compressed `.gnu_debugdata`.
//!
//! For:     names in stripped distributions' libraries.
//! State:   none.
//! Context: control.
//! Keeps:   D1 a debug file is used only if its build id is the image's.
//! Checked: tests/suite/elf.rs: `a_debug_file_is_found_by_build_id_and_only_by_it`, `compressed_symbols_are_read`.

use std::fmt;
use std::path::{Path, PathBuf};

use super::ElfImage;
use super::header::Header;
use super::xz::{self, NotRead};
use object::endian::LittleEndian as LE;
use object::read::elf::{FileHeader as _, SectionHeader as _};
use std::io::Read as _;

/// Compressed symbols larger than this after decompression are not used: 0.6 MB of xz can hold gigabytes.
const MAX_DEBUGDATA_BYTES: usize = 64 << 20;

impl ElfImage {
    /// Where a distribution puts this image's separate debug file; the file need not exist.
    pub fn debug_file_path(&self) -> Option<PathBuf> {
        path_by_build_id(&self.debug_root, self.build_id()?)
    }

    /// The debug file's needed parts, if it is there and belongs to this image.
    pub(super) fn debug_file(&self) -> Option<Vec<u8>> {
        let path = self.debug_file_path()?;
        let file = super::read::open(&path).ok()?;
        let data = super::read::needed_parts(&file, &path).ok()?;
        (super::header::build_id(&data).as_deref() == self.build_id()).then_some(data)
    }

    /// The ELF file inside `.gnu_debugdata`.
    pub(super) fn debug_data(&self) -> Option<Vec<u8>> {
        let data = self.data.as_slice();
        let sections = Header::parse(data).ok()?.sections(LE, data).ok()?;
        let (_, section) = sections.section_by_name(LE, b".gnu_debugdata")?;
        let compressed = section.data(LE, data).ok()?;
        match xz::decompress(compressed, MAX_DEBUGDATA_BYTES) {
            Ok(plain) if super::bounds::excess(&plain).is_none() => Some(plain),
            Ok(_) => {
                let _ = self.unread.set(Unread::Broken);
                None
            }
            Err(why) => {
                let _ = self.unread.set(match why {
                    NotRead::Broken => Unread::Broken,
                    NotRead::TooLarge(max_bytes) => Unread::TooLarge { max_bytes },
                });
                None
            }
        }
    }

    /// Why the compressed symbols in the file are not among its functions, if they are there and are not.
    pub fn unread_symbols(&self) -> Option<Unread> {
        self.functions();
        self.unread.get().copied()
    }
}

/// A file with debug sections, read whole.
pub(crate) struct DebugFile {
    path: PathBuf,
    data: Vec<u8>,
}

impl fmt::Debug for DebugFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DebugFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl DebugFile {
    /// The whole of a regular ELF file that is not too long.
    pub(crate) fn open(path: &Path) -> Option<DebugFile> {
        const FILE_MAX: u64 = 1 << 30;
        let mut file = super::read::open(path).ok()?;
        let is_short = file.metadata().is_ok_and(|m| m.is_file() && m.len() <= FILE_MAX);
        let mut data = Vec::new();
        let is_read =
            is_short && file.read_to_end(&mut data).is_ok() && super::bounds::excess(&data).is_none();
        is_read.then(|| DebugFile { path: path.to_owned(), data })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A section that is there as it is, not compressed.
    pub(crate) fn section(&self, name: &str) -> Option<&[u8]> {
        const COMPRESSED: u64 = 1 << 11;
        let data = self.data.as_slice();
        let sections = Header::parse(data).ok()?.sections(LE, data).ok()?;
        let (_, section) = sections.section_by_name(LE, name.as_bytes())?;
        let is_plain = section.sh_flags(LE).0 & COMPRESSED == 0;
        is_plain.then(|| section.data(LE, data).ok()).flatten().filter(|bytes| !bytes.is_empty())
    }

    fn build_id(&self) -> Option<Vec<u8>> {
        super::header::build_id(&self.data)
    }

    /// The name of the file with its debug sections.
    fn link(&self) -> Option<String> {
        let link = self.section(".gnu_debuglink")?;
        let end = link.iter().position(|b| *b == 0)?;
        let name = std::str::from_utf8(&link[..end]).ok()?;
        (!name.is_empty() && !name.contains('/')).then(|| name.to_owned())
    }
}

impl ElfImage {
    /// The files that may have its debug sections, itself first. Others only if they are of the same build.
    pub(crate) fn debug_files(&self, dirs: &[PathBuf]) -> Vec<DebugFile> {
        let own = DebugFile::open(&self.path);
        let dir = self.path.parent().map(Path::to_owned).unwrap_or_default();
        let full = std::fs::canonicalize(&dir).unwrap_or_else(|_| dir.clone());
        let below_root = self.debug_root.join(full.strip_prefix("/").unwrap_or(&full));
        let mut places = vec![dir.clone(), dir.join(".debug"), below_root];
        // As it is written, or counted from where the file is.
        places.extend(dirs.iter().flat_map(|asked| [asked.clone(), dir.join(asked)]));
        let linked = own.as_ref().and_then(DebugFile::link).into_iter();
        let linked = linked.flat_map(|name| places.iter().map(move |place| place.join(&name)));
        let by_id = dirs.iter().filter_map(|dir| path_by_build_id(dir, self.build_id()?));
        let others: Vec<PathBuf> = self.debug_file_path().into_iter().chain(by_id).chain(linked).collect();
        let is_same =
            |file: &DebugFile| self.build_id().is_some() && file.build_id().as_deref() == self.build_id();
        let others = others.iter().filter_map(|path| DebugFile::open(path)).filter(is_same);
        own.into_iter().filter(|own| own.build_id().as_deref() == self.build_id()).chain(others).collect()
    }
}

/// Why the compressed symbols inside a file are not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unread {
    /// They are no xz stream with one LZMA2 filter and a checksum that is known here, or it is broken.
    Broken,
    /// They are larger than that when decompressed.
    TooLarge {
        /// The limit.
        max_bytes: usize,
    },
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("its compressed symbols (.gnu_debugdata) are not read: ")?;
        match self {
            Unread::Broken => f.write_str("they are broken"),
            Unread::TooLarge { max_bytes } => write!(f, "they are larger than {} MiB", max_bytes >> 20),
        }
    }
}

fn path_by_build_id(root: &Path, id: &[u8]) -> Option<PathBuf> {
    let hex: String = id.iter().map(|b| format!("{b:02x}")).collect();
    let (first, rest) = hex.split_at_checked(2)?;
    Some(root.join(".build-id").join(first).join(format!("{rest}.debug")))
}
