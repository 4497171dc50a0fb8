//! Opening the file that a process has mapped, not one that only has the same path.
//!
//! For:     reading a module's image.
//! State:   none.
//! Context: control.
//! Keeps:   O1 the file that is returned has the device and inode of the mapping, or comes from
//!          /proc/PID/map_files, which leads to nothing else; only where that is closed to us and the path
//!          was not deleted, the inode alone decides.
//! Checked: tests/suite/process.rs: `a_replaced_file_is_noticed`.

use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{FileId, Mapping};
use crate::ImageError;
use crate::elf::open_file;

const ENOMEM: i32 = 12;
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

/// The file behind `mapping` of the process `pid`, and the path that it was opened by.
pub(super) fn open(pid: u32, mapping: &Mapping) -> Result<(File, PathBuf), ImageError> {
    let Some(wanted) = mapping.file else {
        return Err(ImageError::NoFile { name: mapping.path.clone() });
    };
    let in_root = in_root_of(pid, &mapping.path);
    // A process that changed its root directory is shown with paths from ours; the link to the main
    // executable leads to the file itself, whatever became of its path.
    let executable = super::proc_dir(pid).join("exe");
    for path in [&in_root, &mapping.path, &executable] {
        let by_path = open_file(path).and_then(|f| f.metadata().map(|m| (f, file_id(&m))));
        // Our own want of descriptors or memory says nothing of the file.
        if let Err(error) = &by_path
            && matches!(error.raw_os_error(), Some(EMFILE | ENFILE | ENOMEM))
        {
            return by_path.map(|(file, _)| (file, path.clone())).map_err(|e| ImageError::io(path, e));
        }
        if let Ok((file, id)) = by_path
            && id == wanted
        {
            return Ok((file, path.clone()));
        }
    }
    let range = &mapping.range;
    let map_file = format!("map_files/{:x}-{:x}", range.start.0, range.end.0);
    let map_file = super::proc_dir(pid).join(map_file);
    if let Ok(file) = open_file(&map_file) {
        return Ok((file, map_file));
    }
    // Some file systems (btrfs, overlays) show one device here and another there, but the same inode.
    if let Ok(file) = open_file(&in_root)
        && !mapping.is_deleted
        && file.metadata().is_ok_and(|m| m.ino() == wanted.inode)
    {
        return Ok((file, in_root));
    }
    let on_disk = std::fs::metadata(&in_root).ok().map(|m| file_id(&m));
    Err(ImageError::Replaced { path: mapping.path.clone(), mapped: wanted, on_disk })
}

/// A path as the process `pid` sees it, from here.
pub(super) fn in_root_of(pid: u32, path: &Path) -> PathBuf {
    let mut full = super::proc_dir(pid).join("root").into_os_string();
    full.push(std::ffi::OsStr::from_bytes(path.as_os_str().as_bytes()));
    PathBuf::from(full)
}

/// The identity of a file, in the numbers that a map of a process uses.
pub(crate) fn file_id(of: &Metadata) -> FileId {
    let dev = of.dev();
    // The packing of glibc's dev_t: 12 bits of major and 20 of minor are what the kernel has.
    let major = ((dev >> 8) & 0xfff) | ((dev >> 32) & !0xfff);
    let minor = (dev & 0xff) | ((dev >> 12) & !0xff);
    FileId { device: (major as u32, minor as u32), inode: of.ino() }
}
