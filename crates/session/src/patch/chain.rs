//! Several controllers on one site.
//!
//! For:     a second nanoprobe on a process, and each leaving when it likes.
//! State:   the jump at the site leads to the trampoline that came last; the tail of each leads to the one
//!          before it; the tail of the first is a nop.
//! Context: control, in a stopped world: only one tracer can stop a thread, which keeps controllers apart.
//!          What the kernel places is placed in such a stop too (kernel.rs).
//! Keeps:   N1 every trampoline on the chain counts each hit once.
//!          N2 leaving takes out one link and touches no other controller's counts.
//!          N3 unless they stand at one place, no two controllers' jumps share a byte, nor does one stand in what
//!             another has displaced.
//!          N4 while a thread is in a trampoline that has left the chain, its tail leads to what is there.
//!          N5 no jump is written over the place where such a thread will come out.
//!          N6 no kernel breakpoint and no jump share a byte.
//!          N7 a tail reaches all trampolines below it: whichever leaves, the one above can lead to the one below.
//! Checked: tests below (N7); testkit `crowd` (N3 to N6); testkit `two`, controllers on one site that leave in either order; `tests/uprobe_live.rs` of torture, an
//!          entry and a tail jump (N3); `torture uprobe`, whose target crashes without N4.

use crate::arch;
use crate::enter::footing::Footing;
use crate::enter::occupants::is_occupied;
use crate::facts::error::Broken;
use crate::facts::site::{Armed, Link, Missed};
use crate::find::maps::image_maps;
use crate::find::memory::Memory;
use crate::hold::world::World;
use crate::patch::pages::{Pages, is_under_kernel};
use insn::Unreachable;
use std::collections::BTreeMap;
use std::ops::Range;
use text::{JUMP_LEN, NO_JUMP, jump, jump_target};
use wire::TrampolineHeader;

/// More controllers than this on one site are taken for a broken chain.
const LONGEST: usize = 64;

/// Reads the header before a trampoline's entry, if there is one.
fn header(memory: &Memory, entry: u64) -> Option<TrampolineHeader> {
    let len = TrampolineHeader::LEN;
    TrampolineHeader::parse(&memory.read_vec(entry.checked_sub(len as u64)?, len).ok()?)
}

/// The trampoline that a jump to `to` ends in, and its header: there, or behind one more jump.
fn trampoline_at(memory: &Memory, to: u64) -> Option<(u64, TrampolineHeader)> {
    let direct = header(memory, to).map(|h| (to, h));
    direct.or_else(|| {
        let on = jump_target(to, &memory.read_vec(to, JUMP_LEN).ok()?)?;
        Some((on, header(memory, on)?))
    })
}

/// Whether a jump of another controller covers one of these bytes: it may begin among them, or before them.
pub(crate) fn is_anothers(memory: &Memory, pages: &mut Pages<'_>, range: Range<u64>) -> bool {
    const BESIDE: u64 = JUMP_LEN as u64 - 1;
    // What lies beside may be on a page that is not there; then no jump stands across.
    let from = range.start - if pages.is_mapped(range.start - BESIDE) { BESIDE } else { 0 };
    let beyond = if pages.is_mapped(range.end + BESIDE - 1) { BESIDE } else { 0 };
    let len = (range.end - from) as usize;
    let Ok(bytes) = pages.bytes(from, len + beyond as usize) else { return false };
    (0..len).filter(|i| arch::may_be_jump(from + *i as u64, bytes[*i])).any(|i| {
        let (at, rest) = (from + i as u64, &bytes[i..]);
        if let Some(entry) = jump_target(at, rest) {
            return trampoline_at(memory, entry).is_some_and(|(_, h)| h.jump_at == at);
        }
        // A 2-byte jump covers two bytes alone.
        let Some(island) = arch::short_jump_target(at, rest).filter(|_| at + 2 > range.start) else {
            return false;
        };
        let entry = pages.bytes(island, JUMP_LEN).ok().and_then(|jump| jump_target(island, &jump));
        entry.and_then(|entry| header(memory, entry)).is_some_and(|h| h.site == at && h.has_short == 1)
    })
}

