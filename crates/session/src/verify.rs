//! Reading back what a detach has restored.
//!
//! For:     `Session::detach`, which believes its eyes alone.
//! State:   none.
//! Context: control.
//! Keeps:   V1 text that differs from the file is anothers' only if a jump of another controller is seen there, a
//!             breakpoint that one's record names, or another file.
//! Checked: tests below; testkit `two`; `torture uprobe`, where others come between the detach and the look.

use crate::attach::image_maps;
use crate::chain;
use crate::detach::TRACER_PATIENCE;
use crate::error::Broken;
use crate::kernel::stray;
use crate::pages::{BREAKPOINT, Pages};
use crate::session::Session;
use crate::site::Armed;
use crate::world::World;
use image::Mapping;
use std::time::Duration;
use text::Patch;

impl Session {
    /// Reads every site back and compares it with the file.
    pub(crate) fn is_text_restored(&self) -> bool {
        let mut pages = Pages::of(&self.memory);
        // What the kernel has placed is looked at where it is closed.
        self.differing(&mut pages).is_empty() || self.is_difference_anothers()
    }

    /// The patches under which other bytes lie than the file's.
    fn differing(&self, pages: &mut Pages<'_>) -> Vec<&Patch> {
        let differs = |patch: &&Patch| {
            pages.is_mapped(patch.addr)
                && pages.bytes(patch.addr, patch.old.len()).map_or(true, |found| found != patch.old)
        };
        self.armed.iter().flat_map(Armed::patches).filter(differs).collect()
    }

    /// Whether all that differs from the file is another controller's, or a module's that came since: others may have
    /// arrived since our stop. They may be at work this moment: then it is looked at again, at last in a stop of ours.
    fn is_difference_anothers(&self) -> bool {
        const LOOKS: usize = 5;
        for _ in 0..LOOKS {
            if self.is_difference_explained() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        match World::stop_to_leave(self.pid(), TRACER_PATIENCE) {
            Ok(_world) => self.is_difference_explained(),
            Err(why) => matches!(why, Broken::Gone { .. } | Broken::NoProcess { .. } | Broken::Zombie { .. }),
        }
    }

    fn is_difference_explained(&self) -> bool {
        let mut pages = Pages::of(&self.memory);
        let now = image_maps(self.pid()).unwrap_or_default();
        let differing = self.differing(&mut pages);
        differing.into_iter().all(|patch| {
            chain::is_anothers(&self.memory, &mut pages, patch.addr..patch.addr + patch.old.len() as u64)
                || !is_same_place(&self.mappings, &now, patch.addr)
                || self.is_under_breakpoints(&mut pages, patch)
        })
    }
}

impl Session {
    /// Whether nothing differs but where other controllers' records say that the kernel's breakpoint stands.
    fn is_under_breakpoints(&self, pages: &mut Pages<'_>, patch: &Patch) -> bool {
        let Ok(found) = pages.bytes(patch.addr, patch.old.len()) else { return false };
        let differing =
            (patch.addr..).zip(found.iter().zip(&patch.old)).filter(|(_, (found, old))| found != old);
        let sites = stray::others(&self.memory);
        differing.into_iter().all(|(at, (found, _))| *found == BREAKPOINT && sites.contains(&at))
    }
}

/// Whether at `addr` lies the part of a file that lay there before: else its module was unmapped, and what lies there now
/// has nothing to do with us. Without mappings of before it is taken to be the same.
pub(crate) fn is_same_place(before: &[Mapping], now: &[Mapping], addr: u64) -> bool {
    let part = |all: &[Mapping]| {
        let mapping = all.iter().find(|m| m.range.start.0 <= addr && addr < m.range.end.0)?;
        Some((mapping.file?, mapping.offset.0 + (addr - mapping.range.start.0)))
    };
    let was = part(before);
    before.is_empty() || was.is_some() && was == part(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_the_same_only_with_the_same_part_of_the_same_file() {
        let maps = |text: &str| image::maps::parse_maps(text.as_bytes()).unwrap();
        let before = maps("1000-3000 r-xp 00005000 08:01 10 /lib/a.so\n");
        let same = maps("2000-3000 r-xp 00006000 08:01 10 /lib/a.so\n");
        assert!(is_same_place(&before, &same, 0x2800));
        for other in [
            "2000-3000 r-xp 00007000 08:01 10 /lib/a.so\n",
            "2000-3000 r-xp 00006000 08:01 11 /lib/b.so\n",
            "2000-3000 r-xp 00000000 00:00 0 \n",
            "4000-5000 r-xp 00006000 08:01 10 /lib/a.so\n",
        ] {
            assert!(!is_same_place(&before, &maps(other), 0x2800), "{other}");
        }
        assert!(is_same_place(&[], &same, 0x2800), "nothing is known of it");
        assert!(
            !is_same_place(&maps("8000-9000 r-xp 0 08:01 10 /lib/a.so\n"), &same, 0x2800),
            "loaded since"
        );
    }
}
