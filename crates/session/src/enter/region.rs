//! Our memory in the target.
//!
//! For:     making and unmaking the mappings that trampolines and counts live in.
//! State:   one arena, and one region (table page and code) for each neighbourhood of modules.
//! Context: control; system calls are made by a stopped thread of the target.
//! Keeps:   M1 no mapping is ever writable and executable.
//!          M2 every descriptor opened in the target is closed before the thread runs on.
//!          M3 `footing` names all that was made, and so does the arena's header, before there is anything in it: whoever finds
//!             us dead takes it back.
//!          M4 the arena's length is sealed before anybody maps it, and no file but a new memfd is taken for it: reading
//!             it cannot fault, whatever the target does.
//! Checked: testkit `traces` (mappings and descriptors before and after), `kills`, `hostile` (M4); `inject`.

use crate::enter::agent_image::{AgentImage, Clobbers};
use crate::enter::arena::{Arena, Layout, errno_of};
use crate::enter::belief::RESERVED_OFFSET;
use crate::enter::footing::Footing;
use crate::enter::join;
use crate::facts::error::Broken;
use crate::facts::family::FamilyMaps;
use crate::facts::inject;
use crate::facts::site::SitePlan;
use crate::find::maps::image_maps;
use crate::find::memory::Memory;
use crate::hold::remote::Remote;
use image::{FileId, Mapping};
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use sys::mapping as mm;
use sys::{Errno, nr};
use text::ground::space::{rooms, within_reach};
use wire::{ARENA_NAME, AgentExports, RegionDesc};

const PAGE: u64 = 4096;
/// What jumps and distances span, less a margin for the code itself.
const REACH: u64 =
    if cfg!(target_arch = "aarch64") { (128 << 20) - (2 << 20) } else { (1 << 31) - (2 << 20) };
const MFD_CLOEXEC: u64 = 1;
const MFD_ALLOW_SEALING: u64 = 2;

/// Bytes of a table; behind it, if there are programs, stand the threads' places.
const TABLE_LEN: u64 = (wire::table::LEN_BYTES as u64).next_multiple_of(PAGE);

/// One neighbourhood: a table page, the agent, the slow routine, trampolines.
#[derive(Debug)]
pub(crate) struct Region {
    /// Address of the table page; code follows behind it.
    pub table: u64,
    pub code: Range<u64>,
    pub agent: AgentExports,
    pub clobbers: Clobbers,
    /// Address of the slow routine.
    pub slow: u64,
    /// Where the code of programs stands.
    pub programs: u64,
    /// Where the first trampoline stands.
    pub blocks: u64,
    /// Where the next trampoline goes.
    pub next: u64,
}

impl Region {
    /// Where the threads' places are, in a region that has them.
    pub fn inside(&self) -> u64 {
        self.table + TABLE_LEN
    }

    /// Whether jumps and distances lead from everywhere in it to all that a site may refer to.
    pub fn reaches(&self, plan: &SitePlan) -> bool {
        let middle = self.code.start;
        let span = REACH;
        plan.module_range.start.abs_diff(middle) < span && plan.module_range.end.abs_diff(middle) < span
    }
}

/// A wish for a region.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    /// Addresses that it must reach.
    pub reach: Range<u64>,
    /// Bytes for trampolines.
    pub bytes: u64,
    /// For the message if there is no room.
    pub module: String,
}

/// Everything of ours in the target.
#[derive(Debug)]
pub(crate) struct Regions {
    pub arena: Arena,
    pub regions: Vec<Region>,
    /// Code pages of trampolines that must stand where a punned jump leads.
    pub puns: Vec<Range<u64>>,
}

impl Regions {
    /// Maps an arena, a region for each wish, and those of `puns` that are still free, and fills in all but trampolines.
    ///
    /// # Errors
    /// Then nothing is left of it, or [`Broken::NotUndone`] says so.
    pub fn map(
        remote: &mut Remote<'_>,
        memory: &Memory,
        mappings: &[Mapping],
        layout: Layout,
        wishes: &[Wish],
        puns: &[Range<u64>],
        (programs_len, family): (u64, Option<&FamilyMaps>),
    ) -> Result<Regions, Broken> {
        let image = AgentImage::load()?;
        let inside_len = if programs_len == 0 { 0 } else { wire::Inside::LEN_BYTES as u64 };
        let table_len = TABLE_LEN + inside_len.next_multiple_of(PAGE);
        let mut ground = Ground::lay(remote, memory, mappings, layout)?;
        let joined = family.map_or(Ok(()), |maps| ground.join(maps));
        let made = joined.and_then(|()| ground.make(&image, wishes, puns, table_len, programs_len));
        match made.and_then(|made| ground.close().map(|()| made)) {
            Ok((puns, regions)) => Ok(Regions { arena: ground.arena, regions, puns }),
            Err(broken) => Err(ground.unmake(broken)),
        }
    }

