//! One attach, while it lasts.
//!
//! For:     reading counts, and knowing what is armed.
//! State:   the target's memory, our mappings in it, the sites.
//! Context: control. One OS thread: ptrace ties stops to it.
//! Keeps:   nothing; it ends in leave/end.rs.
//! Checked: testkit.

use crate::arch;
use crate::arch::has_rdpid;
use crate::enter::fence::Fence;
use crate::enter::region::Regions;
use crate::enter::setup::Asking;
use crate::enter::setup::RECORD_LEN;
use crate::enter::walks::Walks;
use crate::facts::calls::{Event, OpenCalls};
use crate::facts::error::Broken;
use crate::facts::family::MapsGround;
use crate::facts::program::Programs;
use crate::facts::site::{Armed, Missed, SitePlan};
use crate::find::memory::Memory;
use crate::find::process;
use crate::hold::foothold::Foothold;
use crate::kernel::KernelProbes;
use crate::live::events::{Bounds, Reader};
use crate::live::lists::{Places, ProgramAt};
use crate::live::readers::Readers;
use crate::live::site::{Counts, SiteView, Tally};
use image::Mapping;
use insn::Rung;
use std::mem::offset_of;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wire::{KernelSite, ProgramDesc, Untrusted, needs};

/// Probes in one process.
#[derive(Debug)]
pub struct Session {
    pub(crate) memory: Memory,
    pub(crate) mappings: Vec<Mapping>,
    pub(crate) regions: Regions,
    pub(crate) places: Places,
    pub(crate) programs: Programs,
    /// Where each region has them.
    pub(crate) placed: Vec<Arc<[ProgramAt]>>,
    /// The process as it numbers itself.
    pub(crate) process: u64,
    pub(crate) readers: Readers,
    pub(crate) foothold: Foothold,
    pub(crate) rseq_offset: Option<i32>,
    pub(crate) ways: text::Ways,
    pub(crate) ns_per_tick: u64,
    /// Whether helpers may make system calls.
    pub(crate) calls: Asking,
    /// Programs read the counter as a clock.
    pub(crate) has_counter: bool,
    pub(crate) tid_offset: u64,
    pub(crate) walks: Walks,
    /// First cell of the stacks that are counted.
    pub(crate) stack_cells: u32,
    pub(crate) armed: Vec<Armed>,
    pub(crate) kernel: Option<KernelProbes>,
    pub(crate) missed: Vec<(SitePlan, Missed)>,
    pub(crate) longest_stall: Duration,
    pub(crate) attach_time: Duration,
    pub(crate) is_over: bool,
    pub(crate) has_left: bool,
    /// Some function was switched off, ever.
    pub(crate) was_switched_off: bool,
    /// The time stamp counter before anything was armed.
    since: u64,
    reader: Mutex<Reader>,
}

impl Session {
    pub(crate) fn new(
        memory: Memory,
        mappings: Vec<Mapping>,
        regions: Regions,
        foothold: Foothold,
        fence: Fence,
        flavour: text::Flavour,
    ) -> Session {
        let process = process::number_inside(memory.pid).unwrap_or(0);
        Session {
            memory,
            mappings,
            regions,
            places: Places::default(),
            programs: Programs::default(),
            placed: Vec::new(),
            process,
            readers: Readers::new(fence),
            foothold,
            rseq_offset: None,
            ways: text::Ways { threads: None, has_rdpid: has_rdpid(), flavour },
            ns_per_tick: 0,
            calls: Asking::Nothing,
            has_counter: false,
            tid_offset: 0,
            walks: Walks::default(),
            stack_cells: 0,
            armed: Vec::new(),
            kernel: None,
            missed: Vec::new(),
            longest_stall: Duration::ZERO,
            attach_time: Duration::ZERO,
            is_over: false,
            has_left: false,
            was_switched_off: false,
            since: arch::ticks(),
            reader: Mutex::default(),
        }
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.memory.pid
    }