/// Compares what stands at a site with the file. If another controller's jump stands there, ours will go
/// before it: the expected bytes become its jump, and our tail leads to its trampoline. A jump that can lead to one
/// address only is no link of a chain: its bytes stay as they are.
pub(crate) fn join(
    memory: &Memory,
    pages: &mut Pages<'_>,
    others: &Others,
    armed: &mut Armed,
) -> Result<Option<Missed>, Broken> {
    if others.come_out_in(armed) {
        return Ok(Some(Missed::Leaving));
    }
    if armed.plan.covered().any(|range| others.displace(&range, Some(armed.plan.addr()))) {
        return Ok(Some(Missed::OtherHook));
    }
    let found = pages.bytes(armed.jump.addr, JUMP_LEN)?;
    if found == armed.jump.old {
        let short = armed.short.as_ref().map(|s| (s.addr, s.old.clone()));
        let differs = match short {
            Some((addr, old)) => Some(pages.bytes(addr, old.len())?).filter(|f| *f != old),
            None => None,
        };
        if let Some(found) = differs {
            return Ok(Some(changed(found, armed.short.as_ref().map_or(&[], |short| &short.old))));
        }
        if armed.is_out {
            // Whoever was below us when our jump was last here has gone.
            memory.write(armed.trampoline.tail_addr(), &NO_JUMP)?;
        }
        let mut covered = armed.plan.covered();
        if covered.any(|range| is_anothers(memory, pages, range)) {
            return Ok(Some(Missed::OtherHook));
        }
        // A breakpoint behind the jump would be passed by, were what it stands on run elsewhere.
        let (at, file) = armed.plan.displaced_behind();
        let found = pages.bytes(at, file.len())?;
        return Ok((found != file).then(|| changed(found, &file)));
    }
    let site = armed.plan.addr();
    let theirs = jump_target(armed.jump.addr, &found);
    let hook = u16::from(armed.plan.placement.hooks[0].offset);
    let theirs = theirs.and_then(|entry| Some((entry, header(memory, entry)?)));
    let theirs = theirs.filter(|(_, h)| h.site == site && armed.jump.old[..] == h.jump_original);
    match theirs {
        Some((_, h)) if h.hook != hook || armed.plan.placement.hooks.len() > 1 => Ok(Some(Missed::OtherHook)),
        Some((entry, h)) => {
            let tail = armed.trampoline.tail_addr();
            let Some(bodies) = bodies(memory, entry, &h)? else { return Ok(Some(Missed::OtherHook)) };
            match lead(tail, &bodies) {
                Ok(bytes) => memory.write(tail, &bytes)?,
                Err(far) => return Ok(Some(Missed::TooFar(far))),
            }
            Ok(None)
        }
        None => Ok(Some(changed(found, &armed.jump.old))),
    }
}

/// Where the probes' code begins in all trampolines of the chain that begins at `entry`; `None` if it cannot be followed to
/// its end, or has no room for one more.
fn bodies(memory: &Memory, entry: u64, first: &TrampolineHeader) -> Result<Option<Vec<u64>>, Broken> {
    let (mut at, mut node) = (entry, *first);
    let mut found = Vec::new();
    while found.len() + 1 < LONGEST {
        found.push(at + u64::from(node.body));
        let tail = at + u64::from(node.tail);
        let Some(next) = jump_target(tail, &memory.read_vec(tail, JUMP_LEN)?) else { return Ok(Some(found)) };
        at = next.wrapping_sub(u64::from(node.body));
        let Some(below) = header(memory, at).filter(|h| h.site == first.site) else { return Ok(None) };
        node = below;
    }
    Ok(None)
}

/// The tail of a trampoline that comes before these. It may have to lead to each of them, when those between have left:
/// two that both reach the site need not reach each other.
fn lead(tail: u64, bodies: &[u64]) -> Result<[u8; JUMP_LEN], Unreachable> {
    bodies.iter().try_for_each(|body| jump(tail, *body).map(drop))?;
    // What runs before the probe has run in our copy already.
    bodies.first().map_or(Ok(NO_JUMP), |body| jump(tail, *body))
}

/// Why bytes differ from the file's.
fn changed(found: Vec<u8>, file: &[u8]) -> Missed {
    match arch::has_breakpoint(&found, file) {
        true => Missed::Breakpoint,
        false => Missed::Changed { found },
    }
}

