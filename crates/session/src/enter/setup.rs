//! The first stop of an attach: what it finds out, and what it maps.
//!
//! For:     `Session::attach`.
//! State:   what is mapped and not yet a session's.
//! Context: control.
//! Keeps:   U1 the process runs nothing of ours yet: nothing is patched here.
//! Checked: testkit `counting`, `traces`.

use crate::arch;
use crate::enter::arena::{Counts, Layout};
use crate::enter::clock;
use crate::enter::fence::Fence;
use crate::enter::region::{Regions, Wish};
use crate::enter::walks::{Made, Places, STACK_CELLS};
use crate::facts::error::Broken;
use crate::facts::room::Attach;
use crate::facts::site::{Action, SitePlan};
use crate::find::filter;
use crate::find::memory::Memory;
use crate::find::process;
use crate::find::threads;
use crate::hold::foothold::Foothold;
use crate::hold::remote::Remote;
use crate::hold::world::World;
use crate::plan::puns::Puns;
use image::Mapping;
use insn::Rung;
use std::time::Duration;
use sys::ptrace;
use text::Trampoline;

/// Modules that lie within this distance share a region.
const NEIGHBOURHOOD: u64 = if cfg!(target_arch = "aarch64") { 32 << 20 } else { 1 << 30 };
/// Runs of pages for punned jumps.
pub(crate) const PUNS_MAX: usize = wire::REGIONS_MAX / 2;
/// Bytes of trampolines; a region has more than these.
const CODE_BYTES_MAX: u64 = wire::REGIONS_BYTES_MAX / 4 * 3;
/// Room for the trampoline of a probe that comes later: most take half of it, and places are given out in powers of two.
const PROBE_BYTES: u64 = 2048;
/// Room for the record of a site that the kernel probes.
pub(crate) const RECORD_LEN: u64 = 64;
/// The mode in which Linux takes the time stamp counter away too.
const SECCOMP_STRICT: u32 = 1;

/// What the first stop finds out and makes.
pub(crate) struct SetUp {
    pub regions: Option<Regions>,
    pub rseq_offset: Option<i32>,
    pub foothold: Foothold,
    /// Where a thread's block holds its own address.
    pub self_offset: i32,
    pub stall: Duration,
    pub ns_per_tick: u64,
    /// Programs may read the counter as a clock.
    pub has_counter: bool,
    /// Whether helpers may make system calls.
    pub calls: Asking,
    pub tid_offset: u64,
    /// How fences are made in the process.
    pub fence: Fence,
    /// For walks of stacks: tables, and where stacks are.
    pub walks: Option<(Made, Places)>,
}

