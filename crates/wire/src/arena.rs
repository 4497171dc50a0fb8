//! The head of the shared mapping: whose it is, what is in it, and what else of ours the process has.
//!
//! For:     the controller, and whoever finds the arena after it died.
//! State:   written by the controller alone; hits read none of it.
//! Context: control.
//! Keeps:   A1 the layout is the same in both builds (`repr(C)`, fixed sizes).
//!          A2 a header that is read back from a target is one that a controller could have written: numbers that
//!             contradict each other are no header.
//! Checked: tests below; session's `footing` tests; testkit `forged`.

use crate::directory::{Directory, Entry, Kind, OBJECTS_MAX};
use core::mem::offset_of;
use core::sync::atomic::AtomicU32;

/// First word of an arena.
pub const ARENA_MAGIC: u64 = u64::from_le_bytes(*b"nprobeA1");
/// Raised with every change of layout.
pub const VERSION: u32 = 22;
/// Name of the memfd behind an arena, as seen in /proc/PID/maps.
pub const ARENA_NAME: &str = "nanoprobe";
/// The same of maps that several processes share.
pub const FAMILY_NAME: &core::ffi::CStr = c"nanoprobe-maps";

/// Copy for locked adds by threads that cannot use a CPU's copy.
pub const COPY_SHARED: usize = 0;
/// Copy for hits in forked children.
pub const COPY_CHILDREN: usize = 1;
/// Copy of CPU 0; CPU n has copy `COPY_CPU0 + n`.
pub const COPY_CPU0: usize = 2;

/// Byte offsets of cells that every copy begins with.
pub mod cell {
    use crate::table;

    /// Readers of rank 0 that entered by the general path; those of rank 1 stand [`table::RANK`] bytes behind.
    pub const READERS_ENTERED: u32 = 0;
    /// Readers of rank 0 that left; those of rank 1 stand [`table::RANK`] bytes behind.
    pub const READERS_LEFT: u32 = 8;
    /// Calls whose frame was taken by a newer one.
    pub const FRAMES_REPLACED: u32 = 32;
    /// Calls that found no frame.
    pub const FRAMES_NO_ROOM: u32 = 40;
    /// Of the shared copy and the children's: 0, or [`table::RANK`] if a hit that has no CPU's copy enters rank 1.
    pub const RANK: u32 = 48;
    /// First cell that a plan may give out; cells before it are the runtime's own.
    pub const FIRST_FREE: u32 = 128;

    /// Where the readers of a rank, 0 or 1, are counted as they enter.
    pub const fn entered(rank: u32) -> u32 {
        READERS_ENTERED + rank * table::RANK as u32
    }

    /// Where the readers of a rank, 0 or 1, are counted as they leave.
    pub const fn left(rank: u32) -> u32 {
        READERS_LEFT + rank * table::RANK as u32
    }
}

/// Start of the arena.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ArenaHeader {
    /// [`ARENA_MAGIC`].
    pub magic: u64,
    /// [`VERSION`].
    pub version: u32,
    /// Number of copies, `COPY_CPU0` + CPUs.
    pub copies: u32,
    /// How many of `objects` there are.
    pub objects_len: u64,
    /// Raised with every change of `objects`.
    pub generation: u64,
    /// Process that made this arena.
    pub controller_pid: i32,
    /// Process it was made for.
    pub target_pid: i32,
    /// When the controller started, in clock ticks since boot: with its pid this names it for ever.
    pub controller_start: u64,
    /// The controller's pid namespace, by inode.
    pub pid_namespace: u64,
    /// Length of the arena in bytes.
    pub len: u64,
    /// Where the threads' rseq areas lie from the thread pointer; `NO_RSEQ` if counts are locked adds.
    pub rseq_offset: i64,
    /// How many of `regions` there are.
    pub regions_len: u64,
    /// Where the maps begin and end that the process shares with others, in a mapping of their own; equal if there are none.
    pub maps: [u64; 2],
    /// Everything else of ours in the target.
    pub regions: [RegionDesc; REGIONS_MAX],
    /// What is in the arena behind its head, in the order of the offsets.
    pub objects: [Entry; OBJECTS_MAX],
}

