//! Where punned jumps lead.
//!
//! For:     sites whose jump can reach some addresses only.
//! State:   the blocks given out, and the pages that they need.
//! Context: control.
//! Keeps:   U1 a block's entry is an address that its jump can lead to; blocks do not overlap.
//!          U2 where a jump can lead to one address only, five bytes are kept there for a jump to the block.
//!          U3 pages were free in the snapshot of the mappings, and are within reach of the site's whole module.
//! Checked: tests below; the kernel refuses a page that was taken meanwhile (MAP_FIXED_NOREPLACE).

use crate::facts::site::SitePlan;
use image::Mapping;
use insn::Pun;
use std::collections::BTreeMap;
use std::ops::Range;
use text::ground::space::{PAGE, within_reach};
use text::{JUMP_LEN, Trampoline};

/// Entries stand at multiples of it, as in other regions.
const STEP: u64 = 64;
/// Pages are taken in runs of this length, where there is room, so that sites near one another share them.
const RUN: u64 = 64 << 10;
/// The same for jumps that can lead to one address only: these lie as far apart as their sites do.
const LANDING_RUN: u64 = 1 << 20;
/// How far behind it the trampoline may be.
const NEAR: u64 = 64 << 20;
/// What a block takes at most before and behind its entry, for a look before more is known of it.
const USUAL: Size = Size { before: 256, behind: 768 };

/// Bytes of a block before its entry, and from there on.
#[derive(Clone, Copy, Debug)]
struct Size {
    before: u64,
    behind: u64,
}

/// Whether a process with these mappings has room for a trampoline at an address of `pun`.
pub(crate) fn has_room(mappings: &[Mapping], reach: Range<u64>, pun: Pun, bias: u64) -> bool {
    let free = within_reach(mappings, reach, USUAL.before + USUAL.behind);
    match pun.only(bias) {
        None => Puns::default().find(&free, pun.in_process(bias), USUAL).is_some(),
        Some(at) => {
            let mut puns = Puns::default();
            puns.land(&free, at, 1).is_some() && puns.find(&free, near(at), USUAL).is_some()
        }
    }
}

/// Where the trampoline may stand that a jump at `landing` leads to.
fn near(landing: u64) -> Range<u64> {
    landing..landing.saturating_add(NEAR)
}

/// Blocks for all punned sites of an attach.
#[derive(Debug, Default)]
pub(crate) struct Puns {
    /// Where blocks may stand: ascending, apart from one another.
    pub pages: Vec<Range<u64>>,
    /// Start and end of what is given out.
    blocks: BTreeMap<u64, u64>,
}

impl Puns {
    /// Gives each punned site its block, in at most `limit` runs of pages; a site without one is left out later.
    pub fn allot(mappings: &[Mapping], sites: &mut [SitePlan], limit: usize) -> Puns {
        let mut puns = Puns::default();
        // First those that have no choice.
        for site in sites.iter_mut() {
            let Some(at) = site.placement.pun.and_then(|pun| pun.only(site.bias)) else { continue };
            let free = within_reach(mappings, site.module_range.clone(), JUMP_LEN as u64);
            site.landing = puns.land(&free, at, limit);
        }
        for site in sites {
            let Some(pun) = site.placement.pun else { continue };
            let size = size(site);
            let window = match (pun.only(site.bias), site.landing) {
                (None, _) => pun.in_process(site.bias),
                (Some(_), Some(at)) => near(at),
                (Some(_), None) => continue,
            };
            let shared = puns.find(&puns.pages, window.clone(), size);
            let at = shared.or_else(|| {
                let free = within_reach(mappings, site.module_range.clone(), size.before + size.behind);
                let at = puns.find(&free, window, size).filter(|_| puns.pages.len() < limit)?;
                puns.take(&free, at..at + size.before + size.behind, RUN);
                Some(at)
            });
            if let Some(at) = at {
                puns.blocks.insert(at, at + size.before + size.behind);
            }
            site.block = at;
        }
        puns.trim();
        puns
    }

    /// Keeps the one address `at` for a jump, if it is free.
    fn land(&mut self, free: &[Range<u64>], at: u64, limit: usize) -> Option<u64> {
        let jump = at..at.checked_add(JUMP_LEN as u64)?;
        let is_in = |space: &Range<u64>| space.start <= jump.start && jump.end <= space.end;
        if !free.iter().any(is_in) || self.overlapping(&jump).is_some() {
            return None;
        }
        if !self.pages.iter().any(is_in) {
            if self.pages.len() >= limit {
                return None;
            }
            self.take(free, jump.clone(), LANDING_RUN);
        }
        // What is left of a page that others share may begin behind it.
        self.pages.iter().any(is_in).then(|| self.blocks.insert(jump.start, jump.end)).map(|_| at)
    }

    /// A block that shares a byte with `range`: its end.
    fn overlapping(&self, range: &Range<u64>) -> Option<u64> {
        let before = self.blocks.range(..range.end).next_back();
        before.map(|(_, end)| *end).filter(|end| *end > range.start)
    }