    /// Where it all lies.
    pub fn footing(&self, rseq_offset: Option<i32>) -> Footing {
        let region =
            |r: &Region| RegionDesc { table: r.table, code: r.code.start, blocks: r.blocks, end: r.code.end };
        let pun = |pages: &Range<u64>| RegionDesc {
            table: pages.start,
            code: pages.start,
            blocks: pages.start,
            end: pages.end,
        };
        let mut regions: Vec<RegionDesc> =
            self.regions.iter().map(region).chain(self.puns.iter().map(pun)).collect();
        regions.sort_by_key(|r| r.code);
        Footing {
            arena: self.arena.remote..self.arena.remote + self.arena.layout.len() as u64,
            file: Some(FileId { device: self.arena.device, inode: self.arena.inode }),
            regions,
            reserved: std::iter::once(self.arena.announced_maps.clone())
                .filter(|at| !at.is_empty())
                .collect(),
            rseq_offset,
        }
    }
}

/// What is being mapped, by calls of a thread of the target.
///
/// If we die between any two calls, what there is by then is found: the arena by its name; a range that its header names
/// is ours; and what is not yet named is a mapping of the arena's file.
struct Ground<'r, 'a> {
    remote: &'r mut Remote<'a>,
    memory: &'r Memory,
    mappings: &'r [Mapping],
    arena: Arena,
    /// The arena's, in the target, until it is closed.
    fd: Option<u64>,
}

impl<'r, 'a> Ground<'r, 'a> {
    /// A memfd made and mapped by the target, sized and filled in by us.
    fn lay(
        remote: &'r mut Remote<'a>,
        memory: &'r Memory,
        mappings: &'r [Mapping],
        layout: Layout,
    ) -> Result<Ground<'r, 'a>, Broken> {
        let fd = remote.call_with_name(
            "memfd_create",
            nr::MEMFD_CREATE,
            ARENA_NAME,
            MFD_CLOEXEC | MFD_ALLOW_SEALING,
        )?;
        match map_arena(remote, memory, layout, fd) {
            Ok(arena) => Ok(Ground { remote, memory, mappings, arena, fd: Some(fd) }),
            Err(broken) => match remote.close(fd) {
                Ok(()) => Err(broken),
                Err(_) => Err(Broken::NotUndone { pid: memory.pid, why: Box::new(broken) }),
            },
        }
    }

    /// Maps what it shares with other processes.
    fn join(&mut self, maps: &FamilyMaps) -> Result<(), Broken> {
        let fd = self.fd.unwrap_or(u64::MAX);
        join::join(self.remote, &mut self.arena, fd, maps)
    }

    fn make(
        &mut self,
        image: &AgentImage,
        wishes: &[Wish],
        puns: &[Range<u64>],
        table_len: u64,
        programs_len: u64,
    ) -> Result<(Vec<Range<u64>>, Vec<Region>), Broken> {
        // Before the regions, which have a choice.
        let mut mapped = Vec::new();
        for pages in puns {
            // Those that were taken meanwhile are left out.
            if self.map_at(pages.start, 0, pages.end - pages.start)? {
                mapped.push(pages.clone());
            }
        }
        let table = self.arena.table();
        debug_assert!(table.len() as u64 <= table_len);
        let mut regions = Vec::new();
        for wish in wishes {
            let code_len =
                (wish.bytes + image.len() as u64 + 64 + text::SLOW_LEN as u64).next_multiple_of(PAGE);
            let at = self.map_near(wish, table_len, code_len)?;
            // A forked child finds the table empty.
            let wipe = [at, table_len, mm::MADV_WIPEONFORK as u64, 0, 0, 0];
            self.remote.call("madvise", nr::MADVISE, wipe)?;
            let code = at + table_len..at + table_len + code_len;
            regions.push(furnish(self.memory, &self.arena, image, at, code, programs_len)?);
            // From now on counts go to the CPUs' copies.
            self.memory.write(at, &table)?;
            self.name(at, table_len + code_len)?;
        }
        Ok((mapped, regions))
    }

