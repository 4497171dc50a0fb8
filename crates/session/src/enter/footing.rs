//! Where our memory in a process lies: enough to leave it.
//!
//! For:     detach, and recovery after a controller was killed.
//! State:   addresses only.
//! Context: control.
//! Keeps:   F1 read back from an arena's header it says what was written there.
//!          F2 what lies at an address now is taken for it only if it is the same file: once unmapped, the place may be
//!             another controller's.
//!          F3 what is read back is borne out by what the process maps, or it is not there: belief.rs.
//! Checked: tests below; testkit `traces`, `forged`, `crowd`.

use crate::enter::belief;
use crate::facts::error::Broken;
use crate::find::memory::Memory;
use crate::find::process::Controller;
use crate::find::proof::Unmapped;
use crate::hold::remote::Remote;
use image::{FileId, Mapping};
use std::ops::Range;
use wire::{ArenaHeader, KernelSite, NO_RSEQ, REGIONS_BYTES_MAX, RegionDesc, TrampolineHeader};

/// An arena and its regions, by address.
#[derive(Clone, Debug)]
pub(crate) struct Footing {
    pub arena: Range<u64>,
    /// The arena's file: no later one has its number.
    pub file: Option<FileId>,
    /// By address.
    pub regions: Vec<RegionDesc>,
    /// Mappings of the arena's file that keep a place for a region whose controller died before it was there, and the maps that
    /// the process shares with others.
    pub reserved: Vec<Range<u64>>,
    pub rseq_offset: Option<i32>,
}

/// An arena found in a process, and whose it is.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub footing: Footing,
    pub controller: i32,
    pub controller_start: u64,
    pub pid_namespace: u64,
    /// Of the arena's file.
    pub inode: u64,
}

impl Found {
    /// Whether its controller lives.
    pub fn is_alive(&self) -> bool {
        let Found { controller: pid, controller_start: start_time, pid_namespace, .. } = *self;
        Controller { pid, start_time, pid_namespace }.is_alive()
    }
}

impl Footing {
    /// Those of all controllers in a process.
    pub fn all(memory: &Memory, mappings: &[Mapping]) -> Vec<Found> {
        let mut bytes = 0;
        let found = belief::arenas(mappings).filter_map(|m| Footing::read(memory, mappings, m));
        // All arenas together are not believed to lead to more than some of the largest.
        let is_in_reason = |found: &Found| {
            bytes += found.footing.regions.iter().map(|r| r.end - r.table).sum::<u64>();
            bytes <= 4 * REGIONS_BYTES_MAX
        };
        found.take_while(is_in_reason).collect()
    }

    /// Reads the header of the arena that is mapped there: once, so that what is checked is what is used.
    fn read(memory: &Memory, mappings: &[Mapping], arena: &Mapping) -> Option<Found> {
        let (start, end) = (arena.range.start.0, arena.range.end.0);
        let bytes = memory.read_vec(start, size_of::<ArenaHeader>()).ok()?;
        let header = ArenaHeader::parse(&bytes, percpu::possible_cpus() as usize, end - start)?;
        let mut regions = header.regions().to_vec();
        regions.sort_by_key(|r| r.code);
        let are_apart = regions.windows(2).all(|pair| pair[0].end <= pair[1].table);
        regions.retain(|region| belief::is_region(mappings, region));
        // None of several is left, and something else is there: then the rest of the header is not to be believed either.
        // If nothing is, its controller died when it had taken back all but the arena.
        let is_taken =
            |r: &RegionDesc| mappings.iter().any(|m| m.range.start.0 < r.end && r.table < m.range.end.0);
        if !are_apart || regions.is_empty() && header.regions().iter().any(is_taken) {
            return None;
        }
        let rseq = Some(header.rseq_offset).filter(|offset| *offset != NO_RSEQ);
        let rseq_offset = rseq.and_then(|offset| i32::try_from(offset).ok());
        let mut reserved: Vec<Range<u64>> =
            belief::reserved(mappings, arena).map(|m| m.range.start.0..m.range.end.0).collect();
        let [start_of_maps, end_of_maps] = header.maps;
        reserved.extend(belief::shared_maps(mappings, start_of_maps..end_of_maps));
        let file = arena.file;
        let footing = Footing { arena: start..end, file, regions, reserved, rseq_offset };
        let ArenaHeader { controller_pid, controller_start, pid_namespace, .. } = header;
        let inode = arena.file.map_or(0, |file| file.inode);
        Some(Found { footing, controller: controller_pid, controller_start, pid_namespace, inode })
    }

