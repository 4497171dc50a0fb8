//! The shared mapping of counts, seen from outside.
//!
//! For:     reading what hits have counted, without stopping anyone.
//! State:   a mapping of the memfd that the target maps too; it outlives the target.
//! Context: control.
//! Keeps:   A1 a count is the sum over the shared copy and the CPU copies.
//!          A2 after the last site is disarmed and no thread is inside, sums are exact.
//!          A3 what the target writes there leads nowhere: places come from the layout, and what cannot be a count is
//!             left out and told.
//! Checked: testkit `counting`, `hostile` (A3); `bench` compares hits with calls after every run.

use crate::enter::footing::Footing;
use crate::facts::error::Broken;
use crate::facts::family::{FamilyMaps, MapsGround};
use map::{Checked, Copies, Frames, Ring, StackTable};
use std::collections::BTreeSet;
use std::fs::File;
use std::mem::offset_of;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use sys::mapping::SharedMapping;
use wire::{
    ARENA_MAGIC, ArenaHeader, COPY_CHILDREN, COPY_CPU0, ConsumerDesc, Directory, Doorbell, Entry, Event,
    Kind, NO_RSEQ, OBJECTS_MAX, ProgramDesc, REGIONS_MAX, RegionDesc, STACKS_MAX, SiteDesc, Untrusted,
    VERSION, WORKSPACES_EACH, Workspace, cell, table,
};

const PAGE: usize = 4096;
/// Frames of the deepest stack.
const STACK_DEPTH: u32 = wire::STACK_FRAMES as u32;
/// Bytes of the stacks that are seen.
const STACKS_BYTES: usize = map::Stacks::bytes_for(STACKS_MAX, STACK_DEPTH);
/// Ten hits a nanosecond for a year and a half on one CPU; total nanoseconds of calls stay below it too.
const COUNT_MAX: u64 = 1 << 62;
/// So many damaged cells are told from one another.
const DAMAGED_MAX: usize = 100_000;

/// What an arena must hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    /// Hooks of the general path.
    pub hooks: usize,
    pub consumers: usize,
    /// Bytes of cells in a copy.
    pub cell_bytes: usize,
    /// A table of open calls.
    pub has_frames: bool,
    /// A ring of events for each CPU.
    pub has_rings: bool,
    /// Programs, each counted once for each region.
    pub programs: usize,
    /// Scratch memory of programs, if any needs a workspace.
    pub scratch: Option<usize>,
    /// Bytes of the programs' maps.
    pub maps: usize,
    /// Bytes of what walks of stacks need, and of the stacks that they see; 0 if there are none.
    pub walk_bytes: usize,
}

/// What stands where in an arena: ours to know. The copy of the directory in its head is for others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    directory: Directory,
    sites: Entry,
    consumers: Entry,
    calls: Entry,
    rings: Entry,
    counts: Entry,
    maps: Entry,
    programs: Entry,
    workspaces: Entry,
    walks: Entry,
    stacks: Entry,
    pub cpus: usize,
}

