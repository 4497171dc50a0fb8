//! Taking out probes whose controller was killed.
//!
//! For:     `nanoprobe recover`, the front when its engine was killed, and every attach.
//! State:   all in the target: the arena's header, a header before each trampoline, the journal of a soft watch.
//! Context: control.
//! Keeps:   R1 probes of a controller that lives are left alone.
//!          R2 what is found is left as a detach leaves it, except that threads inside trampolines are
//!             waited for and not moved; its forked children too.
//!          R3 no breakpoint that the kernel could not take out is passed over in silence.
//! Checked: testkit `traces`, `kernel`, `endings`.

use crate::enter::belief::Originals;
use crate::enter::footing::{Code, Footing};
use crate::facts::error::Broken;
use crate::facts::site::Link;
use crate::find::maps::image_maps;
use crate::find::memory::Memory;
use crate::find::process;
use crate::find::proof::{Restored, Unmapped};
use crate::hold::foothold::Foothold;
use crate::hold::remote::Remote;
use crate::hold::tracer::apart;
use crate::hold::world::{Hurry, World};
use crate::kernel::stray;
use crate::leave::heirs;
use crate::leave::leaving::Leaving;
use crate::leave::receipt::{Receipt, Residue};
use crate::leave::unwatch;
use std::fs;
use std::path::Path;
use std::time::Instant;
use text::JUMP_LEN;
use wire::{KernelSite, TrampolineHeader};

/// How often others may change what we look at, before what cannot be read is an error.
const OTHERS_MAX: usize = 16;

/// Frees `pid` of the probes and the page protection of controllers that are gone; a receipt for each.
///
/// # Errors
/// The process cannot be entered.
pub fn recover(pid: i32) -> Result<Vec<Receipt>, Broken> {
    let mut receipts = recover_quickly(pid)?;
    // A controller that died in the middle of its first stop may have left no more than this.
    if receipts.is_empty() {
        receipts.extend(apart(|| close_arenas(pid))?);
    }
    Ok(receipts)
}

/// The same, but for descriptors of a controller that left nothing else. There may be many to look at.
pub(crate) fn recover_quickly(pid: i32) -> Result<Vec<Receipt>, Broken> {
    process::check_process(pid)?;
    let _hurry = Hurry::begin();
    apart(|| recover_here(pid))
}

/// Another may find the same orphan, and take it away while it is read here: what is left is then looked at anew.
fn recover_here(pid: i32) -> Result<Vec<Receipt>, Broken> {
    let mut receipts = unwatch::recover(pid)?;
    for _ in 0..OTHERS_MAX {
        let mappings = image_maps(pid)?;
        let done = recover_orphans(pid, &mappings, &mut receipts);
        // Any change will do: it unmaps one region after the other, and a newcomer's may be where they were.
        if done.is_ok() || mappings == image_maps(pid)? {
            return done.map(|()| receipts);
        }
    }
    recover_orphans(pid, &image_maps(pid)?, &mut receipts).map(|()| receipts)
}

fn is_ours(mapping: &image::Mapping) -> bool {
    let marker = format!("/memfd:{}", wire::ARENA_NAME);
    mapping.path.as_os_str().as_encoded_bytes().starts_with(marker.as_bytes())
}

fn recover_orphans(pid: i32, mappings: &[image::Mapping], receipts: &mut Vec<Receipt>) -> Result<(), Broken> {
    let memory = Memory::open(pid)?;
    let orphans = Footing::all(&memory, mappings).into_iter().filter(|f| !f.is_alive());
    for orphan in orphans {
        let foothold = Foothold::find(&memory, mappings)?;
        let links = links(&memory, &orphan.footing, Originals::of(pid, mappings));
        // Its controller may have left in order after we looked, or another have recovered it, and a newcomer's be read.
        if !orphan.footing.stands(&image_maps(pid)?) {
            continue;
        }
        let links = links?;
        let began = Instant::now();
        let mut receipt = Receipt::default();
        free_of_kernel(&memory, &orphan.footing, &mut receipt)?;
        let (footing, foothold) = (&orphan.footing, &foothold);
        let leaving = Leaving { memory: &memory, before: &[], links: &links, footing, foothold };
        match leaving.leave_or_see_end(&mut receipt) {
            // Another has done it.
            Err(_) if !footing.stands(&image_maps(pid)?) => continue,
            Ok(()) if receipt.residues.contains(&Residue::Displaced) => continue,
            other => other?,
        }
        heirs::free(&leaving, orphan.inode, &mut receipt);
        close_arenas(pid)?;
        receipt.took = began.elapsed();
        receipts.push(receipt);
    }
    Ok(())
}