    /// Whether it is there still: the arena goes last. Asked in a stop, before anything is written or unmapped.
    pub fn stands(&self, mappings: &[Mapping]) -> bool {
        let is_it = |m: &Mapping| (m.range.start.0..m.range.end.0) == self.arena && m.file == self.file;
        self.file.is_some() && belief::arenas(mappings).any(is_it)
    }

    /// What of it the process still maps: a detach that failed may have taken back some of it, and who knows what the
    /// process has mapped there since.
    pub fn as_mapped(&self, mappings: &[Mapping]) -> Footing {
        let mut still = self.clone();
        still.regions.retain(|region| belief::is_region(mappings, region));
        still
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
    pub fn unmap(&self, remote: &mut Remote<'_>) -> Result<Unmapped, Broken> {
        let regions = self.regions.iter().map(|r| r.table..r.end);
        // The arena last: as long as it is there, the rest is found by it.
        let all = regions.chain(self.reserved.clone()).chain([self.arena.clone()]);
        Unmapped::proven(all.map(|range| remote.unmap(&range)))
    }
}

/// A copy of the regions' trampolines.
#[derive(Debug)]
pub(crate) struct Code(pub Vec<(u64, Vec<u8>)>);

impl Code {
    /// Every trampoline, by its entry.
    pub fn trampolines(&self) -> impl Iterator<Item = (u64, TrampolineHeader)> + '_ {
        self.heads().filter_map(|(entry, head)| Some((entry, TrampolineHeader::parse(head)?)))
    }

    /// Every site where a breakpoint of the kernel's may stand for this controller.
    pub fn kernel_sites(&self) -> impl Iterator<Item = KernelSite> + '_ {
        self.heads().filter_map(|(_, head)| KernelSite::parse(head))
    }

    /// What stands before each place where an entry may be. Blocks stand at multiples of 64, and so do their entries.
    fn heads(&self) -> impl Iterator<Item = (u64, &[u8])> + '_ {
        self.0.iter().flat_map(|(start, bytes)| {
            let entries = (64..=bytes.len()).step_by(64);
            entries.map(move |entry| (start + entry as u64, &bytes[entry - TrampolineHeader::LEN..entry]))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn maps(text: &str) -> Vec<Mapping> {
        image::maps::parse_maps(text.as_bytes()).unwrap()
    }

    #[test]
    fn what_another_controller_has_mapped_at_the_same_place_is_not_taken_for_ours() {
        let ours = maps("1000-5000 rw-s 00000000 00:01 10 /memfd:nanoprobe (deleted)\n");
        let footing = Footing {
            arena: 0x1000..0x5000,
            file: ours[0].file,
            regions: Vec::new(),
            reserved: Vec::new(),
            rseq_offset: None,
        };
        assert!(footing.stands(&ours));
        for other in [
            "1000-5000 rw-s 00000000 00:01 11 /memfd:nanoprobe (deleted)\n",
            "1000-6000 rw-s 00000000 00:01 10 /memfd:nanoprobe (deleted)\n",
            "2000-6000 rw-s 00000000 00:01 10 /memfd:nanoprobe (deleted)\n",
            "1000-5000 rw-p 00000000 00:00 0 \n",
            "",
        ] {
            assert!(!footing.stands(&maps(other)), "{other}");
        }
        let nobodys = Footing { file: None, ..footing };
        assert!(!nobodys.stands(&maps("1000-5000 rw-p 00000000 00:00 0 \n")));
    }
}
