//! Several controllers on one site.
//!
//! For:     a second nanoprobe on a process, and each leaving when it likes.
//! State:   the jump at the site leads to the trampoline that came last; the tail of each leads to the one
//!          before it; the tail of the first is a nop.
//! Context: control, in a stopped world: only one tracer can stop a thread, which keeps controllers apart.
//! Keeps:   N1 every trampoline on the chain counts each hit once.
//!          N2 leaving takes out one link and touches no other controller's counts.
//! Checked: testkit, two controllers on one site that leave in either order.

use crate::error::Broken;
use crate::memory::Memory;
use crate::pages::Pages;
use crate::site::{Armed, Missed};
use text::{JUMP_LEN, Patch, jump, jump_target};
use wire::{TRAMPOLINE_MAGIC, TrampolineHeader};

const HEADER: u64 = size_of::<TrampolineHeader>() as u64;
const NOP5: [u8; JUMP_LEN] = [0x0f, 0x1f, 0x44, 0, 0];
/// More controllers than this on one site are taken for a broken chain.
const LONGEST: usize = 64;

/// Reads the header before a trampoline's entry, if there is one.
fn header(memory: &Memory, entry: u64) -> Option<TrampolineHeader> {
    let bytes = memory.read_vec(entry.checked_sub(HEADER)?, HEADER as usize).ok()?;
    let word = |i: usize| Some(u64::from_le_bytes(bytes.get(i..i + 8)?.try_into().ok()?));
    let half = |i: usize| Some(u32::from_le_bytes(bytes.get(i..i + 4)?.try_into().ok()?));
    let original = bytes.get(24..40)?.try_into().ok()?;
    let header =
        TrampolineHeader { magic: word(0)?, site: word(8)?, tail: half(16)?, patch_len: half(20)?, original };
    (header.magic == TRAMPOLINE_MAGIC).then_some(header)
}

/// Compares what stands at a site with the file. If another controller's jump stands there, ours will go
/// before it: the expected bytes become its jump, and our tail leads to its trampoline.
pub(crate) fn join(
    memory: &Memory,
    pages: &mut Pages<'_>,
    armed: &mut Armed,
) -> Result<Option<Missed>, Broken> {
    let found = pages.bytes(armed.jump.addr, JUMP_LEN)?;
    if found == armed.jump.old {
        let short = armed.short.as_ref().map(|s| (s.addr, s.old.clone()));
        let differs = match short {
            Some((addr, old)) => Some(pages.bytes(addr, old.len())?).filter(|f| *f != old),
            None => None,
        };
        return Ok(differs.map(|found| Missed::Changed { found }));
    }
    let site = armed.plan.addr();
    let theirs = jump_target(armed.jump.addr, &found);
    let is_theirs = |entry: &u64| {
        header(memory, *entry).is_some_and(|h| h.site == site && armed.jump.old[..] == h.original[..JUMP_LEN])
    };
    match theirs.filter(is_theirs) {
        Some(entry) => {
            let tail = armed.trampoline.at + armed.trampoline.tail as u64;
            match jump(tail, entry) {
                Ok(bytes) => memory.write(tail, &bytes)?,
                Err(far) => return Ok(Some(Missed::TooFar(far))),
            }
            Ok(None)
        }
        None => Ok(Some(Missed::Changed { found })),
    }
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
pub(crate) fn leave(memory: &Memory, pages: &mut Pages<'_>, armed: &Armed) -> Result<Left, Broken> {
    let tail = armed.trampoline.at + armed.trampoline.tail as u64;
    let below = jump_target(tail, &memory.read_vec(tail, JUMP_LEN)?);
    let found = pages.bytes(armed.jump.addr, JUMP_LEN)?;
    let entry = armed.trampoline.entry_addr();
    match jump_target(armed.jump.addr, &found) {
        Some(first) if first == entry => match below {
            None => restore(pages, armed),
            Some(below) => redirect(pages, &armed.jump, below),
        },
        Some(first) => unlink(memory, first, entry, below),
        None if found == armed.jump.old => Ok(Left::Restored),
        None => Ok(Left::Foreign),
    }
}

/// The 2-byte jump first: it must never lead to padding.
fn restore(pages: &mut Pages<'_>, armed: &Armed) -> Result<Left, Broken> {
    if let Some(Patch { addr, old, .. }) = &armed.short {
        pages.set(*addr, old)?;
        pages.flush()?;
    }
    pages.set(armed.jump.addr, &armed.jump.old)?;
    Ok(Left::Restored)
}

fn redirect(pages: &mut Pages<'_>, patch: &Patch, below: u64) -> Result<Left, Broken> {
    match jump(patch.addr, below) {
        Ok(bytes) => {
            pages.set(patch.addr, &bytes)?;
            Ok(Left::HandedOver)
        }
        Err(_) => Ok(Left::Foreign),
    }
}

/// Makes the trampoline whose tail leads to `entry` lead to what came below it.
fn unlink(memory: &Memory, first: u64, entry: u64, below: Option<u64>) -> Result<Left, Broken> {
    let mut at = first;
    for _ in 0..LONGEST {
        let Some(node) = header(memory, at) else { return Ok(Left::Foreign) };
        let tail = at + u64::from(node.tail);
        let next = jump_target(tail, &memory.read_vec(tail, JUMP_LEN)?);
        if next == Some(entry) {
            let bytes = match below.map(|b| jump(tail, b)) {
                None => NOP5,
                Some(Ok(bytes)) => bytes,
                Some(Err(_)) => return Ok(Left::Foreign),
            };
            memory.write(tail, &bytes)?;
            return Ok(Left::HandedOver);
        }
        match next {
            Some(next) => at = next,
            None => return Ok(Left::Foreign),
        }
    }
    Ok(Left::Foreign)
}