impl SetUp {
    pub fn enter(
        memory: &Memory,
        mappings: &[Mapping],
        sites: &[SitePlan],
        by_kernel: &[SitePlan],
        puns: &Puns,
        attach: &Attach,
    ) -> Result<SetUp, Broken> {
        let Attach { room, programs, family, .. } = attach;
        let foothold = Foothold::find(memory, mappings)?;
        let cells: u32 = sites.iter().map(SitePlan::cells).sum();
        let general = sites.iter().flat_map(|s| &s.actions).filter(|a| **a != Action::Count).count();
        let consumers: usize = sites.iter().map(|s| s.consumers().count()).sum();
        let has_frames = sites.iter().any(|s| s.opens().or(s.traces()).is_some());
        let has_rings = sites.iter().any(|s| s.traces().is_some());
        let (consumers, cells) = (consumers + room.consumers, cells as usize + room.cells);
        // Made while the process runs: of a large program it takes a while.
        let walks = programs.walk() || sites.iter().any(SitePlan::walks);
        let made = walks.then(|| Made::of(memory, |_| false));
        let walk_bytes = made.as_ref().map_or(0, Made::object_bytes);
        let cells = cells + if made.is_some() { STACK_CELLS as usize } else { 0 };
        // Without a jump of ours, a region all the same: it has records of what the kernel places.
        let mut wishes = wishes(sites.iter().chain(by_kernel));
        let later = programs.placed_len() as u64 + 64 + room.probes as u64 * PROBE_BYTES;
        wishes.iter_mut().for_each(|wish| wish.bytes += later);
        let counts = Counts {
            hooks: general + room.hooks(),
            consumers,
            cell_bytes: cells * 8,
            has_frames,
            has_rings,
            programs: programs.len() * wishes.len(),
            scratch: programs.scratch(),
            // What others have too has a mapping of its own.
            maps: if family.is_some() { 0 } else { programs.maps_len() },
            walk_bytes,
        };
        let layout = Layout::new(percpu::possible_cpus() as usize, &counts);
        if let Some(wish) = wishes.get(wire::REGIONS_MAX - PUNS_MAX) {
            return Err(Broken::NoRoom { module: wish.module.clone(), bytes: wish.bytes });
        }
        let bytes: u64 = wishes.iter().map(|wish| wish.bytes).sum();
        if bytes > CODE_BYTES_MAX {
            return Err(Broken::TooMuchCode { bytes, most: CODE_BYTES_MAX });
        }
        // Where nothing can be armed, no program has a description either.
        let has_clock = !wishes.is_empty() && programs.asks_the_time() && clock::is_clock_of(memory.pid)?;
        let are_threads_plain = !threads::are_made_by_hand(memory, mappings);
        let mut world = World::stop(memory.pid)?;
        memory.check()?;
        let is_strict =
            |tid| process::Status::of_any(tid).is_ok_and(|s| s.is_some_and(|s| s.seccomp == SECCOMP_STRICT));
        if has_frames && world.threads().any(|t| is_strict(t.tid)) {
            return Err(Broken::NoClock { pid: memory.pid });
        }
        let calls = match programs.is_empty() {
            true => Asking::Nothing,
            false => calls(memory.pid, &world, programs.changes())?,
        };
        let has_clock = has_clock && !world.threads().any(|t| is_strict(t.tid));
        let rseq_offset = world.threads().next().and_then(|t| rseq_offset(t.tid, t.regs.thread_pointer()));
        let self_offset =
            world.threads().next().and_then(|t| threads::self_offset(memory, t.regs.thread_pointer()));
        let rseq_offset = rseq_offset.filter(|_| self_offset.is_some() && are_threads_plain);
        let self_offset = self_offset.unwrap_or_default();
        let needs_tid = has_rings || !programs.is_empty() || made.is_some();
        let tid_offset = if needs_tid { tid_offset(memory, &world) } else { 0 };
        let walks = made.map(|made| (made, Places::find(memory, &world, mappings, tid_offset)));
        let threads = world.threads().count() + world.sleepers().count();
        let (regions, fence, has_counter) = {
            let mut remote = Remote::begin(&mut world, memory, &foothold)?;
            let room = (programs.placed_len() as u64, family.as_ref());
            let regions = Regions::map(&mut remote, memory, mappings, layout, &wishes, &puns.pages, room)?;
            let fence = fence(&mut remote, memory, &regions, general + attach.room.probes, threads);
            let asked = fence.and_then(|fence| {
                if !has_clock {
                    return Ok((fence, false));
                }
                // A word of a program's description, which is written later.
                let scratch = regions.arena.remote + regions.arena.layout.program(0) as u64;
                Ok((fence, !clock::is_trapped(&mut remote, memory, scratch)?))
            });
            match asked {
                Ok((fence, has_counter)) => (regions, fence, has_counter),
                Err(why) => return Err(unmade(&mut remote, memory.pid, &regions, why)),
            }
        };
        let stall = world.resume();
        let regions = Some(regions);
        Ok(SetUp {
            regions,
            rseq_offset,
            self_offset,
            foothold,
            stall,
            ns_per_tick: 0,
            has_counter,
            calls,
            tid_offset,
            fence,
            walks,
        })
    }
}

/// Whether helpers of programs may make system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asking {
    /// They may not: a seccomp filter could end the process for one.
    Nothing,
    /// They may, as long as each thread has so many filters: all of them let these calls through.
    Filtered(u32),
}