/// Whether the kernel may put its breakpoint on the instruction that is `original` in the file. One that stands there
/// already, a debugger's or another probe's, it shares.
///
/// # Errors
/// Why not.
pub(crate) fn check_for_kernel(
    memory: &Memory,
    pages: &mut Pages<'_>,
    others: &Others,
    (site, original): (u64, &[u8]),
) -> Result<Breakpoint, Missed> {
    let found = pages.bytes(site, original.len()).unwrap_or_default();
    let range = site..site + original.len() as u64;
    // Of a punned jump the last bytes are the file's: it may begin before.
    if is_anothers(memory, pages, range.clone()) || others.displace(&range, None) {
        return Err(Missed::UnderJump);
    }
    match (found.as_slice(), original) {
        (found, original) if found == original => Ok(Breakpoint::Ours),
        (found, original) if is_under_kernel(found, original) => Ok(Breakpoint::Shared),
        _ => Err(Missed::Changed { found }),
    }
}

/// Whose the breakpoint is that the kernel places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Breakpoint {
    /// It comes and goes with us.
    Ours,
    /// It was there before.
    Shared,
}

/// What the trampolines of other controllers have to do with the sites that we are about to arm.
#[derive(Debug, Default)]
pub(crate) struct Others {
    /// Where threads will come out that are in trampolines which lead to no site any more. Ascending.
    ///
    /// Those have left, or were killed and their sites restored, and wait for these threads. The text there is the file's: a
    /// jump could be written over the place. Return addresses are no such places: they are instructions' starts for all.
    ends: Vec<u64>,
    /// What runs elsewhere with the jumps that stand: it may be more than they cover. Ascending.
    displaced: Vec<Range<u64>>,
}

impl Others {
    /// Looks at all trampolines of others: those whose window ends inside one of `ours` and to which no jump leads, and those
    /// near one of `ours`, or of the places that the kernel is to probe, whose jump stands.
    pub fn find(
        memory: &Memory,
        pages: &mut Pages<'_>,
        own: u64,
        world: &World,
        ours: (&[Armed], &[u64]),
    ) -> Result<Others, Broken> {
        let mappings = image_maps(memory.pid)?;
        let others = Footing::all(memory, &mappings).into_iter().map(|found| found.footing);
        let (jumps, kernels) = ours;
        let mut near: Vec<u64> =
            jumps.iter().map(|armed| armed.plan.addr()).chain(kernels.iter().copied()).collect();
        near.sort_unstable();
        // Ours may begin before it, and displace some of it.
        let is_near = |header: &TrampolineHeader| {
            let after = near.partition_point(|at| *at < end_of(header));
            after.checked_sub(1).is_some_and(|last| near[last] + u64::from(u8::MAX) > header.site)
        };
        let mut windows: Vec<Range<u64>> =
            jumps.iter().map(Armed::interior).filter(|w| !w.is_empty()).collect();
        windows.sort_unstable_by_key(|window| window.start);
        let is_inside = |end: u64| {
            let after = windows.partition_point(|window| window.start <= end);
            after.checked_sub(1).is_some_and(|last| end < windows[last].end)
        };
        let (mut ends, mut displaced) = (Vec::new(), Vec::new());
        for other in others.filter(|other| other.arena.start != own) {
            // One that is still being mapped has nobody inside.
            let Ok(code) = other.read_code(memory) else { continue };
            let close = code
                .trampolines()
                .map(|(_, header)| header)
                .filter(|header| is_near(header) || is_inside(end_of(header)));
            let (stand, left): (Vec<_>, Vec<_>) =
                close.partition(|header| is_anothers(memory, pages, header.site..header.site + 1));
            displaced.extend(stand.iter().map(|header| header.site..end_of(header)));
            let left: Vec<u64> = left.iter().map(end_of).filter(|end| is_inside(*end)).collect();
            if !left.is_empty() && is_occupied(memory, world, &other, &mappings) {
                ends.extend(left);
            }
        }
        ends.sort_unstable();
        displaced.sort_unstable_by_key(|range| range.start);
        Ok(Others { ends, displaced })
    }

    /// Whether a thread will come out inside this one's window.
    pub fn come_out_in(&self, armed: &Armed) -> bool {
        let interior = armed.interior();
        let first = self.ends.partition_point(|end| *end < interior.start);
        self.ends.get(first).is_some_and(|end| *end < interior.end)
    }