impl Layout {
    pub fn new(cpus: usize, counts: &Counts) -> Layout {
        let mut directory = Directory::new();
        let pages = counts.maps.div_ceil(PAGE);
        let maps = directory.place(Kind::Maps, PAGE, pages, PAGE);
        debug_assert_eq!(maps.offset as usize, wire::MAPS);
        let programs = directory.place(Kind::Programs, size_of::<ProgramDesc>(), counts.programs, 64);
        let each = Workspace::len_with(counts.scratch.unwrap_or(0));
        let spaces = counts.scratch.map_or(0, |_| cpus * WORKSPACES_EACH);
        let workspaces = directory.place(Kind::Workspaces, each, spaces, PAGE);
        let sites = directory.place(Kind::Sites, size_of::<SiteDesc>(), counts.hooks, 64);
        let consumers = directory.place(Kind::Consumers, size_of::<ConsumerDesc>(), counts.consumers, 64);
        let tables = usize::from(counts.has_frames);
        let calls = directory.place(Kind::Calls, Frames::BYTES, tables, PAGE);
        let number = if counts.has_rings { cpus } else { 0 };
        let rings = directory.place(Kind::Rings, Event::RING_STRIDE, number, PAGE);
        let walks = directory.place(Kind::Walks, PAGE, counts.walk_bytes.div_ceil(PAGE), PAGE);
        let stacks = if counts.walk_bytes > 0 { STACKS_BYTES.div_ceil(PAGE) } else { 0 };
        let stacks = directory.place(Kind::Stacks, PAGE, stacks, PAGE);
        let stride = (cell::FIRST_FREE as usize + counts.cell_bytes).next_multiple_of(PAGE);
        let counts = directory.place(Kind::Counts, stride, COPY_CPU0 + cpus, PAGE);
        Layout {
            directory,
            sites,
            consumers,
            calls,
            rings,
            counts,
            maps,
            programs,
            workspaces,
            walks,
            stacks,
            cpus,
        }
    }

    /// The maps of programs, if there are any.
    pub fn maps(&self) -> Option<usize> {
        self.maps.part(0)
    }

    /// Bytes of these maps, whole pages.
    pub fn maps_len(&self) -> usize {
        self.maps.len as usize
    }

    /// The description of a program in a region.
    pub fn program(&self, number: usize) -> usize {
        part(&self.programs, number)
    }

    /// How many of these there are.
    pub fn programs(&self) -> usize {
        self.programs.count() as usize
    }

    /// The first workspace, if there are any, and the bytes of one.
    pub fn workspaces(&self) -> (Option<usize>, usize) {
        (self.workspaces.part(0), self.workspaces.each as usize)
    }

    /// A CPU's ring of events, if there are any.
    pub fn ring(&self, cpu: usize) -> Option<usize> {
        self.rings.part(cpu)
    }

    /// What walks of stacks need, if there are any.
    pub fn walk(&self) -> Option<usize> {
        self.walks.part(0)
    }

    /// Its bytes.
    pub fn walk_bytes(&self) -> usize {
        self.walks.len as usize
    }

    /// The stacks that were seen.
    pub fn stacks(&self) -> Option<usize> {
        self.stacks.part(0)
    }

    pub fn len(&self) -> usize {
        self.directory.end() as usize
    }

    pub fn copy(&self, index: usize) -> usize {
        part(&self.counts, index)
    }

    pub fn site(&self, index: usize) -> usize {
        part(&self.sites, index)
    }

    /// The table of open calls, if there is one.
    pub fn frames(&self) -> Option<usize> {
        self.calls.part(0)
    }

    pub fn consumer(&self, index: usize) -> usize {
        part(&self.consumers, index)
    }

    /// How many hooks and consumers there is room for, and where the cells of a copy end, in bytes.
    pub fn room(&self) -> (u32, u32, u32) {
        (self.sites.count() as u32, self.consumers.count() as u32, self.counts.each as u32)
    }
}

fn part(object: &Entry, number: usize) -> usize {
    object.part(number).unwrap_or_else(|| panic!("no part {number} of {object:?}"))
}

/// An arena and where the target sees it.
#[derive(Debug)]
pub(crate) struct Arena {
    map: Arc<SharedMapping>,
    pub layout: Layout,
    /// Its address in the target; set once it is mapped there.
    pub remote: u64,
    /// Which file it is, to know its mappings in other processes.
    pub inode: u64,
    /// The device that the file's number is of, major and minor, as /proc/PID/maps writes it.
    pub device: (u32, u32),
    /// Forked children's counts are added to their parent's.
    pub follows_forks: bool,
    /// Copies and cells that held what cannot be a count: the target wrote there.
    damaged: Mutex<BTreeSet<(usize, u32)>>,
    /// Rings of the doorbell that no thread can have rung.
    pub rings_not_believed: AtomicU64,
    /// Ranges that the header names, in its order.
    pub announced: Vec<Range<u64>>,
    /// The same of the maps that it shares with other processes; empty if it shares none.
    pub announced_maps: Range<u64>,
    /// These maps, once they are mapped there.
    pub member: Option<Member>,
}

