//! Reading back what a detach has restored.
//!
//! For:     whoever leaves a process, and believes its eyes alone.
//! State:   none.
//! Context: control.
//! Keeps:   V1 text that differs from the file is anothers' only if a jump of another controller is seen there, a
//!             breakpoint that one's record names, or another file.
//! Checked: tests below; testkit `two`; `torture uprobe`, where others come between the detach and the look.

use crate::arch;
use crate::find::maps::{image_maps, mapping_at};
use crate::find::proof::{Gone, Restored};
use crate::hold::world::World;
use crate::kernel::stray;
use crate::leave::leaving::{Leaving, TRACER_PATIENCE};
use crate::patch::chain;
use crate::patch::pages::Pages;
use image::Mapping;
use std::time::{Duration, Instant};

/// How long others' breakpoints may stay that nobody's record names.
const BREAKPOINTS_PATIENCE: Duration = Duration::from_secs(2);

/// What the file has at an address.
type Original<'a> = (u64, &'a [u8]);

/// Reads every site back and compares it with the file. What the kernel has placed is looked at where it is closed.
pub(crate) fn text(left: &Leaving<'_>) -> Option<Restored> {
    let mut pages = Pages::of(left.memory);
    let wrong = differing(originals(left), &mut pages);
    Restored::proven(&wrong).or_else(|| explained(left))
}

/// What stood at the sites of our own.
fn originals<'a>(left: &Leaving<'a>) -> impl Iterator<Item = Original<'a>> {
    let of_jumps = left.links.iter().map(|link| (link.jump_at, &link.jump_original[..]));
    let of_shorts =
        left.links.iter().filter_map(|link| Some((link.site, &link.short_original.as_ref()?[..])));
    of_jumps.chain(of_shorts)
}

/// Those under which other bytes lie than the file's.
fn differing<'a>(all: impl Iterator<Item = Original<'a>>, pages: &mut Pages<'_>) -> Vec<Original<'a>> {
    let differs = |(addr, old): &Original<'_>| {
        pages.is_mapped(*addr) && pages.bytes(*addr, old.len()).map_or(true, |found| found != *old)
    };
    all.filter(differs).collect()
}

/// If all that differs from the file is another controller's, or a module's that came since: others may have
/// arrived since our stop. They may be at work this moment: then it is looked at again, at last in a stop of ours.
fn explained(left: &Leaving<'_>) -> Option<Restored> {
    const LOOKS: usize = 5;
    for _ in 0..LOOKS {
        if let Some(proof) = unexplained(left) {
            return Some(proof);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // The kernel takes others' breakpoints out of one process after the other, each behind a grace period.
    let end = Instant::now() + BREAKPOINTS_PATIENCE;
    while are_breakpoints(left) && Instant::now() < end {
        if let Some(proof) = unexplained(left) {
            return Some(proof);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    match World::stop_to_leave(left.memory.pid, TRACER_PATIENCE) {
        Ok(_world) => unexplained(left),
        // Nothing is there that could differ.
        Err(_) => Gone::proven(left.memory).and_then(|_| Restored::proven::<()>(&[])),
    }
}

/// Whether nothing differs from the file but breakpoints.
fn are_breakpoints(left: &Leaving<'_>) -> bool {
    let mut pages = Pages::of(left.memory);
    let wrong = differing(originals(left), &mut pages);
    wrong.iter().all(|(addr, old)| {
        pages.bytes(*addr, old.len()).is_ok_and(|found| arch::is_but_for_breakpoints(&found, old))
    })
}

fn unexplained(left: &Leaving<'_>) -> Option<Restored> {
    let mut pages = Pages::of(left.memory);
    let now = image_maps(left.memory.pid).ok()?;
    let mut wrong = differing(originals(left), &mut pages);
    wrong.retain(|(addr, old)| {
        !chain::is_anothers(left.memory, &mut pages, *addr..*addr + old.len() as u64)
            && is_same_place(left.before, &now, *addr)
            && !is_under_breakpoints(left, &mut pages, (*addr, old))
    });
    Restored::proven(&wrong)
}

/// Whether nothing differs but where other controllers' records say that the kernel's breakpoint stands.
fn is_under_breakpoints(left: &Leaving<'_>, pages: &mut Pages<'_>, (addr, old): Original<'_>) -> bool {
    let Ok(found) = pages.bytes(addr, old.len()) else { return false };
    let unit = arch::KERNEL_BREAKPOINT.len();
    let both = (addr..).step_by(unit).zip(found.chunks(unit).zip(old.chunks(unit)));
    let mut differing = both.filter(|(_, (found, old))| found != old);
    let sites = stray::others(left.memory);
    differing.all(|(at, (found, _))| *found == arch::KERNEL_BREAKPOINT && sites.contains(&at))
}

/// Whether at `addr` lies the part of a file that lay there before: else its module was unmapped, and what lies there now
/// has nothing to do with us. Without mappings of before it is taken to be the same.
pub(crate) fn is_same_place(before: &[Mapping], now: &[Mapping], addr: u64) -> bool {
    let part = |all: &[Mapping]| {
        let mapping = mapping_at(all, addr)?;
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
