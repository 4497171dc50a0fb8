//! Symbols that were moved out of the file: a separate debug file, or compressed `.gnu_debugdata`.
//!
//! For:     names in stripped distributions' libraries.
//! State:   none.
//! Context: control.
//! Keeps:   D1 a debug file is used only if its build id is the image's.
//! Checked: tests/suite/elf.rs: `a_debug_file_is_found_by_build_id_and_only_by_it`, `compressed_symbols_are_read`.

use std::path::{Path, PathBuf};

use super::ElfImage;

/// Compressed symbols larger than this after decompression are not used.
const MAX_DEBUGDATA_BYTES: usize = 512 << 20;

impl ElfImage {
    /// Where a distribution puts this image's separate debug file; the file need not exist.
    pub fn debug_file_path(&self) -> Option<PathBuf> {
        path_by_build_id(&self.debug_root, self.build_id()?)
    }

    /// The debug file's needed parts, if it is there and belongs to this image.
    pub(super) fn debug_file(&self) -> Option<Vec<u8>> {
        let path = self.debug_file_path()?;
        let file = std::fs::File::open(&path).ok()?;
        let data = super::read::needed_parts(&file, &path).ok()?;
        (super::header::build_id(&data).as_deref() == self.build_id()).then_some(data)
    }

    /// The ELF file inside `.gnu_debugdata`.
    pub(super) fn debug_data(&self) -> Option<Vec<u8>> {
        use object::endian::LittleEndian as LE;
        use object::read::elf::{FileHeader as _, SectionHeader as _};
        let data = self.data.as_slice();
        let sections = super::header::Header::parse(data).ok()?.sections(LE, data).ok()?;
        let (_, section) = sections.section_by_name(LE, b".gnu_debugdata")?;
        let mut compressed = section.data(LE, data).ok()?;
        let mut plain = Bounded(Vec::new());
        lzma_rs::xz_decompress(&mut compressed, &mut plain).ok()?;
        Some(plain.0)
    }
}

fn path_by_build_id(root: &Path, id: &[u8]) -> Option<PathBuf> {
    let hex: String = id.iter().map(|b| format!("{b:02x}")).collect();
    let (first, rest) = hex.split_at_checked(2)?;
    Some(root.join(".build-id").join(first).join(format!("{rest}.debug")))
}

/// A writer that refuses to grow past what symbols can be, against a compression bomb.
struct Bounded(Vec<u8>);

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_DEBUGDATA_BYTES {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
