//! Links of the kernel's: a program, and the places of a file where it runs.
//!
//! For:     what the kernel probes for us, and what it could not take out.
//! State:   the links of one session, and who holds them.
//! Context: control.
//! Keeps:   K2 of kernel.rs: the last to hold a link is a file system that ends with us.
//! Checked: testkit `kernel`.

use crate::facts::descriptor::owned;
use crate::facts::inject;
use crate::find::maps::mapping_at;
use crate::find::process;
use image::Mapping;
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use sys::Errno;
use sys::bpf::Places;

/// Puts the program on these places of a file, for one process.
pub(super) fn link(
    program: &OwnedFd,
    path: &str,
    offsets: &[u64],
    cookies: &[u64],
    pid: i32,
) -> Result<OwnedFd, Errno> {
    inject::step()?;
    let path = CString::new(path).map_err(|_| Errno::EINVAL)?;
    let places = Places::new(offsets, cookies);
    owned(sys::bpf::link_uprobes(program.as_raw_fd(), &path, &places, pid, false))
}

/// The mapping of a file that holds `addr`, and where that is in the file.
pub(super) fn file_place(mappings: &[Mapping], addr: u64) -> Option<(&Mapping, u64)> {
    let mapping = mapping_at(mappings, addr)?;
    mapping.file.as_ref()?;
    Some((mapping, mapping.offset.0 + (addr - mapping.range.start.0)))
}

/// A name by which the kernel finds the mapping's file, whatever its path leads to now.
pub(super) fn path_of(pid: i32, mapping: &Mapping) -> String {
    let pid = process::living(pid);
    format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.range.start.0, mapping.range.end.0)
}

/// The links of one session, and who holds them.
#[derive(Debug, Default)]
pub(super) struct Links {
    /// A file system of our own in which links are pinned.
    home: Option<OwnedFd>,
    /// How many are pinned.
    pinned: usize,
    /// Those that could not be.
    held: Vec<OwnedFd>,
}

impl Links {
    /// Without the right to mount there is no file system: then we hold the links ourselves.
    pub(super) fn new() -> Links {
        Links { home: owned(sys::bpf::file_system()).ok(), ..Links::default() }
    }

    pub(super) fn add(&mut self, link: OwnedFd) {
        let name = CString::new(self.pinned.to_string()).unwrap_or_default();
        let pin = |home: &OwnedFd| {
            inject::step().and_then(|()| sys::bpf::pin(link.as_raw_fd(), home.as_raw_fd(), &name)).is_ok()
        };
        match self.home.as_ref().is_some_and(pin) {
            true => self.pinned += 1,
            false => self.held.push(link),
        }
    }
}
