//! Where our memory in a process lies: enough to leave it.
//!
//! For:     detach, and recovery after a controller was killed.
//! State:   addresses only.
//! Context: control.
//! Keeps:   F1 read back from an arena's header it says what was written there.
//! Checked: testkit `traces`.

use crate::error::Broken;
use crate::memory::Memory;
use crate::remote::Remote;
use image::Mapping;
use std::ops::Range;
use sys::nr;
use wire::{ARENA_MAGIC, ARENA_NAME, ArenaHeader, NO_RSEQ, RegionDesc, TrampolineHeader, VERSION};

/// An arena and its regions, by address.
#[derive(Clone, Debug)]
pub(crate) struct Footing {
    pub arena: Range<u64>,
    /// By address.
    pub regions: Vec<RegionDesc>,
    pub rseq_offset: Option<i32>,
}

/// An arena found in a process, and whose it is.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub footing: Footing,
    pub controller: i32,
    pub controller_start: u64,
    pub pid_namespace: u64,
}

/// No arena and no region of ours is longer; what a target's memory says is not trusted beyond it.
const LONGEST: u64 = 1 << 32;

impl Footing {
    /// Those of all controllers in a process.
    pub fn all(memory: &Memory, mappings: &[Mapping]) -> Vec<Found> {
        let marker = format!("/memfd:{ARENA_NAME}");
        let arenas = mappings.iter().filter(|m| m.path.as_os_str() == marker.as_str());
        arenas.filter_map(|m| Footing::read(memory, m.range.start.0)).collect()
    }

    /// Reads the header of the arena that is mapped at `addr`.
    pub fn read(memory: &Memory, addr: u64) -> Option<Found> {
        let bytes = memory.read_vec(addr, size_of::<ArenaHeader>()).ok()?;
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let half = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        if word(0)? != ARENA_MAGIC || half(8)? != VERSION {
            return None;
        }
        let at = core::mem::offset_of!(ArenaHeader, regions);
        let len =
            word(core::mem::offset_of!(ArenaHeader, regions_len))?.min(wire::REGIONS_MAX as u64) as usize;
        let region = |i: usize| {
            let at = at + i * size_of::<RegionDesc>();
            Some(RegionDesc {
                table: word(at)?,
                code: word(at + 8)?,
                blocks: word(at + 16)?,
                end: word(at + 24)?,
            })
        };
        let rseq = word(core::mem::offset_of!(ArenaHeader, rseq_offset))? as i64;
        let is_sound = |r: &RegionDesc| {
            r.table <= r.code && r.code <= r.blocks && r.blocks <= r.end && r.end - r.table < LONGEST
        };
        let arena_len = word(core::mem::offset_of!(ArenaHeader, len))?;
        let mut regions: Vec<RegionDesc> = (0..len).filter_map(region).filter(is_sound).collect();
        regions.sort_by_key(|r| r.code);
        let footing = Footing {
            arena: addr..addr.checked_add(arena_len).filter(|_| arena_len < LONGEST)?,
            regions,
            rseq_offset: (rseq != NO_RSEQ).then_some(i32::try_from(rseq).ok()).flatten(),
        };
        let controller = half(core::mem::offset_of!(ArenaHeader, controller_pid))? as i32;
        let controller_start = word(core::mem::offset_of!(ArenaHeader, controller_start))?;
        let pid_namespace = word(core::mem::offset_of!(ArenaHeader, pid_namespace))?;
        Some(Found { footing, controller, controller_start, pid_namespace })
    }

    /// True if an address is in code of ours.
    pub fn contains(&self, addr: u64) -> bool {
        // Asked for every word of every stack.
        let after = self.regions.partition_point(|r| r.code <= addr);
        after.checked_sub(1).is_some_and(|last| addr < self.regions[last].end)
    }

    /// The addresses between the first and the last of our code.
    pub fn bounds(&self) -> Option<Range<u64>> {
        let start = self.regions.iter().map(|r| r.code).min()?;
        Some(start..self.regions.iter().map(|r| r.end).max()?)
    }

    /// All trampolines as they are now; other controllers may have changed tails.
    pub fn read_code(&self, memory: &Memory) -> Result<Code, Broken> {
        let read = |r: &RegionDesc| Ok((r.blocks, memory.read_vec(r.blocks, (r.end - r.blocks) as usize)?));
        Ok(Code(self.regions.iter().map(read).collect::<Result<_, Broken>>()?))
    }

    /// Takes all of it back.
    pub fn unmap(&self, remote: &mut Remote<'_>) -> Result<(), Broken> {
        let regions = self.regions.iter().map(|r| r.table..r.end);
        for range in regions.chain([self.arena.clone()]) {
            remote.call("munmap", nr::MUNMAP, [range.start, range.end - range.start, 0, 0, 0, 0])?;
        }
        Ok(())
    }
}

/// A copy of the regions' trampolines.
#[derive(Debug)]
pub(crate) struct Code(pub Vec<(u64, Vec<u8>)>);

impl Code {
    /// Every trampoline, by its entry.
    pub fn trampolines(&self) -> impl Iterator<Item = (u64, TrampolineHeader)> + '_ {
        self.0.iter().flat_map(|(start, bytes)| {
            // Blocks stand at multiples of 64, and so do their entries.
            (64..bytes.len()).step_by(64).filter_map(move |entry| {
                let header =
                    bytes.get(entry - TrampolineHeader::LEN..entry).and_then(TrampolineHeader::parse);
                Some((start + entry as u64, header?))
            })
        })
    }

    /// `len` bytes at `addr`, none if that is not in a region.
    pub fn bytes(&self, addr: u64, len: usize) -> &[u8] {
        let found = self.0.iter().find_map(|(start, bytes)| {
            let from = usize::try_from(addr.checked_sub(*start)?).ok()?;
            bytes.get(from..from + len)
        });
        found.unwrap_or_default()
    }
}
