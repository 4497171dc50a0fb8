//! What a process has mapped, line by line.
//!
//! For:     finding the images of a process and the files behind them.
//! State:   a snapshot; the process goes on.
//! Context: control.
//! Keeps:   M1 a path is given as the file system knows it: escapes undone, the mark of deletion apart.
//! Checked: tests below; tests/suite/process.rs on live processes.

use std::ffi::OsString;
use std::fmt;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::{Addr, FileOffset, ImageError};

mod module;
mod open;
mod shadow_stack;
mod task;

pub use module::{ExecMapping, Module, ModuleKind, Process};
pub(crate) use open::file_id as id_of;
pub use shadow_stack::has_shadow_stack;
pub(crate) use task::proc_dir;
pub use task::{by_living, is_over, living};

/// Which file something is, whatever its path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// The device's major and minor number.
    pub device: (u32, u32),
    /// The number of the inode.
    pub inode: u64,
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "inode {} on {:x}:{:x}", self.inode, self.device.0, self.device.1)
    }
}

impl fmt::Debug for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileId({self})")
    }
}

/// What a mapping allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Permissions {
    /// Reading.
    pub is_readable: bool,
    /// Writing.
    pub is_writable: bool,
    /// Executing.
    pub is_executable: bool,
    /// Whether writes reach the file.
    pub is_shared: bool,
}

/// One line of /proc/PID/maps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Its addresses.
    pub range: Range<Addr>,
    /// What it allows.
    pub permissions: Permissions,
    /// Where in the file it begins.
    pub offset: FileOffset,
    /// Which file it is, `None` for memory without one.
    pub file: Option<FileId>,
    /// The file's path, or the kernel's name such as `[stack]`; empty for plain memory.
    pub path: PathBuf,
    /// Whether the path no longer leads to the file.
    pub is_deleted: bool,
}

impl Mapping {
    /// Whether it is the code that the kernel maps into every process.
    pub fn is_vdso(&self) -> bool {
        self.file.is_none() && self.path == Path::new("[vdso]")
    }
}

/// The mappings in `text`, the contents of a /proc/PID/maps.
///
/// # Errors
/// [`ImageError::MapsLine`] for a line of another shape.
pub fn parse_maps(text: &[u8]) -> Result<Vec<Mapping>, ImageError> {
    let lines = text.split(|&b| b == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
    lines.map(|(i, line)| parse_line(line).ok_or(ImageError::MapsLine { line: i + 1 })).collect()
}

/// The mappings of the process `pid`.
///
/// # Errors
/// The file cannot be read, for example because the process is gone.
pub fn read_maps(pid: u32) -> Result<Vec<Mapping>, ImageError> {
    let read = |tid| {
        let path = PathBuf::from(format!("/proc/{tid}/maps"));
        std::fs::read(&path).map_err(|e| ImageError::io(&path, e))
    };
    parse_maps(&by_living(pid, read)?)
}

fn parse_line(line: &[u8]) -> Option<Mapping> {
    // Five fields, then spaces, then a path that may hold spaces itself.
    let mut rest = line;
    let mut field = || {
        let len = rest.iter().position(|&b| b == b' ').unwrap_or(rest.len());
        let (field, after) = rest.split_at(len);
        rest = after.strip_prefix(b" ").unwrap_or(after);
        std::str::from_utf8(field).ok()
    };
    let (start, end) = field()?.split_once('-')?;
    let permissions = parse_permissions(field()?.as_bytes())?;
    let offset = hex(field()?)?;
    let (major, minor) = field()?.split_once(':')?;
    let inode = field()?.parse().ok()?;
    let device = (u32::try_from(hex(major)?).ok()?, u32::try_from(hex(minor)?).ok()?);
    let name = rest.trim_ascii_start();
    let (name, is_deleted) = match name.strip_suffix(b" (deleted)") {
        Some(bare) if inode != 0 => (bare, true),
        _ => (name, false),
    };
    Some(Mapping {
        range: Addr(hex(start)?)..Addr(hex(end)?),
        permissions,
        offset: FileOffset(offset),
        file: (inode != 0).then_some(FileId { device, inode }),
        path: PathBuf::from(OsString::from_vec(unescape(name))),
        is_deleted,
    })
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

fn parse_permissions(letters: &[u8]) -> Option<Permissions> {
    let &[r, w, x, s] = letters else { return None };
    Some(Permissions {
        is_readable: r == b'r',
        is_writable: w == b'w',
        is_executable: x == b'x',
        is_shared: s == b's' || s == b'S',
    })
}

/// Undoes the one escape that the kernel makes here: a newline written as `\012`.
fn unescape(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&first, after)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(b"\\012") {
            plain.push(b'\n');
            rest = after;
        } else {
            plain.push(first);
            rest = after;
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Mapping {
        parse_maps(line.as_bytes()).unwrap().remove(0)
    }

    #[test]
    fn a_mapped_file_has_its_range_offset_and_identity() {
        let m = one("7f0000026000-7f0000179000 r-xp 00026000 fe:10 1234   /usr/lib/libc.so.6\n");
        assert_eq!(m.range, Addr(0x7f0000026000)..Addr(0x7f0000179000));
        assert_eq!(m.offset, FileOffset(0x26000));
        assert_eq!(m.file, Some(FileId { device: (0xfe, 0x10), inode: 1234 }));
        assert_eq!(m.path, Path::new("/usr/lib/libc.so.6"));
        assert!(m.permissions.is_executable && !m.permissions.is_writable && !m.is_deleted);
    }

    #[test]
    fn paths_keep_spaces_newlines_and_lose_the_mark_of_deletion() {
        let m = one("1000-2000 r--p 00000000 08:01 7          /tmp/a b\\012c (deleted)");
        assert_eq!((m.path.to_str(), m.is_deleted), (Some("/tmp/a b\nc"), true));
        let m = one("1000-2000 rw-s 00000000 00:01 9          /memfd:x (deleted)");
        assert!(m.is_deleted && m.permissions.is_shared);
    }

    #[test]
    fn memory_without_a_file_has_an_empty_or_a_bracketed_name() {
        let m = one("1000-2000 rw-p 00000000 00:00 0 ");
        assert_eq!((m.file, m.path.as_os_str().is_empty()), (None, true));
        assert!(one("1000-2000 r-xp 00000000 00:00 0              [vdso]").is_vdso());
    }

    #[test]
    fn a_line_of_another_shape_is_an_error_with_its_number() {
        let text = b"1000-2000 rw-p 00000000 00:00 0 \nnonsense\n";
        assert!(matches!(parse_maps(text), Err(ImageError::MapsLine { line: 2 })));
    }
}