    /// The armed sites, in the order of their plans; those of the kernel last.
    pub fn sites(&self) -> impl Iterator<Item = SiteView<'_>> {
        let armed = self.armed.iter().map(|armed| self.view(armed));
        let kernel = self.kernel.iter().flat_map(|probes| {
            let counts = Counts::Kernel(probes);
            probes.sites.iter().map(move |(plan, cell)| SiteView {
                plan,
                is_out: false,
                first_cell: *cell,
                counts,
            })
        });
        armed.chain(kernel)
    }

    /// A site of ours, with its counts.
    pub(crate) fn view<'a>(&'a self, armed: &'a Armed) -> SiteView<'a> {
        let Armed { plan, is_out, cell, .. } = armed;
        SiteView { plan, is_out: *is_out, first_cell: *cell, counts: Counts::Own(&self.regions.arena) }
    }

    /// The site of a number, in the order of [`sites`](Self::sites).
    pub fn site(&self, number: usize) -> Option<SiteView<'_>> {
        if let Some(armed) = self.armed.get(number) {
            return Some(self.view(armed));
        }
        let kernel = self.kernel.as_ref()?;
        let (plan, cell) = kernel.sites.get(number - self.armed.len())?;
        Some(SiteView { plan, is_out: false, first_cell: *cell, counts: Counts::Kernel(kernel) })
    }

    /// Entries and nanoseconds of a function of this session's, as [`SiteView::timed`] gives them.
    pub fn tallied(&self, tally: Tally) -> (u64, u64) {
        let arena = &self.regions.arena;
        (arena.sum(tally.entries), arena.sum(tally.total_ns))
    }

    /// From now on hits of forked children are counted with their parent's, and not apart.
    pub fn follow_forks(&mut self) {
        let arena = &mut self.regions.arena;
        arena.follows_forks = true;
        for (number, program) in self.programs.iter().enumerate() {
            for number in (number..arena.layout.programs()).step_by(self.programs.len()) {
                let at = arena.layout.program(number) + offset_of!(ProgramDesc, needs);
                arena.publish(at, program.needs_with(self.has_counter) | needs::CHILDREN);
            }
        }
    }

    /// The programs that it was attached with.
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// The memory of the programs' maps in the session's own arena, which the target may write at any time; `None` without maps, or
    /// with maps that it shares.
    pub fn maps(&self) -> Option<Untrusted<'_>> {
        let layout = &self.regions.arena.layout;
        self.regions.arena.view().part(layout.maps()?, layout.maps_len())
    }

    /// The same memory for whoever goes on using it when the session is gone.
    pub fn ground(&self) -> Option<MapsGround> {
        self.regions.arena.ground()
    }

    /// The last fault of a program, in whichever region: what it met, and which instruction; `None` if it met none.
    pub fn last_fault(&self, number: u32) -> Option<bpf::Faulted> {
        let layout = &self.regions.arena.layout;
        let descs = (number as usize..layout.programs()).step_by(self.programs.len().max(1));
        let word = |at: usize| self.regions.arena.view().load(at).unwrap_or(0);
        let at = |desc: usize| layout.program(desc) + offset_of!(ProgramDesc, last_fault);
        descs.filter_map(|desc| jit::faulted(word(at(desc)), word(at(desc) + 8))).next()
    }

    /// True if a process has the memory of this session mapped: it is the target's, or that of a child that was forked since the
    /// attach.
    pub fn is_inherited_by(&self, pid: i32) -> bool {
        self.regions.arena.is_mapped_by(pid)
    }

    /// True if a child that was forked since the attach is seen to go on in this session's memory.
    pub fn has_heirs(&self) -> bool {
        self.regions.arena.has_seen_heir(self.pid())
    }

    /// The number of the process's program among those that it shares its maps with, which the numbers of its stacks have in their upper
    /// half; 0 if it has them alone.
    pub fn family(&self) -> u64 {
        self.regions.arena.family()
    }

    /// Hits of the general path and of the kernel's probes so far, counted before any handler ran.
    pub fn entered(&self) -> u64 {
        let by_kernel = self.kernel.as_ref().map_or(0, KernelProbes::entered);
        let by_rank = [0, 1].map(|rank| self.regions.arena.sum(wire::cell::entered(rank)));
        by_rank[0].saturating_add(by_rank[1]).saturating_add(by_kernel)
    }

    /// Takes events out of all rings, a bounded number of them; those of one CPU are in order. False if there may be more.
    pub fn take_events(&self, mut take: impl FnMut(Event)) -> bool {
        if let Some(kernel) = &self.kernel {
            kernel.take_events(self.ns_per_tick, &mut take);
        }
        let functions = self.armed.iter().filter_map(|a| a.plan.traces()).max().map_or(0, |last| last + 1);
        let bounds = Bounds { since: self.since, now: arch::ticks, functions };
        self.reader().take(self.regions.arena.rings(), bounds, take)
    }

    fn reader(&self) -> MutexGuard<'_, Reader> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time stamp counter now, to compare with events.
    pub fn now(&self) -> u64 {
        arch::ticks()
    }

    /// Records of the target that could not be believed, so far: events that no hit can have written, cells that hold what
    /// cannot be a count, rings of the doorbell that nobody can have rung.
    pub fn damaged(&self) -> u64 {
        let rings = self.regions.arena.rings_not_believed.load(Ordering::Relaxed);
        self.reader().damaged.saturating_add(self.regions.arena.damaged()).saturating_add(rings)
    }

    /// Events written and lost so far.
    pub fn events(&self) -> (u64, u64) {
        let sum = |n: u32| {
            let cells = self.armed.iter().flat_map(|a| a.trace_cells(n));
            cells.fold(0u64, |sum, cell| sum.saturating_add(self.regions.arena.sum(cell)))
        };
        let (written, lost) = self.kernel.as_ref().map_or((0, 0), KernelProbes::events);
        (sum(0).saturating_add(written), sum(wire::TRACE_LOST).saturating_add(lost))
    }

    /// Nanoseconds of so many ticks.
    pub fn nanoseconds(&self, ticks: u64) -> u64 {
        ((u128::from(ticks) * u128::from(self.ns_per_tick)) >> 32) as u64
    }

    /// Ticks of so many nanoseconds, to compare with differences of events' stamps.
    pub fn ticks(&self, nanoseconds: u64) -> u64 {
        let ticks = (u128::from(nanoseconds) << 32) / u128::from(self.ns_per_tick.max(1));
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }

    /// Timed calls that were left otherwise than by a return so far, and calls that found no room to be timed.
    pub fn not_returned(&self) -> (u64, u64) {
        let arena = &self.regions.arena;
        (arena.sum(wire::cell::FRAMES_REPLACED), arena.sum(wire::cell::FRAMES_NO_ROOM))
    }

    /// What became of timed calls that did not return.
    pub fn open_calls(&self) -> OpenCalls {
        let arena = &self.regions.arena;
        let by_kernel = self.kernel.as_ref().map(KernelProbes::open_calls).unwrap_or_default();
        OpenCalls {
            unwound: arena.sum(wire::cell::FRAMES_REPLACED).saturating_add(by_kernel.unwound),
            inside: arena.open_calls().saturating_add(by_kernel.inside),
            no_room: arena.sum(wire::cell::FRAMES_NO_ROOM).saturating_add(by_kernel.no_room),
        }
    }

    /// Makes ready what the kernel is to probe, and writes the records of it, by which others find it if we die.
    pub(crate) fn prepare_kernel(&mut self, sites: Vec<SitePlan>) -> Result<(), Broken> {
        if sites.is_empty() {
            return Ok(());
        }
        let (probes, missed) = KernelProbes::prepare(self.pid(), &self.mappings, sites);
        self.missed.extend(missed);
        self.kernel = probes;
        self.write_records()
    }

    pub(crate) fn write_records(&mut self) -> Result<(), Broken> {
        let Some(kernel) = &self.kernel else { return Ok(()) };
        for (site, record) in kernel.waiting().zip(kernel.records()) {
            let region = self.regions.regions.iter_mut().find(|region| region.reaches(site));
            let Some(region) = region else { continue };
            let at = region.next + RECORD_LEN - KernelSite::LEN as u64;
            self.memory.write(at, &record.bytes())?;
            region.next += RECORD_LEN;
            debug_assert!(region.next <= region.code.end);
        }
        Ok(())
    }

    /// Planned sites that were not armed.
    pub fn missed(&self) -> &[(SitePlan, Missed)] {
        &self.missed
    }

    /// How many sites are armed on each rung.
    pub fn rungs(&self) -> Vec<(Rung, usize)> {
        let mut counted: Vec<(Rung, usize)> = Vec::new();
        for site in self.sites() {
            let rung = site.plan.placement.rung;
            match counted.iter_mut().find(|(r, _)| *r == rung) {
                Some((_, n)) => *n += 1,
                None => counted.push((rung, 1)),
            }
        }
        counted.sort_by_key(|(r, _)| *r as u8);
        counted
    }

    /// The longest time that a thread of the target has stood still for us so far.
    pub fn longest_stall(&self) -> Duration {
        self.longest_stall
    }

    /// How long the attach took.
    pub fn attach_time(&self) -> Duration {
        self.attach_time
    }

    /// False if a thread that makes calls for us could not undo that by itself, should this process be killed meanwhile: the
    /// process has no code that returns from a signal, or a shadow stack.
    pub fn has_way_back(&self) -> bool {
        self.foothold.restorer.is_some() && !process::has_shadow_stack(process::living(self.pid()))
    }

    /// True if counts are made under rseq; false if by locked adds.
    pub fn has_rseq(&self) -> bool {
        self.rseq_offset.is_some()
    }

    /// True once a detach has succeeded.
    pub fn has_left(&self) -> bool {
        self.has_left
    }

    /// True as long as the process runs the program that we attached to.
    pub fn is_alive(&self) -> bool {
        !self.memory.is_over()
    }
}