    /// Whether one of them runs a byte of `range` elsewhere, but for one that stands at `site` itself: a probe there would be
    /// passed by.
    pub fn displace(&self, range: &Range<u64>, site: Option<u64>) -> bool {
        let before = &self.displaced[..self.displaced.partition_point(|other| other.start < range.end)];
        let near = before.iter().rev().take_while(|other| other.start + u64::from(u8::MAX) > range.start);
        near.into_iter().any(|other| Some(other.start) != site && range.start < other.end)
    }
}

/// Where a thread goes on that has run a trampoline's displaced instructions.
fn end_of(header: &TrampolineHeader) -> u64 {
    header.site.wrapping_add(u64::from(header.window))
}

/// What became of one site when its probe was taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// The original bytes are back.
    Restored,
    /// Another controller's jump stands there and goes on.
    HandedOver,
    /// Neither our jump nor one that leads to us: somebody else changed it.
    Foreign,
}

/// Takes one site's probe out.
///
/// `tail` are the bytes of the trampoline's tail as they are now.
pub(crate) fn leave(
    memory: &Memory,
    pages: &mut Pages<'_>,
    link: &Link<'_>,
    tail: &[u8],
) -> Result<Left, Broken> {
    let below = jump_target(link.tail, tail);
    let found = pages.bytes(link.jump_at, JUMP_LEN)?;
    // Before all else: the original may be a jump itself. A forked child may have been made before we armed, with a
    // breakpoint of another's kernel probe, which that one takes out: verify.rs has a word in that.
    if found == link.jump_original || arch::is_but_for_breakpoints(&found, &link.jump_original) {
        return Ok(Left::Restored);
    }
    match jump_target(link.jump_at, &found) {
        Some(first) if first == link.entry || Some(first) == link.landing => match below {
            None => restore(pages, link),
            // The copies of what runs before the probe are equally long in all trampolines of a site.
            Some(below) => redirect(pages, link.jump_at, below - (link.body - link.entry)),
        },
        Some(first) => unlink(memory, first, link, below),
        // The same child, where another's jump begins beside.
        None if is_anothers(memory, pages, link.jump_at..link.jump_at + JUMP_LEN as u64) => {
            Ok(Left::HandedOver)
        }
        None => Ok(Left::Foreign),
    }
}

/// The 2-byte jump first: it must never lead to padding.
fn restore(pages: &mut Pages<'_>, link: &Link<'_>) -> Result<Left, Broken> {
    if let Some(short) = &link.short_original {
        pages.set(link.site, short)?;
        pages.flush()?;
    }
    pages.set(link.jump_at, &link.jump_original)?;
    Ok(Left::Restored)
}

fn redirect(pages: &mut Pages<'_>, at: u64, below: u64) -> Result<Left, Broken> {
    match jump(at, below) {
        Ok(bytes) => {
            pages.set(at, &bytes)?;
            Ok(Left::HandedOver)
        }
        Err(_) => Ok(Left::Foreign),
    }
}

/// Makes the trampoline whose tail leads to `link` lead to what came below it.
fn unlink(memory: &Memory, first: u64, link: &Link<'_>, below: Option<u64>) -> Result<Left, Broken> {
    let mut at = first;
    for _ in 0..LONGEST {
        let Some((entry, node)) = trampoline_at(memory, at) else { return Ok(Left::Foreign) };
        at = entry;
        let tail = at + u64::from(node.tail);
        let next = jump_target(tail, &memory.read_vec(tail, JUMP_LEN)?);
        if next == Some(link.body) {
            let bytes = match below.map(|b| jump(tail, b)) {
                None => NO_JUMP,
                Some(Ok(bytes)) => bytes,
                Some(Err(_)) => return Ok(Left::Foreign),
            };
            memory.write(tail, &bytes)?;
            return Ok(Left::HandedOver);
        }
        match next {
            // All of one chain run equally much before the probe; a chain that we never joined may run less than we.
            Some(next) => at = next.wrapping_sub(u64::from(node.body)),
            // A whole chain, and nothing in it leads to us: the module was unmapped and mapped again since.
            None if memory.read_vec(tail, JUMP_LEN)? == NO_JUMP => return Ok(Left::HandedOver),
            None => return Ok(Left::Foreign),
        }
    }
    Ok(Left::Foreign)
}