/// What a process has in common with others.
#[derive(Debug)]
pub(crate) struct Member {
    pub maps: FamilyMaps,
    /// Their address in the target.
    pub remote: u64,
    /// The process among the others.
    pub number: u64,
}

/// The stacks that a session's programs have seen, for whoever goes on asking when the session is gone.
#[derive(Debug)]
pub struct SeenStacks {
    map: Arc<SharedMapping>,
    at: usize,
}

impl SeenStacks {
    /// The addresses of the stack of this number: the probed one, then those behind the calls, outwards.
    pub fn get(&self, number: u32) -> Option<Vec<u64>> {
        // SAFETY: all of the arena, mapped as long as `self.map` lives (M1), of a file whose length is sealed (`create`), and
        // used as atomics alone by all of this crate.
        let memory = unsafe { Untrusted::new(NonNull::new(self.map.base())?, self.map.len_bytes()) };
        let stacks = StackTable::made(memory, self.at, STACKS_MAX, STACK_DEPTH).ok()?;
        let mut frames = [0; STACK_DEPTH as usize];
        let len = stacks.get(number, &mut frames).ok()?;
        Some(frames[..len].to_vec())
    }
}

impl Arena {
    /// Gives the target's memfd its size and contents.
    pub fn create(memfd: &File, layout: Layout, target_pid: i32) -> Result<Arena, Broken> {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::MetadataExt;
        let call = |what| move |e: std::io::Error| Broken::Call { what, errno: errno_of(&e) };
        let sealed = sys::seal_length(memfd.as_raw_fd(), layout.len());
        sealed.map_err(|errno| Broken::Call { what: "sealing the arena", errno })?;
        let about = memfd.metadata().map_err(call("fstat of the arena"))?;
        let (inode, device) = (about.ino(), major_and_minor(about.dev()));
        let map = SharedMapping::of_file(memfd.as_raw_fd(), layout.len());
        let map = map.map_err(|errno| Broken::Call { what: "mmap of the arena", errno })?;
        // A process that we fork is not one of the target's, by whose arena it would be known.
        let kept = map.keep_from_children();
        kept.map_err(|errno| Broken::Call { what: "madvise of the arena", errno })?;
        let mut header = ArenaHeader {
            magic: ARENA_MAGIC,
            version: VERSION,
            copies: (COPY_CPU0 + layout.cpus) as u32,
            objects_len: layout.directory.entries().len() as u64,
            generation: 0,
            controller_pid: sys::getpid().cast_signed(),
            target_pid,
            controller_start: crate::find::process::start_time(sys::getpid().cast_signed()).unwrap_or(0),
            pid_namespace: crate::find::process::pid_namespace(),
            len: layout.len() as u64,
            rseq_offset: NO_RSEQ,
            regions_len: 0,
            maps: [0; 2],
            regions: [RegionDesc::default(); REGIONS_MAX],
            objects: [Entry::default(); OBJECTS_MAX],
        };
        let entries = layout.directory.entries();
        header.objects[..entries.len()].copy_from_slice(entries);
        // SAFETY: the mapping is at least a page long and page aligned, and nobody else has it yet.
        unsafe { map.base().cast::<ArenaHeader>().write(header) };
        let arena = Arena {
            map: Arc::new(map),
            layout,
            remote: 0,
            inode,
            device,
            follows_forks: false,
            announced: Vec::new(),
            announced_maps: 0..0,
            member: None,
            damaged: Mutex::default(),
            rings_not_believed: AtomicU64::new(0),
        };
        for at in (0..layout.cpus).filter_map(|cpu| layout.ring(cpu)) {
            let ring = Ring::lay_out(arena.view(), at, Event::RING_BYTES);
            ring.unwrap_or_else(|error| panic!("no ring at {at:#x} of the arena: {error}"));
        }
        if let Some(at) = layout.stacks() {
            let stacks = StackTable::lay_out(arena.view(), at, STACKS_MAX, STACK_DEPTH);
            stacks.map(drop).unwrap_or_else(|error| panic!("no stacks at {at:#x} of the arena: {error}"));
        }
        Ok(arena)
    }