impl ArenaHeader {
    /// The header in a copy of an arena's first bytes, for a machine with so many CPUs and an arena of `len` bytes.
    pub fn parse(bytes: &[u8], cpus: usize, len: u64) -> Option<ArenaHeader> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let half = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let mut header = ArenaHeader {
            magic: word(offset_of!(ArenaHeader, magic))?,
            version: half(offset_of!(ArenaHeader, version))?,
            copies: half(offset_of!(ArenaHeader, copies))?,
            objects_len: word(offset_of!(ArenaHeader, objects_len))?,
            generation: word(offset_of!(ArenaHeader, generation))?,
            controller_pid: half(offset_of!(ArenaHeader, controller_pid))?.cast_signed(),
            target_pid: half(offset_of!(ArenaHeader, target_pid))?.cast_signed(),
            controller_start: word(offset_of!(ArenaHeader, controller_start))?,
            pid_namespace: word(offset_of!(ArenaHeader, pid_namespace))?,
            len: word(offset_of!(ArenaHeader, len))?,
            rseq_offset: word(offset_of!(ArenaHeader, rseq_offset))?.cast_signed(),
            regions_len: word(offset_of!(ArenaHeader, regions_len))?,
            maps: [word(offset_of!(ArenaHeader, maps))?, word(offset_of!(ArenaHeader, maps) + 8)?],
            regions: [RegionDesc::default(); REGIONS_MAX],
            objects: [Entry::default(); OBJECTS_MAX],
        };
        let count = usize::try_from(header.regions_len).ok()?;
        for (i, region) in header.regions.get_mut(..count)?.iter_mut().enumerate() {
            let at = offset_of!(ArenaHeader, regions) + i * size_of::<RegionDesc>();
            let [table, code, blocks, end] = [word(at)?, word(at + 8)?, word(at + 16)?, word(at + 24)?];
            *region = RegionDesc { table, code, blocks, end };
        }
        let count = usize::try_from(header.objects_len).ok()?;
        for (i, object) in header.objects.get_mut(..count)?.iter_mut().enumerate() {
            let at = offset_of!(ArenaHeader, objects) + i * size_of::<Entry>();
            let (kind, generation) = (half(at)?, half(at + 4)?);
            *object =
                Entry { kind, generation, offset: word(at + 8)?, len: word(at + 16)?, each: word(at + 24)? };
        }
        header.is_sound(cpus, len).then_some(header)
    }

    fn is_sound(&self, cpus: usize, len: u64) -> bool {
        let copies = (COPY_CPU0 + cpus) as u64;
        let counts = self.directory().and_then(|directory| directory.find(Kind::Counts));
        let are_whole = |counts: &Entry| {
            counts.each >= u64::from(cell::FIRST_FREE)
                && (counts.offset | counts.each).is_multiple_of(4096)
                && counts.count() == copies
        };
        self.magic == ARENA_MAGIC
            && self.version == VERSION
            && u64::from(self.copies) == copies
            && self.len == len
            && counts.as_ref().is_some_and(are_whole)
            && self.controller_pid > 0
            && (self.rseq_offset == NO_RSEQ || self.rseq_offset.unsigned_abs() < RSEQ_OFFSET_MAX)
            && self.maps[0] <= self.maps[1]
            && (self.maps[0] | self.maps[1]).is_multiple_of(4096)
            && self.regions().iter().all(RegionDesc::is_sound)
            && self.regions().iter().try_fold(0u64, |sum, r| sum.checked_add(r.end - r.table))
                <= Some(REGIONS_BYTES_MAX)
    }

    /// What is in the arena; `None` if that cannot be.
    pub fn directory(&self) -> Option<Directory> {
        Directory::parse(self.objects.get(..usize::try_from(self.objects_len).ok()?)?, self.len)
    }

    /// Those of `regions` that there are.
    pub fn regions(&self) -> &[RegionDesc] {
        &self.regions[..(self.regions_len as usize).min(REGIONS_MAX)]
    }
}

/// One region: a table page and the code behind it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionDesc {
    /// Address of the table page, where the region starts.
    pub table: u64,
    /// Address of the code.
    pub code: u64,
    /// Address of the first trampoline's block; blocks stand at multiples of 64.
    pub blocks: u64,
    /// End of the region.
    pub end: u64,
}

impl RegionDesc {
    /// Its controller has not finished it: it has no trampolines yet.
    pub fn is_empty(&self) -> bool {
        self.blocks == self.end
    }

    /// A region that a controller could have made: whole pages, in order; without a table (of a punned jump) it is all
    /// code.
    fn is_sound(&self) -> bool {
        let RegionDesc { table, code, blocks, end } = *self;
        table <= code
            && code <= blocks
            && blocks <= end
            && table < end
            && end - table <= REGIONS_BYTES_MAX
            && (table | code | end).is_multiple_of(4096)
            && (self.is_empty() || if table == code { blocks == code } else { blocks.is_multiple_of(64) })
    }
}