    /// Has the region called `[anon:nanoprobe]` in /proc/PID/maps, for whoever finds an address in it.
    fn name(&mut self, at: u64, len: u64) -> Result<(), Broken> {
        const PR_SET_VMA: u64 = 0x5356_4d41;
        const PR_SET_VMA_ANON_NAME: u64 = 0;
        self.memory.write(at + wire::table::NAME as u64, b"nanoprobe\0")?;
        let name = at + wire::table::NAME as u64;
        match self.remote.call("prctl", nr::PRCTL, [PR_SET_VMA, PR_SET_VMA_ANON_NAME, at, len, name, 0]) {
            // A kernel without it.
            Ok(_) | Err(Broken::Remote { .. } | Broken::Exhausted { .. }) => Ok(()),
            Err(other) => Err(other),
        }
    }

    /// Maps a table and code behind it at exactly `at`; false if something is there or may not be.
    ///
    /// First by the arena's file, which tells that it is ours; then, once the header names it, by what is wanted there.
    /// Code is executable from the start, since we write it from outside: a process that has forbidden itself to make
    /// memory executable (`PR_SET_MDWE`) allows that, and no mprotect(2).
    fn map_at(&mut self, at: u64, table_len: u64, code_len: u64) -> Result<bool, Broken> {
        let fd = self.fd.unwrap_or(u64::MAX);
        let flags = (mm::MAP_SHARED | mm::MAP_FIXED_NOREPLACE) as u64;
        let len = table_len + code_len;
        match self.remote.call("mmap", nr::MMAP, [at, len, 0, flags, fd, RESERVED_OFFSET]) {
            Ok(got) if got == at => {}
            Ok(got) => return self.remote.unmap(&(got..got + len)).map(|()| false),
            Err(Broken::Remote { errno: Errno::EEXIST | Errno::EPERM, .. }) => return Ok(false),
            Err(other) => return Err(other),
        }
        if !self.arena.announce(at..at + len) {
            return self.remote.unmap(&(at..at + len)).map(|()| false);
        }
        let table = (at, table_len, mm::PROT_READ | mm::PROT_WRITE);
        let code = (at + table_len, code_len, mm::PROT_READ | mm::PROT_EXEC);
        for (at, len, prot) in [table, code].into_iter().filter(|(_, len, _)| *len > 0) {
            let flags = (mm::MAP_PRIVATE | mm::MAP_ANONYMOUS | mm::MAP_FIXED) as u64;
            self.remote.call("mmap", nr::MMAP, [at, len, prot as u64, flags, u64::MAX, 0])?;
        }
        Ok(true)
    }

    /// Maps a table and code near the wish.
    fn map_near(&mut self, wish: &Wish, table_len: u64, code_len: u64) -> Result<u64, Broken> {
        let len = table_len + code_len;
        // The first alone: the next may be far from others' regions, which cannot be chained to then.
        for at in self.places(self.mappings, wish, len).into_iter().take(1) {
            if self.map_at(at, table_len, code_len)? {
                return Ok(at);
            }
        }
        // The places were taken since we looked: other controllers look for the same ones. Now nobody runs.
        for at in self.places(&image_maps(self.memory.pid)?, wish, len) {
            if self.map_at(at, table_len, code_len)? {
                return Ok(at);
            }
        }
        Err(Broken::NoRoom { module: wish.module.clone(), bytes: len })
    }

    fn places(&self, mappings: &[Mapping], wish: &Wish, len: u64) -> Vec<u64> {
        let arena = self.arena.remote..self.arena.remote + self.arena.layout.len() as u64;
        let made: Vec<Range<u64>> = self.arena.announced.iter().cloned().chain([arena]).collect();
        let free = within_reach(mappings, wish.reach.clone(), len);
        let is_free = |at: &u64| free.iter().any(|space| space.start <= *at && *at + len <= space.end);
        let found = rooms(mappings, wish.reach.clone(), len).into_iter().map(|at| past(&made, at, len));
        found.filter(is_free).take(8).collect()
    }

    /// Closes the file in the target.
    fn close(&mut self) -> Result<(), Broken> {
        let Some(fd) = self.fd else { return Ok(()) };
        self.remote.close(fd)?;
        self.fd = None;
        Ok(())
    }

