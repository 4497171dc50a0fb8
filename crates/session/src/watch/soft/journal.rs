//! What a softly watched process has to get back, written down in the process itself.
//!
//! For:     curing it after its controller was killed: by the front, the guard, `nanoprobe recover`, or any attach.
//! State:   a memfd mapped in the process, found by its name: whose it is, and each page with its own protection.
//! Context: control.
//! Keeps:   J1 a page is in it before it is protected.
//!          J2 pages of a controller that lives are left alone.
//!          J3 what it says is checked for size, and against what is mapped: it is the process's memory.
//! Checked: testkit `watching`.

use super::page::{self, Page};
use crate::arm::attach::image_maps;
use crate::facts::error::Broken;
use crate::facts::receipt::{Receipt, Unmapped};
use crate::find::memory::Memory;
use crate::find::process::Controller;
use crate::hold::foothold::Foothold;
use crate::hold::remote::Remote;
use crate::hold::world::World;
use crate::watch::step::Puppet;
use image::{Addr, Mapping};
use std::time::Instant;
use sys::{Errno, mapping as mm, nr};

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
pub(super) struct Journal {
    at: u64,
    len: u64,
}

impl Journal {
    /// Makes it by calls of a thread of the process, with room for `pages` pages.
    pub(super) fn create(puppet: &mut Puppet, pages: usize) -> Result<Journal, Errno> {
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
    pub(super) fn write(&self, memory: &Memory, pages: &[Page]) -> Result<(), Errno> {
        let own: Vec<(u64, u64)> = pages.iter().filter_map(Page::restored).collect();
        let us = Controller::ourselves();
        let header: [u64; HEADER] = [MAGIC, us.pid as u64, us.start_time, us.pid_namespace, own.len() as u64];
        let bytes = |words: &[u64]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
        let list: Vec<u64> = own.iter().flat_map(|(addr, prot)| [*addr, *prot]).collect();
        // The list first: a header that counts more than there is would be believed.
        memory.write(self.at + LIST, &bytes(&list)).map_err(|_| Errno::EFAULT)?;
        memory.write(self.at, &bytes(&header)).map_err(|_| Errno::EFAULT)
    }

    /// Memory of the process that calls of ours may write to.
    pub(super) fn scratch(&self) -> u64 {
        self.at + SCRATCH
    }

    /// Takes it out, by a thread of the process or of a forked child.
    pub(super) fn unmap(&self, puppet: &mut Puppet) {
        let _ = puppet.call(nr::MUNMAP, [self.at, self.len, 0, 0, 0, 0]);
    }
}

/// Gives a process its pages back that a watch left protected which was killed; a receipt for each such watch.
///
/// # Errors
/// The process cannot be entered.
pub(crate) fn recover(pid: i32) -> Result<Vec<Receipt>, Broken> {
    let memory = Memory::open(pid)?;
    let mappings = image_maps(pid)?;
    let marker = format!("/memfd:{NAME}");
    let mut receipts = Vec::new();
    for m in
        mappings.iter().filter(|m| m.path.as_os_str() == marker.as_str() && m.is_deleted).take(JOURNALS_MAX)
    {
        let len = m.range.end.0 - m.range.start.0;
        let Some((controller, own)) = read(&memory, m.range.start.0, len) else { continue };
        let own = justified(&mappings, own);
        if controller.is_alive() {
            continue;
        }
        let began = Instant::now();
        let mut world = World::stop(pid)?;
        memory.check()?;
        let mut remote = Remote::begin(&mut world, &memory, &Foothold::find(&memory, &mappings)?)?;
        for (addr, prot) in &own {
            // One that the process has unmapped since has nothing to get back.
            let _ = remote.call("mprotect", nr::MPROTECT, [*addr, page::LEN, *prot, 0, 0, 0]);
        }
        let unmapped = remote.call("munmap", nr::MUNMAP, [m.range.start.0, len, 0, 0, 0, 0]).map(drop);
        let unmapped = Unmapped::proven(std::iter::once(unmapped))?;
        drop(remote);
        let restored = page::are_restored(pid, &own);
        let longest_stall = world.resume();
        let took = began.elapsed();
        let mut receipt = Receipt::default();
        (receipt.pages, receipt.longest_stall, receipt.took) = (own.len(), longest_stall, took);
        receipt.is_left(restored, Some(unmapped));
        receipts.push(receipt);
    }
    Ok(receipts)
}

/// Those pages that a watch can have left so: they are there, without the right to write, and get back no more than data
/// has.
fn justified(mappings: &[Mapping], mut own: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    own.sort_unstable();
    own.dedup_by_key(|(addr, _)| *addr);
    let is_watched = |addr: u64| {
        let here = mappings.iter().find(|m| m.range.contains(&Addr(addr)));
        here.is_some_and(|m| !m.permissions.is_writable && !m.permissions.is_executable)
    };
    own.retain(|(addr, prot)| {
        let is_right = prot & !(page::PROT_READ | page::PROT_WRITE) == 0;
        is_right && addr.is_multiple_of(page::LEN) && is_watched(*addr)
    });
    own
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