    /// All of it: what the target writes there is checked by who reads it.
    pub fn view(&self) -> Untrusted<'_> {
        let base = NonNull::new(self.map.base()).unwrap_or(NonNull::dangling());
        // SAFETY: mapped as long as `self.map` lives (M1), page aligned, of a file whose length is sealed (`create`), and
        // used as atomics alone by all of this crate.
        unsafe { Untrusted::new(base, self.map.len_bytes()) }
    }

    /// A CPU's ring of events, `None` if this arena has no rings.
    pub fn ring(&self, cpu: usize) -> Option<Ring<Checked<'_>>> {
        Ring::made(self.view(), self.layout.ring(cpu)?, Event::RING_BYTES).ok()
    }

    /// The stacks that were seen, if any are asked for.
    pub fn stacks(&self) -> Option<StackTable<Checked<'_>>> {
        StackTable::made(self.view(), self.layout.stacks()?, STACKS_MAX, STACK_DEPTH).ok()
    }

    /// The rings that there are.
    pub fn rings(&self) -> impl Iterator<Item = Ring<Checked<'_>>> {
        (0..self.layout.cpus).filter_map(|cpu| self.ring(cpu))
    }

    /// All copies of the cells.
    fn counts(&self) -> Copies<Checked<'_>> {
        let Entry { offset, each, .. } = self.layout.counts;
        let copies =
            Copies::in_untrusted(self.view(), offset as usize, each as usize, COPY_CPU0 + self.layout.cpus);
        copies.unwrap_or_else(|error| panic!("no cells at {offset:#x} of the arena: {error}"))
    }

    /// Copies the programs' maps to where programs look for them; before anything leads to a program.
    pub fn put_maps(&self, maps: &[u8]) {
        let Some(at) = self.layout.maps() else { return };
        for (i, chunk) in maps.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            // What hits read of it they are led to by a list that is published later. Zeros are there already.
            if word != [0; 8] {
                self.word(at + i * 8).store(u64::from_ne_bytes(word), Ordering::Relaxed);
            }
        }
    }

    /// The memory of the programs' maps, for whoever goes on using it when the session is gone; `None` without maps.
    pub fn ground(&self) -> Option<MapsGround> {
        if let Some(member) = &self.member {
            return Some(member.maps.ground());
        }
        let (at, len) = (self.layout.maps()?, self.layout.maps_len());
        Some(MapsGround { map: Arc::clone(&self.map), at, len })
    }

    /// Where the target has the programs' maps, if there are any.
    pub fn maps_in_target(&self) -> Option<u64> {
        let own = || self.layout.maps().map(|at| self.remote + at as u64);
        self.member.as_ref().map(|member| member.remote).or_else(own)
    }

    /// The base by which programs reach their maps, [`wire::MAPS`] before them.
    pub fn base_of_programs(&self) -> u64 {
        // Elsewhere nothing of the arena is reached by it.
        self.member.as_ref().map_or(self.remote, |member| member.remote.wrapping_sub(wire::MAPS as u64))
    }

    /// The number of this process among those that it shares maps with, 0 if it has them alone.
    pub fn family(&self) -> u64 {
        self.member.as_ref().map_or(0, |member| member.number)
    }

    /// Writes into the header where shared maps will be.
    pub fn announce_maps(&mut self, range: Range<u64>) {
        let at = offset_of!(ArenaHeader, maps);
        // The end first: a range that begins at 0 is believed to be nobody's, one that ends before it begins is no header.
        self.publish(at + 8, range.end);
        self.publish(at, range.start);
        self.announced_maps = range;
    }

    /// A word that target and controller pass on to each other while nothing is counted yet.
    pub fn note(&self, number: usize, value: u64) {
        self.publish(self.layout.copy(wire::COPY_SHARED) + 8 * number, value);
    }

    /// What stands in it.
    pub fn noted(&self, number: usize) -> u64 {
        self.word(self.layout.copy(wire::COPY_SHARED) + 8 * number).load(Ordering::Relaxed)
    }

    /// Where the target has it.
    pub fn note_in_target(&self, number: usize) -> u64 {
        self.remote + (self.layout.copy(wire::COPY_SHARED) + 8 * number) as u64
    }

    /// The stacks that were seen, for whoever goes on asking when the session is gone.
    pub fn seen_stacks(&self) -> Option<SeenStacks> {
        Some(SeenStacks { map: Arc::clone(&self.map), at: self.layout.stacks()? })
    }

    /// The words by which a thread of the target waits for us.
    pub fn doorbell(&self) -> &Doorbell {
        assert!(wire::DOORBELL + size_of::<Doorbell>() <= self.map.len_bytes());
        let at = self.map.base().wrapping_add(wire::DOORBELL).cast::<Doorbell>();
        // SAFETY: in bounds (asserted) and aligned, mapped as long as `self.map` lives, and atomic on both sides.
        unsafe { &*at }
    }

    /// A word whose place is ours to know.
    fn word(&self, offset: usize) -> &AtomicU64 {
        self.view().word(offset).unwrap_or_else(|| panic!("no word at {offset:#x} of the arena"))
    }

    /// Writes a word that hits read; all that it leads to must be written before.
    pub fn publish(&self, offset: usize, value: u64) {
        // [WIRE-1] Orders what the word leads to before the word. Pairs with [WIRE-2], on AArch64 [WIRE-3].
        self.word(offset).store(value, Ordering::Release);
    }

    /// Writes into the header that a range is ours, before there is anything in it; false if the header is full.
    pub fn announce(&mut self, range: Range<u64>) -> bool {
        let i = self.announced.len();
        if i == REGIONS_MAX {
            return false;
        }
        self.put_region(i, [range.start, range.start, range.end, range.end]);
        self.announced.push(range);
        self.publish(offset_of!(ArenaHeader, regions_len), self.announced.len() as u64);
        true
    }

    /// Writes into the header what who finds us dead must know; before the first site is armed. Each word by itself is
    /// as true as the one before it.
    pub fn describe(&self, footing: &Footing) {
        let rseq = footing.rseq_offset.map_or(NO_RSEQ, i64::from);
        self.publish(offset_of!(ArenaHeader, rseq_offset), rseq as u64);
        for (i, range) in self.announced.iter().enumerate() {
            if let Some(r) = footing.regions.iter().find(|r| r.table == range.start) {
                self.put_region(i, [r.table, r.code, r.blocks, r.end]);
            }
        }
    }

    fn put_region(&self, i: usize, words: [u64; 4]) {
        let at = offset_of!(ArenaHeader, regions) + i * size_of::<RegionDesc>();
        for (j, word) in words.into_iter().enumerate() {
            self.publish(at + j * 8, word);
        }
    }

    /// What one copy has in a cell, believed or not: numbers of readers, which wrap.
    pub fn raw(&self, copy: usize, cell: u32) -> u64 {
        // Ordered by the fences of the grace period that asks.
        self.word(self.layout.copy(copy) + cell as usize).load(Ordering::Relaxed)
    }

    /// Sets a cell that no hit adds to, in all copies, to 0.
    pub fn clear(&self, cell: u32) {
        for copy in 0..COPY_CPU0 + self.layout.cpus {
            // Hits that add to it come by a list that is published later.
            self.word(self.layout.copy(copy) + cell as usize).store(0, Ordering::Relaxed);
        }
    }

    /// Has hits that use no CPU's copy enter this rank.
    pub fn set_rank(&self, copy: usize, rank: u32) {
        let rank = u64::from(rank) * table::RANK;
        // A hit that is slow to see it enters the rank before: the next grace period looks for such.
        self.word(self.layout.copy(copy) + cell::RANK as usize).store(rank, Ordering::Relaxed);
    }

    /// The sum of a cell over all copies that belong to the target itself, and to its children if they are followed.
    pub fn sum(&self, cell: u32) -> u64 {
        let copies = (0..COPY_CPU0 + self.layout.cpus).filter(|c| *c != COPY_CHILDREN || self.follows_forks);
        let counts = self.counts();
        copies.fold(0u64, |sum, copy| sum.saturating_add(self.count_in(&counts, copy, cell)))
    }

    /// What one copy has; what cannot be a count is none.
    fn count(&self, copy: usize, cell: u32) -> u64 {
        self.count_in(&self.counts(), copy, cell)
    }

    fn count_in(&self, counts: &Copies<Checked<'_>>, copy: usize, cell: u32) -> u64 {
        let found = counts.get(copy, cell as usize);
        if found > COUNT_MAX {
            self.mark_damaged(copy, cell);
            return 0;
        }
        found
    }

    /// Notes, once for each, a cell that holds what cannot be a count.
    #[cold]
    fn mark_damaged(&self, copy: usize, cell: u32) {
        let mut damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
        if damaged.len() < DAMAGED_MAX {
            damaged.insert((copy, cell));
        }
    }

    /// How many cells held what cannot be a count; as many as are noted at most.
    pub fn damaged(&self) -> u64 {
        self.damaged.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }

    /// How many calls are open; exact once no thread of ours is in a hit.
    pub fn open_calls(&self) -> u64 {
        let frames = self.layout.frames().and_then(|at| Frames::in_untrusted(self.view(), at).ok());
        frames.map_or(0, |frames| frames.in_use())
    }

    /// The same in forked children that are counted apart.
    pub fn children(&self, cell: u32) -> u64 {
        if self.follows_forks { 0 } else { self.count(COPY_CHILDREN, cell) }
    }

    /// The head of a table for this arena, behind which all is 0.
    pub fn table(&self) -> Vec<u8> {
        let copy = |i| (self.remote + self.layout.copy(i) as u64).to_le_bytes();
        let mut bytes = vec![0; table::CPU0];
        bytes[table::ALIVE..table::ALIVE + 8].copy_from_slice(&copy(wire::COPY_SHARED));
        bytes.extend(self.entries(0));
        bytes
    }

    /// The CPUs' entries of a table whose hits enter this rank.
    pub fn entries(&self, rank: u32) -> Vec<u8> {
        let rank = u64::from(rank) * table::RANK;
        let entry = |cpu| (self.remote + self.layout.copy(COPY_CPU0 + cpu) as u64 + rank).to_le_bytes();
        (0..self.layout.cpus).flat_map(entry).collect()
    }

    /// The copy for forked children, as the target sees it.
    pub fn children_copy(&self) -> u64 {
        self.remote + self.layout.copy(COPY_CHILDREN) as u64
    }
}

/// A device number's two parts, as glibc and musl put them together.
fn major_and_minor(device: u64) -> (u32, u32) {
    let major = (device >> 32) & 0xffff_f000 | (device >> 8) & 0xfff;
    let minor = (device >> 12) & 0xffff_ff00 | device & 0xff;
    (major as u32, minor as u32)
}

pub(crate) fn errno_of(error: &std::io::Error) -> sys::Errno {
    sys::Errno(error.raw_os_error().unwrap_or(5))
}