    /// Takes everything back; the cause, with a word if that failed too.
    fn unmake(mut self, why: Broken) -> Broken {
        let mut ranges: Vec<Range<u64>> = self.arena.announced.clone();
        ranges.extend(Some(self.arena.announced_maps.clone()).filter(|at| !at.is_empty()));
        let failed = ranges.iter().filter(|range| self.remote.unmap(range).is_err()).count();
        let arena = self.arena.remote..self.arena.remote + self.arena.layout.len() as u64;
        // What is left is found by the arena.
        let is_undone = failed == 0 && self.remote.unmap(&arena).is_ok();
        if self.close().is_ok() && is_undone {
            return why;
        }
        Broken::NotUndone { pid: self.memory.pid, why: Box::new(why) }
    }
}

/// The first address from `at` on where `len` bytes meet none of our own mappings, which the snapshot does not have.
fn past(made: &[Range<u64>], mut at: u64, len: u64) -> u64 {
    while let Some(own) = made.iter().find(|m| at < m.end && at + len > m.start) {
        at = own.end.next_multiple_of(PAGE);
    }
    at
}

/// Gives the memfd behind `fd` its size and contents, and has the target map it.
fn map_arena(remote: &mut Remote<'_>, memory: &Memory, layout: Layout, fd: u64) -> Result<Arena, Broken> {
    inject::step().map_err(|errno| Broken::Call { what: "open of the arena", errno })?;
    let memfd = open_memfd(remote.tid(), fd)?;
    let mut arena = Arena::create(&memfd, layout, memory.pid)?;
    let prot = (mm::PROT_READ | mm::PROT_WRITE) as u64;
    let args = [0, layout.len() as u64, prot, mm::MAP_SHARED as u64, fd, 0];
    arena.remote = remote.call("mmap", nr::MMAP, args)?;
    Ok(arena)
}

/// Opens what the target has just made. Who shares its descriptors and does not stand may have put another file in that
/// place, and we may have rights to it that the target has not.
fn open_memfd(pid: i32, fd: u64) -> Result<File, Broken> {
    let path = format!("/proc/{pid}/fd/{fd}");
    let broken = |e: std::io::Error| Broken::Call { what: "open of the arena", errno: errno_of(&e) };
    let not_ours = || Broken::Call { what: "open of the arena", errno: Errno::EBADF };
    let name = std::fs::read_link(&path).map_err(broken)?;
    if name.as_os_str() != format!("/memfd:{ARENA_NAME} (deleted)").as_str() {
        return Err(not_ours());
    }
    let memfd = OpenOptions::new().read(true).write(true).open(path).map_err(broken)?;
    let is_new = memfd.metadata().map_err(broken)?;
    if is_new.nlink() != 0 || is_new.len() != 0 {
        return Err(not_ours());
    }
    Ok(memfd)
}

fn furnish(
    memory: &Memory,
    arena: &Arena,
    image: &AgentImage,
    at: u64,
    code: Range<u64>,
    programs_len: u64,
) -> Result<Region, Broken> {
    let start = code.start;
    let (agent_bytes, agent) = image.at(start);
    memory.write(start, &agent_bytes)?;
    let slow = start + (agent_bytes.len() as u64).next_multiple_of(64);
    let far = |e: insn::Unreachable| Broken::Agent(e.to_string());
    let routine = text::slow_routines(slow, at, arena.children_copy()).map_err(far)?;
    memory.write(slow, &routine)?;
    let programs = slow + text::SLOW_LEN as u64;
    let blocks = (programs + programs_len).next_multiple_of(64);
    Ok(Region { table: at, code, agent, clobbers: image.clobbers(), slow, programs, blocks, next: blocks })
}

#[cfg(test)]
mod tests {
    use super::past;

    #[test]
    fn a_region_goes_past_what_was_mapped_for_jumps_since_the_snapshot() {
        let made = [0x4_0000..0x5_0000, 0x1_0000..0x2_0000, 0x2_1000..0x2_2000];
        assert_eq!(past(&made, 0x1_8000, 0x1000), 0x2_0000);
        assert_eq!(past(&made, 0x1_8000, 0x2000), 0x2_2000);
        assert_eq!(past(&made, 0x1_8000, 0x2_0000), 0x5_0000);
        assert_eq!(past(&made, 0x5_0000, 0x2_0000), 0x5_0000);
    }
}
