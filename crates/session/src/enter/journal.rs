//! What a softly watched process has to get back, written down in the process itself.
//!
//! For:     curing it after its controller was killed: by the front, the guard, `nanoprobe recover`, or any attach.
//! State:   a memfd mapped in the process, found by its name: whose it is, and each page with its own protection.
//! Context: control.
//! Keeps:   J1 a page is in it before it is protected.
//!          J2 pages of a controller that lives are left alone.
//!          J3 what it says is checked for size, and against what is mapped: it is the process's memory.
//! Checked: testkit `watching`.

use crate::find::maps::{image_maps, mapping_at};
use crate::find::memory::Memory;
use crate::find::process::Controller;
use crate::find::proof::Restored;
use crate::hold::puppet::Puppet;
use image::Mapping;
use std::ops::Range;
use sys::{Errno, mapping as mm, nr};

/// Bytes of a page.
pub(crate) const LEN: u64 = 4096;
pub(crate) const PROT_READ: u64 = 1;
pub(crate) const PROT_WRITE: u64 = 2;
pub(crate) const PROT_EXEC: u64 = 4;
/// Its name in /proc/PID/maps.
const NAME: &str = "nanoprobe-watch";
const MAGIC: u64 = u64::from_le_bytes(*b"nprobeW1");
const MFD_CLOEXEC: u64 = 1;
/// Words of the header.
const HEADER: usize = 5;
/// Where calls may leave their answers, and where the list begins, in bytes.
const SCRATCH: u64 = 64;
const LIST: u64 = 128;
/// No process has more watched pages; what its memory says is not trusted beyond it.
const PAGES_MAX: u64 = 1 << 16;
/// More watches are not given out at once.
const JOURNALS_MAX: usize = 64;

/// A journal in a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Journal {
    at: u64,
    len: u64,
}

impl Journal {
    /// Makes it by calls of a thread of the process, with room for `pages` pages.
    pub(crate) fn create(puppet: &mut Puppet, pages: usize) -> Result<Journal, Errno> {
        let fd = puppet.call_with_name(nr::MEMFD_CREATE, NAME, MFD_CLOEXEC)?;
        let len = (LIST + 16 * pages as u64).next_multiple_of(4096);
        let (prot, flags) = ((mm::PROT_READ | mm::PROT_WRITE) as u64, mm::MAP_SHARED as u64);
        let mapped = puppet
            .call(nr::FTRUNCATE, [fd, len, 0, 0, 0, 0])
            .and_then(|_| puppet.call(nr::MMAP, [0, len, prot, flags, fd, 0]));
        let _ = puppet.call(nr::CLOSE, [fd, 0, 0, 0, 0, 0]);
        Ok(Journal { at: mapped?, len })
    }

    /// Writes down what is to be given back.
    pub(crate) fn write(&self, memory: &Memory, own: &[(u64, u64)]) -> Result<(), Errno> {
        let us = Controller::ourselves();
        let header: [u64; HEADER] = [MAGIC, us.pid as u64, us.start_time, us.pid_namespace, own.len() as u64];
        let bytes = |words: &[u64]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
        let list: Vec<u64> = own.iter().flat_map(|(addr, prot)| [*addr, *prot]).collect();
        // The list first: a header that counts more than there is would be believed.
        memory.write(self.at + LIST, &bytes(&list)).map_err(|_| Errno::EFAULT)?;
        memory.write(self.at, &bytes(&header)).map_err(|_| Errno::EFAULT)
    }

    /// Memory of the process that calls of ours may write to.
    pub(crate) fn scratch(&self) -> u64 {
        self.at + SCRATCH
    }

    /// Takes it out, by a thread of the process or of a forked child.
    pub(crate) fn unmap(&self, puppet: &mut Puppet) {
        let _ = puppet.call(nr::MUNMAP, [self.at, self.len, 0, 0, 0, 0]);
    }
}

/// Those pages that a watch can have left so: they are there, without the right to write, and get back no more than data
/// has.
fn justified(mappings: &[Mapping], mut own: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    own.sort_unstable();
    own.dedup_by_key(|(addr, _)| *addr);
    let is_watched = |addr: u64| {
        let here = mapping_at(mappings, addr);
        here.is_some_and(|m| !m.permissions.is_writable && !m.permissions.is_executable)
    };
    own.retain(|(addr, prot)| {
        let is_right = prot & !(PROT_READ | PROT_WRITE) == 0;
        is_right && addr.is_multiple_of(LEN) && is_watched(*addr)
    });
    own
}

/// A journal whose controller is gone.
#[derive(Debug)]
pub(crate) struct Orphan {
    /// Where it is mapped.
    pub range: Range<u64>,
    /// Pages, and the protection that each is to have.
    pub own: Vec<(u64, u64)>,
}

/// The journals in a process whose controllers are gone.
pub(crate) fn orphans(memory: &Memory, mappings: &[Mapping]) -> Vec<Orphan> {
    let marker = format!("/memfd:{NAME}");
    let is_journal = |m: &&Mapping| m.path.as_os_str() == marker.as_str() && m.is_deleted;
    let orphan = |m: &Mapping| {
        let range = m.range.start.0..m.range.end.0;
        let (controller, own) = read(memory, range.start, range.end - range.start)?;
        (!controller.is_alive()).then(|| Orphan { range, own: justified(mappings, own) })
    };
    mappings.iter().filter(is_journal).take(JOURNALS_MAX).filter_map(orphan).collect()
}

/// Whether pages have these protections.
pub(crate) fn are_restored(pid: i32, own: &[(u64, u64)]) -> Option<Restored> {
    let mappings = image_maps(pid).ok()?;
    let differs =
        |(addr, prot): &&(u64, u64)| mapping_at(&mappings, *addr).is_some_and(|m| prot_of(m) != *prot);
    Restored::proven(&own.iter().filter(differs).collect::<Vec<_>>())
}

/// Its protection, as mprotect takes it.
pub(crate) fn prot_of(m: &Mapping) -> u64 {
    let p = m.permissions;
    let bit = |is_set: bool, bit: u64| if is_set { bit } else { 0 };
    bit(p.is_readable, PROT_READ) | bit(p.is_writable, PROT_WRITE) | bit(p.is_executable, PROT_EXEC)
}

fn read(memory: &Memory, at: u64, len: u64) -> Option<(Controller, Vec<(u64, u64)>)> {
    let words = |at: u64, n: usize| -> Option<Vec<u64>> {
        let bytes = memory.read_vec(at, 8 * n).ok()?;
        Some(bytes.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap_or_default())).collect())
    };
    let header = words(at, HEADER)?;
    let [magic, pid, start_time, pid_namespace, pages] = <[u64; HEADER]>::try_from(header).ok()?;
    if magic != MAGIC || pages > PAGES_MAX || LIST + 16 * pages > len {
        return None;
    }
    let list = words(at + LIST, 2 * pages as usize)?;
    let own = list.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
    Some((Controller { pid: pid as i32, start_time, pid_namespace }, own))
}