/// Whether helpers may make system calls, in a process that stands.
fn calls(pid: i32, world: &World, with_changes: bool) -> Result<Asking, Broken> {
    let Some(number) = process::filters(pid)? else { return Ok(Asking::Nothing) };
    let mut filter = Box::new([ptrace::SockFilter::default(); ptrace::FILTER_MAX]);
    let made = filter::of_helpers(with_changes);
    let mut lets_through = |tid: i32, number: u32| {
        let len = ptrace::seccomp_filter(tid, number as usize, &mut filter).unwrap_or(0);
        let read = filter.get(..len).unwrap_or_default();
        made.iter().all(|call| filter::allows(read, call))
    };
    let are_all = world.threads().all(|thread| (0..number).all(|number| lets_through(thread.tid, number)));
    // Who sleeps in the kernel is not asked.
    let is_plain = number == 0 || world.sleepers().next().is_none();
    Ok(if are_all && is_plain { Asking::Filtered(number) } else { Asking::Nothing })
}

/// What is found out by calls when all is mapped: whether calls can be timed, and how fences are made.
fn fence(
    remote: &mut Remote<'_>,
    memory: &Memory,
    regions: &Regions,
    general: usize,
    threads: usize,
) -> Result<Fence, Broken> {
    if let Some(frames) = regions.arena.layout.frames()
        && clock::is_trapped(remote, memory, regions.arena.remote + frames as u64)?
    {
        return Err(Broken::NoClock { pid: memory.pid });
    }
    // Counts that are compiled in are no readers.
    if general > 0 { Fence::choose(remote, threads) } else { Ok(Fence::Global) }
}

/// Takes back what was mapped; the cause, with a word if that failed too.
fn unmade(remote: &mut Remote<'_>, pid: i32, regions: &Regions, why: Broken) -> Broken {
    let footing = regions.footing(None);
    // What made it fail may be over. What was unmapped the first time is unmapped again in vain.
    match (0..2).any(|_| footing.unmap(remote).is_ok()) {
        true => why,
        false => Broken::NotUndone { pid, why: Box::new(why) },
    }
}

/// Neighbourhoods of modules, with the room that their trampolines take.
fn wishes<'a>(sites: impl Iterator<Item = &'a SitePlan>) -> Vec<Wish> {
    let mut sorted: Vec<&SitePlan> = sites.collect();
    sorted.sort_by_key(|s| s.module_range.start);
    let mut wishes: Vec<Wish> = Vec::new();
    for site in sorted {
        let bytes = match site.placement.rung {
            Rung::Punned => 0,
            Rung::Kernel => RECORD_LEN,
            _ => Trampoline::len_bound(&site.placement, site.may_be_guarded()) as u64,
        };
        match wishes.last_mut() {
            Some(w) if site.module_range.end.saturating_sub(w.reach.start) <= NEIGHBOURHOOD => {
                w.reach.end = w.reach.end.max(site.module_range.end);
                w.bytes += bytes;
            }
            _ => wishes.push(Wish { reach: site.module_range.clone(), bytes, module: site.module.clone() }),
        }
    }
    wishes
}

/// Where this thread's rseq area lies from its thread pointer.
pub(crate) fn rseq_offset(tid: i32, fs_base: u64) -> Option<i32> {
    let config = ptrace::rseq_config(tid).ok()?;
    let is_usable = config.area != 0 && config.signature == percpu::SIGNATURE && config.size_bytes >= 20;
    let offset = i32::try_from(config.area.wrapping_sub(fs_base) as i64).ok()?;
    (is_usable && offset.unsigned_abs() < 1 << 20).then_some(offset)
}

/// Where the libc of this process writes a thread's number, from the thread pointer; 0 if that cannot be told.
fn tid_offset(memory: &Memory, world: &World) -> u64 {
    let is_there = |offset: &u64| {
        let pid = world.pid;
        world.threads().filter(|t| t.group == pid).all(|t| {
            let mut word = [0u8; 4];
            let read = memory.read(t.regs.thread_pointer().wrapping_add(*offset), &mut word);
            read.is_ok() && i32::from_le_bytes(word) == t.tid
        })
    };
    // Believed only if it is so for every thread, and at one place alone.
    let mut found = arch::tid_places().filter(is_there);
    found.next().filter(|_| found.next().is_none()).unwrap_or(0)
}