    /// The first place of a block in `spaces` whose entry is in `window`.
    fn find(&self, spaces: &[Range<u64>], window: Range<u64>, size: Size) -> Option<u64> {
        let len = size.before + size.behind;
        spaces.iter().find_map(|space| {
            let first = (space.start + size.before).max(window.start).next_multiple_of(STEP);
            let last = space.end.checked_sub(size.behind)?.min(window.end - 1);
            let mut entry = first;
            while entry <= last {
                let at = entry - size.before;
                match self.overlapping(&(at..at + len)) {
                    None => return Some(at),
                    Some(end) => entry = (end + size.before).next_multiple_of(STEP),
                }
            }
            None
        })
    }

    /// Takes a run of the free pages that holds `block`.
    fn take(&mut self, free: &[Range<u64>], block: Range<u64>, run: u64) {
        let Some(space) = free.iter().find(|s| s.start <= block.start && block.end <= s.end) else { return };
        let start = block.start / PAGE * PAGE;
        let after = self.pages.iter().map(|p| p.start).filter(|p| *p >= start).min().unwrap_or(u64::MAX);
        let room = space.end.min(after) / PAGE * PAGE;
        let end = (start + run).min(room).max(block.end.next_multiple_of(PAGE));
        // A page that the block shares with a run before it belongs to that.
        let before = self.pages.iter().map(|p| p.end).filter(|p| *p <= end).max().unwrap_or(0);
        self.pages.push(start.max(before)..end);
        self.pages.sort_unstable_by_key(|p| p.start);
    }

    /// Gives back the pages of each run before its first block and behind its last.
    fn trim(&mut self) {
        for run in &mut self.pages {
            let mut inside = self.blocks.range(..run.end).filter(|(_, end)| **end > run.start);
            let Some((first, _)) = inside.next() else { continue };
            let last = self.blocks.range(..run.end).next_back().map_or(run.end, |(_, end)| *end);
            let start = (first / PAGE * PAGE).max(run.start);
            *run = start..last.next_multiple_of(PAGE).min(run.end).max(start);
        }
        self.pages.retain(|run| run.start < run.end);
    }
}

fn size(site: &SitePlan) -> Size {
    let before = Trampoline::entry_offset(site.actions.len(), site.is_compiled_count(), false) as u64;
    Size { before, behind: Trampoline::len_bound(&site.placement, false) as u64 - before }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "a space of one range is meant")]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn free(window: Range<u64>) -> Option<u64> {
        let spaces = [0x10_0000..0x10_4000, 0x30_0000..0x30_1000];
        Puns::default().find(&spaces, window, Size { before: 128, behind: 256 })
    }

    #[test]
    fn an_entry_stands_in_the_window_and_the_whole_block_in_free_space() {
        assert_eq!(free(0x10_1001..0x10_1101), Some(0x10_1040 - 128));
        assert_eq!(free(0..MIB * 2), Some(0x10_0000), "room for what stands before the entry");
        assert_eq!(free(0x10_3f40..0x10_4000), None, "no room behind the entry");
        assert_eq!(free(0x10_3f00..0x10_4000), Some(0x10_3f00 - 128));
        assert_eq!(free(0x20_0000..0x30_0100), Some(0x30_0000));
        assert_eq!(free(0x10_1001..0x10_1040), None, "no multiple of 64 in it");
    }

    #[test]
    fn blocks_do_not_overlap_and_share_pages() {
        let space = [MIB..MIB + 16 * PAGE];
        let size = Size { before: 128, behind: 256 };
        let mut puns = Puns::default();
        for _ in 0..40 {
            let at = puns.find(&space, MIB + 100..MIB + 0x4000, size);
            let Some(at) = at else { break };
            assert!(puns.blocks.iter().all(|(start, end)| at + 384 <= *start || *end <= at));
            puns.blocks.insert(at, at + 384);
        }
        assert_eq!(puns.blocks.len(), 40);
        puns.take(&space, MIB..MIB + 384, RUN);
        assert_eq!(puns.pages, [MIB..MIB + 16 * PAGE]);
    }

    #[test]
    fn a_jump_without_a_choice_gets_its_address_or_nothing() {
        let space = [MIB..MIB + 64 * PAGE, 8 * MIB..8 * MIB + 2];
        let mut puns = Puns::default();
        let at = MIB + 8 * PAGE + 77;
        assert_eq!(puns.land(&space, at, 1), Some(at));
        assert_eq!(puns.land(&space, at + 4, 1), None, "a byte of it is taken");
        assert_eq!(puns.land(&space, at + 5, 1), Some(at + 5), "on the same page");
        assert_eq!(puns.land(&space, 4 * MIB, 9), None, "nothing is free there");
        assert_eq!(puns.land(&space, 8 * MIB, 9), None, "nor five bytes there");
        assert_eq!(puns.land(&space, MIB + 1, 1), None, "and one run was all");
        let block = puns.find(&puns.pages, near(at), Size { before: 128, behind: 256 });
        assert!(block.is_some_and(|block| block >= at + 10), "{block:x?}");
        puns.trim();
        assert_eq!(puns.pages, [MIB + 8 * PAGE..MIB + 9 * PAGE]);
    }

    #[test]
    fn a_run_ends_where_another_begins() {
        let space = [MIB..MIB + 64 * PAGE];
        let mut puns = Puns::default();
        puns.take(&space, MIB + 8 * PAGE..MIB + 8 * PAGE + 100, RUN);
        puns.take(&space, MIB + PAGE..MIB + PAGE + 100, RUN);
        assert_eq!(puns.pages, [MIB + PAGE..MIB + 8 * PAGE, MIB + 8 * PAGE..MIB + 24 * PAGE]);
    }
}