/// Whether there is anything of a nanoprobe in a process, be its controller dead or alive.
pub fn is_marked(pid: i32) -> bool {
    image_maps(pid).is_ok_and(|mappings| mappings.iter().any(is_ours)) || !open_arenas(pid).is_empty()
}

/// Closes what a controller has left open in the process that died before it closed it; a receipt if there was something.
fn close_arenas(pid: i32) -> Result<Option<Receipt>, Broken> {
    if open_arenas(pid).is_empty() {
        return Ok(None);
    }
    let began = Instant::now();
    let memory = Memory::open(pid)?;
    let foothold = Foothold::find(&memory, &image_maps(pid)?)?;
    let mut receipt = Receipt::default();
    let mut world = World::stop(pid)?;
    memory.check()?;
    // Now: no living controller is in the middle of its first stop.
    let left = open_arenas(pid);
    if !left.is_empty() {
        let mut remote = Remote::begin(&mut world, &memory, &foothold)?;
        let closed = Unmapped::proven(left.iter().map(|fd| remote.close(*fd)))?;
        // It had come no further: no text was changed.
        receipt.is_left(Restored::proven::<()>(&[]), Some(closed));
    }
    receipt.longest_stall = world.resume();
    receipt.took = began.elapsed();
    Ok((!left.is_empty()).then_some(receipt))
}

/// Descriptors of arenas that a process has open.
fn open_arenas(pid: i32) -> Vec<u64> {
    let marker = format!("/memfd:{} (deleted)", wire::ARENA_NAME);
    let is_arena = |path: &Path| fs::read_link(path).is_ok_and(|to| to.as_os_str() == marker.as_str());
    let entries = fs::read_dir(format!("/proc/{}/fd", process::living(pid))).into_iter().flatten().flatten();
    let arenas = entries.filter(|entry| is_arena(&entry.path()));
    arenas.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Takes out what the kernel placed and could not take out when its owner was killed.
fn free_of_kernel(memory: &Memory, footing: &Footing, receipt: &mut Receipt) -> Result<(), Broken> {
    let code = footing.read_code(memory)?;
    let sites: Vec<KernelSite> = code.kernel_sites().take(stray::SITES_MAX).collect();
    let left = stray::mend(memory, &sites);
    receipt.restored += sites.len() - left.len();
    receipt.breakpoints.extend(left);
    Ok(())
}

/// Every trampoline in the regions, by its header, if a controller can have written that.
fn links(
    memory: &Memory,
    footing: &Footing,
    mut originals: Originals<'_>,
) -> Result<Vec<Link<'static>>, Broken> {
    let code = footing.read_code(memory)?;
    let with_landing =
        |(entry, header)| Link { landing: landing(&code, &header, entry), ..link(entry, &header) };
    let believed = code.trampolines().filter(|(_, header)| originals.justify(header));
    Ok(believed.map(with_landing).collect())
}

/// Where the jump at the site leads if all its bytes but the first are the file's, and that is to this trampoline.
fn landing(code: &Code, header: &TrampolineHeader, entry: u64) -> Option<u64> {
    // No branch of AArch64 has bytes of its original in it.
    let distance = header.jump_original.get(1..5)?;
    let distance = i64::from(i32::from_le_bytes(distance.try_into().ok()?));
    let at = header.jump_at.wrapping_add(JUMP_LEN as u64).wrapping_add_signed(distance);
    (text::jump_target(at, code.bytes(at, JUMP_LEN)) == Some(entry)).then_some(at)
}

fn link(entry: u64, header: &TrampolineHeader) -> Link<'static> {
    Link {
        name: "a site of a controller that is gone",
        site: header.site,
        entry,
        landing: None,
        body: entry + u64::from(header.body),
        tail: entry + u64::from(header.tail),
        jump_at: header.jump_at,
        jump_original: header.jump_original,
        short_original: (header.has_short == 1).then_some(header.short_original),
        has_semaphore: header.semaphore != 0,
        trampoline: None,
    }
}
