//! What was moved out of the file, or made smaller: a separate debug file, compressed sections, `.gnu_debugdata`.
//!
//! For:     names in stripped distributions' libraries.
//! State:   none.
//! Context: control.
//! Keeps:   D1 a debug file is used only if its build id is the image's.
//!          D2 no section is longer than a file may be, however it was compressed.
//! Checked: tests/suite/elf.rs: `a_debug_file_is_found_by_build_id_and_only_by_it`, `compressed_symbols_are_read`; dwarf/tests.rs, `compressed_sections_are_read`.

use std::cell::OnceCell;
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
/// Longer files, and longer sections, are not read.
const FILE_MAX: u64 = 1 << 30;

impl ElfImage {
    /// Where a distribution puts this image's separate debug file; the file need not exist.
    pub fn debug_file_path(&self) -> Option<PathBuf> {
        path_by_build_id(&self.debug_root, self.build_id()?)
    }

    /// The debug file's needed parts, if it is there and belongs to this image.
    pub(super) fn debug_file(&self) -> Option<Vec<u8>> {
        let read = |path: PathBuf| {
            let file = super::read::open(&path).ok()?;
            let data = super::read::needed_parts(&file, &path).ok()?;
            (super::header::build_id(&data).as_deref() == self.build_id()).then_some(data)
        };
        self.debug_file_path().into_iter().chain(cached(self.build_id()?)).find_map(read)
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
    /// Compressed sections as they are without it, by number.
    plain: Vec<OnceCell<Option<Vec<u8>>>>,
}

impl fmt::Debug for DebugFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DebugFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl DebugFile {
    /// The whole of a regular ELF file that is not too long.
    pub(crate) fn open(path: &Path) -> Option<DebugFile> {
        let mut file = super::read::open(path).ok()?;
        let is_short = file.metadata().is_ok_and(|m| m.is_file() && m.len() <= FILE_MAX);
        let mut data = Vec::new();
        let is_read =
            is_short && file.read_to_end(&mut data).is_ok() && super::bounds::excess(&data).is_none();
        let count = Header::parse(data.as_slice()).ok()?.sections(LE, data.as_slice()).ok()?.len();
        is_read.then(|| DebugFile { path: path.to_owned(), data, plain: vec![OnceCell::new(); count] })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A section, as it was before it was compressed.
    pub(crate) fn section(&self, name: &str) -> Option<&[u8]> {
        const COMPRESSED: u64 = 1 << 11;
        let data = self.data.as_slice();
        let sections = Header::parse(data).ok()?.sections(LE, data).ok()?;
        let (number, section) = sections.section_by_name(LE, name.as_bytes())?;
        let bytes = section.data(LE, data).ok()?;
        let bytes = match section.sh_flags(LE).0 & COMPRESSED {
            0 => bytes,
            _ => self.plain.get(number.0)?.get_or_init(|| decompressed(bytes)).as_deref()?,
        };
        (!bytes.is_empty()).then_some(bytes)
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

/// What a compressed section was: a head that says how and how long, then a stream.
fn decompressed(section: &[u8]) -> Option<Vec<u8>> {
    const HEAD: usize = 24;
    let half = |at: usize| Some(u32::from_le_bytes(section.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_le_bytes(section.get(at..at + 8)?.try_into().ok()?));
    let (kind, len) = (half(0)?, long(8).filter(|len| *len <= FILE_MAX)?);
    let stream = section.get(HEAD..)?;
    let mut plain = Vec::new();
    let read = match kind {
        1 => flate2::read::ZlibDecoder::new(stream).take(len).read_to_end(&mut plain).ok()?,
        2 => {
            let decoder = ruzstd::decoding::StreamingDecoder::new(stream).ok()?;
            decoder.take(len).read_to_end(&mut plain).ok()?
        }
        _ => return None,
    };
    (read as u64 == len).then_some(plain)
}

impl ElfImage {
    /// Its `.debug_frame`, from the file itself or its debug file.
    pub fn debug_frame(&self) -> Option<Vec<u8>> {
        // Another file at the path may say otherwise: without a build id only one with the same sections is believed.
        let is_known = self.build_id().is_some()
            || ElfImage::open(&self.path).is_ok_and(|there| there.sections() == self.sections());
        let files = if is_known { self.debug_files(&[]) } else { Vec::new() };
        files.iter().find_map(|file| Some(file.section(".debug_frame")?.to_vec()))
    }

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
        let others: Vec<PathBuf> = self
            .debug_file_path()
            .into_iter()
            .chain(by_id)
            .chain(linked)
            .chain(self.build_id().into_iter().flat_map(cached))
            .collect();
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

/// Where debuginfod's clients keep what they have fetched: nothing is fetched here.
fn cached(id: &[u8]) -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || var("HOME").map(|home| home.join(".cache"));
    let dir = var("DEBUGINFOD_CACHE_PATH")
        .or_else(|| Some(var("XDG_CACHE_HOME").or_else(home)?.join("debuginfod_client")))?;
    let hex: String = id.iter().map(|b| format!("{b:02x}")).collect();
    (!hex.is_empty()).then(|| dir.join(hex).join("debuginfo"))
}

fn path_by_build_id(root: &Path, id: &[u8]) -> Option<PathBuf> {
    let hex: String = id.iter().map(|b| format!("{b:02x}")).collect();
    let (first, rest) = hex.split_at_checked(2)?;
    Some(root.join(".build-id").join(first).join(format!("{rest}.debug")))
}