/// Makes the tails of all other controllers' trampolines that lead to one of `links` lead to what came below it.
///
/// On the chain there is none any more. But one that has left the chain may still have a thread in it, and waits for it:
/// that thread goes on at its tail.
pub(crate) fn forget(
    memory: &Memory,
    footing: &Footing,
    links: &[Link<'_>],
    below: impl Fn(&Link<'_>) -> Option<u64>,
) -> Result<(), Broken> {
    let others = Footing::all(memory, &image_maps(memory.pid)?).into_iter().map(|found| found.footing);
    let others: Vec<Footing> = others.filter(|o| o.arena.start != footing.arena.start).collect();
    if others.is_empty() {
        return Ok(());
    }
    let ours: BTreeMap<u64, Option<u64>> = links.iter().map(|l| (l.body, below(l))).collect();
    for other in others {
        // One that is still being mapped leads nowhere.
        let Ok(code) = other.read_code(memory) else { continue };
        for (entry, header) in code.trampolines() {
            let tail = entry + u64::from(header.tail);
            let leads_to = jump_target(tail, code.bytes(tail, JUMP_LEN));
            let Some(below) = leads_to.and_then(|body| ours.get(&body)) else { continue };
            let bytes = below.and_then(|b| jump(tail, b).ok()).unwrap_or(NO_JUMP);
            memory.write(tail, &bytes)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::TRAMPOLINE_MAGIC;

    const TAIL: u16 = 16;
    const SITE: u64 = 0x40_0000;

    /// Writes a trampoline with its entry there, and the bytes of its tail.
    fn put(memory: &Memory, entry: u64, tail: [u8; JUMP_LEN]) -> TrampolineHeader {
        let header = TrampolineHeader {
            magic: TRAMPOLINE_MAGIC,
            site: SITE,
            jump_at: SITE,
            semaphore: 0,
            tail: TAIL,
            window: 5,
            body: 0,
            hook: 0,
            jump_original: NO_JUMP,
            short_original: [0; 2],
            has_short: 0,
        };
        memory.write(entry - TrampolineHeader::LEN as u64, &header.bytes()).unwrap();
        memory.write(entry + u64::from(TAIL), &tail).unwrap();
        header
    }

    #[test]
    fn who_reaches_the_first_of_a_chain_and_not_the_last_does_not_join() {
        let mut buffer = vec![0u8; 3 * 4096];
        let (bottom, top) = (buffer.as_mut_ptr() as u64 + 64, buffer.as_mut_ptr() as u64 + 8192);
        let memory = Memory::open(sys::getpid().cast_signed()).unwrap();
        put(&memory, bottom, NO_JUMP);
        let first = put(&memory, top, jump(top + u64::from(TAIL), bottom).unwrap());
        let found = bodies(&memory, top, &first).unwrap().unwrap();
        assert_eq!(found, [top, bottom]);
        let near = top + (1 << 20);
        assert_eq!(lead(near, &found), jump(near, top));
        // Within reach of the upper one alone: when that leaves, the tail could not lead to the lower one.
        let far = bottom + if cfg!(target_arch = "aarch64") { 128 << 20 } else { 1 << 31 } + 1024;
        assert!(jump(far, top).is_ok() && lead(far, &found).is_err());
        assert_eq!(buffer.len(), 3 * 4096);
    }

    #[test]
    fn a_chain_that_cannot_be_followed_or_has_no_end_is_not_joined() {
        let mut buffer = vec![0u8; 2 * 4096];
        let entry = buffer.as_mut_ptr() as u64 + 64;
        let memory = Memory::open(sys::getpid().cast_signed()).unwrap();
        let first = put(&memory, entry, jump(entry + u64::from(TAIL), entry).unwrap());
        assert_eq!(bodies(&memory, entry, &first).unwrap(), None);
        put(&memory, entry, jump(entry + u64::from(TAIL), entry + 2048).unwrap());
        assert_eq!(bodies(&memory, entry, &first).unwrap(), None);
        assert_eq!(buffer.len(), 2 * 4096);
    }
}