/// By which a thread of the target waits for the controller; at [`DOORBELL`] in the arena.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Doorbell {
    /// How often a thread has rung.
    pub rung: AtomicU32,
    /// How many of these the controller has answered; [`Doorbell::CLOSED`]: nobody will answer any more.
    pub answered: AtomicU32,
    /// Who rang before an exec: the n-th ring's thread, in its own pid namespace, at n modulo their number. 0: not yet
    /// written, or taken by the controller.
    pub callers: [AtomicU32; 14],
}

impl Doorbell {
    /// Who rings goes on at once.
    pub const CLOSED: u32 = u32::MAX;

    /// Where the thread of this ring says who it is.
    pub fn caller(&self, ring: u32) -> &AtomicU32 {
        &self.callers[ring as usize % self.callers.len()]
    }
}

/// Where the doorbell is in an arena.
pub const DOORBELL: usize = ARENA_HEAD - 64;

/// Bytes of an arena before what is in it: whole pages.
pub const ARENA_HEAD: usize = 3 * 4096;
/// Where the maps of programs are, if there are any: before all else, so that programs know it when they are compiled.
pub const MAPS: usize = ARENA_HEAD;

/// Neighbourhoods of modules that one session can have, and runs of pages where punned jumps lead.
pub const REGIONS_MAX: usize = 256;
/// Bytes of all regions of one session. A controller makes no more, and none that finds an arena believes in more.
pub const REGIONS_BYTES_MAX: u64 = 256 << 20;
/// No thread's rseq area is further from its thread pointer.
const RSEQ_OFFSET_MAX: u64 = 1 << 20;
/// [`ArenaHeader::rseq_offset`] without rseq.
pub const NO_RSEQ: i64 = i64::MIN;

const _: () = assert!(size_of::<ArenaHeader>() <= DOORBELL);
const _: () = assert!(DOORBELL + size_of::<Doorbell>() <= ARENA_HEAD);

#[cfg(test)]
mod tests {
    use super::*;

    const CPUS: usize = 2;
    const LEN: u64 = 12288 + 4 * 4096;

    /// Word of the first object.
    const OBJECTS: usize = 12 + 4 * REGIONS_MAX;

    /// A header as words, as a controller writes it for two CPUs, one region, and nothing but counts.
    fn sound() -> [u64; OBJECTS + 8] {
        let mut words = [0; OBJECTS + 8];
        words[0] = ARENA_MAGIC;
        words[1] = u64::from(VERSION) | 4 << 32;
        words[2] = 1;
        words[OBJECTS..OBJECTS + 4].copy_from_slice(&[Kind::Counts as u64, 12288, 4 * 4096, 4096]);
        words[4] = 77 | 78 << 32;
        words[7] = LEN;
        words[8] = NO_RSEQ.cast_unsigned();
        words[9] = 1;
        words[12..16].copy_from_slice(&[0x10_0000, 0x10_1000, 0x10_1940, 0x10_4000]);
        words
    }

    fn parsed(words: [u64; OBJECTS + 8]) -> Option<ArenaHeader> {
        let mut bytes = [0; size_of::<ArenaHeader>()];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        ArenaHeader::parse(&bytes, CPUS, LEN)
    }

    #[test]
    fn a_header_as_a_controller_writes_it_is_read_back() {
        let header = parsed(sound()).unwrap();
        assert_eq!((header.controller_pid, header.target_pid), (77, 78));
        let region = RegionDesc { table: 0x10_0000, code: 0x10_1000, blocks: 0x10_1940, end: 0x10_4000 };
        assert_eq!(header.regions(), [region]);
    }

    #[test]
    fn numbers_that_contradict_each_other_are_no_header() {
        let huge = 3 << 30;
        let wrong: [(usize, u64); 21] = [
            (0, 0),
            (1, u64::from(VERSION + 1) | 4 << 32),
            (1, u64::from(VERSION) | 5 << 32),
            (2, 0),
            (2, u64::MAX),
            (OBJECTS, 0),
            (OBJECTS + 1, 4096),
            (OBJECTS + 2, 3 * 4096),
            (OBJECTS + 3, 8192),
            (4, 0),
            (7, LEN + 4096),
            (8, 1 << 20),
            (9, 257),
            (9, u64::MAX),
            (10, 4096),
            (11, 1),
            (12, 0x10_2000),
            (13, 0x10_1001),
            (14, 0x10_1941),
            (15, 0x10_1000),
            (15, 0x10_0000 + huge),
        ];
        for (at, value) in wrong {
            let mut words = sound();
            words[at] = value;
            assert!(parsed(words).is_none(), "word {at} = {value:#x}");
        }
        let mut bytes = [0; size_of::<ArenaHeader>()];
        bytes[..8].copy_from_slice(&ARENA_MAGIC.to_le_bytes());
        assert!(ArenaHeader::parse(&bytes[..100], CPUS, LEN).is_none(), "too short");
    }
}
