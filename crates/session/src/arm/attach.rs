//! Entering a process and arming its sites.
//!
//! For:     `Session::attach`.
//! State:   the world stopped for the set-up and for the patch; the target runs in between.
//! Context: control.
//! Keeps:   A1 bytes are compared with the file before they are replaced; a site that differs is missed, not
//!             forced.
//!          A2 no thread stands inside a window, or will return into it, when it is written.
//!          A3 on an error everything made in the target is unmade.
//! Checked: testkit `counting`, `signals`; `torture attach`.

use crate::arm::numbers::Numbers;
use crate::enter::clock;
use crate::enter::region::Region;
use crate::enter::semaphore;
use crate::enter::setup::{PUNS_MAX, SetUp, rseq_offset};
use crate::enter::walks::{STACK_CELLS, Walks};
use crate::facts::descriptor;
use crate::facts::error::Broken;
use crate::facts::ported;
use crate::facts::room::{Attach, Room, may_come_alone};
use crate::facts::site::{Action, Armed, Consumer, Missed, SitePlan, Whole};
use crate::find::counter;
use crate::find::identity;
use crate::find::maps::image_maps;
use crate::find::memory::Memory;
use crate::find::process::{self, ENGINE_NAME};
use crate::find::threads;
use crate::hold::remote::leave_sequence;
use crate::hold::stacks;
use crate::hold::tracer::apart;
use crate::hold::world::{Hurry, World};
use crate::kernel::KernelProbes;
use crate::leave::receipt::Receipt;
use crate::leave::recover::recover_quickly;
use crate::live::lists::{HookId, HookSite, Member, publish};
use crate::live::runs::OF_RUNS;
use crate::live::session::Session;
use crate::live::slots::Slots;
use crate::patch::chain;
use crate::patch::chain::Others;
use crate::patch::pages::Pages;
use crate::plan::puns::Puns;
use insn::{Hook, RegSet, Rung};
use probe::book::Fresh;
use std::collections::BTreeSet;
use std::mem::offset_of;
use std::time::{Duration, Instant};
use sys::ptrace;
use text::{Body, Flavour, Guarded};
use wire::{SiteDesc, TrampolineHeader, WalkDesc, program_cell};

impl Session {
    /// Puts probes on all `sites` of the process.
    ///
    /// # Errors
    /// Why the process as a whole cannot be entered; single sites are missed with a reason instead.
    pub fn attach(pid: i32, sites: Vec<SitePlan>) -> Result<Session, Broken> {
        Session::attach_by(pid, sites, Flavour::default())
    }

    /// The same with readers of another flavour: what a hit pays for who waits until it is over.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn attach_by(pid: i32, sites: Vec<SitePlan>, flavour: Flavour) -> Result<Session, Broken> {
        Session::attach_with(pid, sites, Attach { flavour, ..Attach::default() })
    }

    /// The same, with room for consumers that come later, by [`Session::change`].
    ///
    /// # Cost
    /// Hits save four registers more, which such a consumer may want to see.
    /// # Errors
    /// As for [`Session::attach`].
    pub fn attach_with_room(pid: i32, sites: Vec<SitePlan>, room: Room) -> Result<Session, Broken> {
        Session::attach_with(pid, sites, Attach { room, ..Attach::default() })
    }

    /// The same with all that there is to say: programs, room for more, the readers' flavour.
    ///
    /// # Errors
    /// As for [`Session::attach`]; [`Broken::NoProgram`] if a consumer names a program that is not there.
    pub fn attach_with(pid: i32, sites: Vec<SitePlan>, attach: Attach) -> Result<Session, Broken> {
        let _hurry = Hurry::begin();
        apart(|| Session::attach_here(pid, sites, attach)).map_err(|broken| process::cause(pid, broken))
    }

    fn attach_here(pid: i32, sites: Vec<SitePlan>, attach: Attach) -> Result<Session, Broken> {
        ported::check_sites(&sites, &attach.programs)?;
        descriptor::reserve()?;
        let named = sites.iter().flat_map(SitePlan::consumers).filter_map(Consumer::program);
        if let Some((program, _)) = named.into_iter().find(|(n, _)| attach.programs.get(*n).is_none()) {
            return Err(Broken::NoProgram { program });
        }
        let is_timed = |s: &SitePlan| s.opens().or(s.traces()).is_some();
        let is_timing = sites.iter().any(is_timed);
        let ns_per_tick = if is_timing { clock::ns_per_tick() } else { 0 };
        if is_timing && let Some(module) = counter::may_be_taken_away(pid)? {
            return Err(Broken::ClockMayGo { pid, module });
        }
        let began = Instant::now();
        match process::check(pid) {
            // Waited for when we stop it.
            Err(Broken::Traced { by_name, .. }) if by_name == ENGINE_NAME => {}
            other => drop(other?),
        }
        recover_quickly(pid)?;
        let memory = Memory::open(pid)?;
        let mappings = image_maps(pid)?;
        let (by_kernel, mut sites): (Vec<_>, Vec<_>) =
            sites.into_iter().partition(|s| s.placement.rung == Rung::Kernel);
        let (by_kernel, in_vain): (Vec<_>, Vec<_>) =
            by_kernel.into_iter().partition(|site| site.consumers().all(|c| c.program().is_none()));
        let is_too_much = |site: &SitePlan| {
            let mut programs = site.consumers().filter_map(Consumer::program);
            site.is_go && programs.any(|(n, _)| attach.programs.get(n).is_some_and(|p| !p.suits_goroutine()))
        };
        let no_stack: Vec<_> = sites.extract_if(.., |site| is_too_much(site)).collect();
        let puns = Puns::allot(&mappings, &mut sites, PUNS_MAX);
        if !sites
            .iter()
            .chain(&by_kernel)
            .chain(&in_vain)
            .chain(&no_stack)
            .any(|site| identity::is_mapped(&mappings, site))
        {
            return Err(Broken::Replaced { pid, name: process::name(pid) });
        }
        let mut setup = SetUp::enter(&memory, &mappings, &sites, &by_kernel, &puns, &attach)?;
        let mut stall = setup.stall;
        setup.ns_per_tick = ns_per_tick;
        let regions = setup.regions.take().ok_or(Broken::NoSyscall)?;
        let foothold = setup.foothold.clone();
        let mut session = Session::new(memory, mappings, regions, foothold, setup.fence, attach.flavour);
        session.places.is_open = attach.room != Room::default();
        session.regions.arena.put_maps(attach.programs.maps());
        session.programs = attach.programs;
        session.missed.extend(no_stack.into_iter().map(|site| (site, Missed::LittleStack)));
        session.missed.extend(in_vain.into_iter().map(|site| (site, Missed::ProgramByKernel)));
        if let Some((made, places)) = setup.walks.take() {
            session.walks = Walks::begin(&session.regions.arena, made, &places);
        }
        match session.arm_as_set_up(&mut setup, sites, by_kernel) {
            Ok(longest) => stall = stall.max(longest),
            Err(why) => return Err(session.give_up(why)),
        }
        session.places.keep(&session.armed);
        session.places.blocks = session.regions.regions.iter().map(free_blocks).collect();
        session.longest_stall = stall;
        session.attach_time = began.elapsed();
        Ok(session)
    }
}

/// Consumers whose handlers want to see all registers that one may that comes alone: r8 to r11.
const LATER: [Consumer; 5] = [
    Consumer::Count,
    Consumer::Log2Histogram { register: 72 },
    Consumer::Log2Histogram { register: 64 },
    Consumer::Log2Histogram { register: 56 },
    Consumer::Log2Histogram { register: 48 },
];

/// Blocks stand at multiples of it.
pub(crate) const BLOCK_UNIT: u64 = 64;

/// How long we wait for the last threads of a nanoprobe that leaves, before we miss the sites where they come out; and for a
/// thread that sleeps in the kernel, as in the midst of a fork, before we do without knowing its rseq area.
const OTHERS_PATIENCE: Duration = Duration::from_secs(1);

/// What would not be seen whole without these sites.
fn incomplete<'a>(missed: impl Iterator<Item = &'a SitePlan>) -> BTreeSet<Whole> {
    missed.flat_map(SitePlan::wholes).collect()
}

/// The room for blocks behind those of the attach.
fn free_blocks(region: &Region) -> Slots {
    let number = |at: u64| (at - region.blocks) / BLOCK_UNIT;
    let mut free = Slots::default();
    free.give(number(region.next.next_multiple_of(BLOCK_UNIT)) as u32..number(region.code.end) as u32);
    free
}

pub(crate) enum ArmFailure {
    /// A thread has its rseq area elsewhere than the others.
    RseqDiffers,
    /// A thread sleeps in the kernel, and where its area is cannot be asked.
    RseqUnknown(i32),
    Broken(Broken),
}

impl From<Broken> for ArmFailure {
    fn from(broken: Broken) -> ArmFailure {
        ArmFailure::Broken(broken)
    }
}

impl From<ArmFailure> for Broken {
    fn from(failure: ArmFailure) -> Broken {
        match failure {
            ArmFailure::Broken(broken) => broken,
            ArmFailure::RseqDiffers => Broken::RseqDiffers,
            ArmFailure::RseqUnknown(tid) => Broken::WontStop {
                tid,
                state: 'D',
                waited_ms: OTHERS_PATIENCE.as_millis() as u64,
                stop: None,
            },
        }
    }
}

impl Session {
    /// Builds all and arms it; the longest time for which a thread stood.
    fn arm_as_set_up(
        &mut self,
        setup: &mut SetUp,
        sites: Vec<SitePlan>,
        by_kernel: Vec<SitePlan>,
    ) -> Result<Duration, Broken> {
        self.rebuild(setup, sites)?;
        self.prepare_kernel(by_kernel)?;
        match self.arm_all() {
            Err(ArmFailure::RseqDiffers | ArmFailure::RseqUnknown(_)) => {
                // Threads differ in their rseq areas: locked adds are right for all of them.
                let sites = self.take_plans();
                setup.rseq_offset = None;
                self.rebuild(setup, sites)?;
                self.write_records()?;
                Ok(self.arm_all()?)
            }
            armed => Ok(armed?),
        }
    }

    /// Takes everything back after a failure; the failure, with a word if that failed too.
    fn give_up(mut self, why: Broken) -> Broken {
        let is_back = |receipt: Receipt| receipt.was_gone() || receipt.is_verified() && receipt.is_unmapped();
        // What made the attach fail may be over.
        if (0..2).any(|_| self.detach().is_ok_and(is_back)) {
            return why;
        }
        Broken::NotUndone { pid: self.pid(), why: Box::new(why) }
    }

    fn take_plans(&mut self) -> Vec<SitePlan> {
        let is_by_kernel = |(plan, _): &(SitePlan, Missed)| plan.placement.rung == Rung::Kernel;
        let (by_kernel, dropped) = std::mem::take(&mut self.missed).into_iter().partition(is_by_kernel);
        self.missed = by_kernel;
        let dropped: Vec<_> = dropped;
        let dropped = dropped.into_iter().map(|(plan, _)| plan);
        std::mem::take(&mut self.armed).into_iter().map(|a| a.plan).chain(dropped).collect()
    }

    /// Writes a trampoline for each site.
    pub(crate) fn rebuild(&mut self, setup: &mut SetUp, sites: Vec<SitePlan>) -> Result<(), Broken> {
        self.rseq_offset = setup.rseq_offset;
        let self_offset = setup.self_offset;
        self.ways.threads = setup.rseq_offset.map(|rseq_offset| text::Threads { rseq_offset, self_offset });
        self.ns_per_tick = setup.ns_per_tick;
        (self.has_counter, self.calls) = (setup.has_counter, setup.calls);
        self.tid_offset = setup.tid_offset;
        self.regions.arena.describe(&self.regions.footing(self.rseq_offset));
        for region in &mut self.regions.regions {
            region.next = region.blocks;
        }
        self.place_programs()?;
        self.places.begin_anew();
        // An exit may stand before the entry, whose cells it uses.
        let mut numbers = Numbers::of(&sites);
        if let Some(at) = self.regions.arena.layout.walk() {
            self.stack_cells = numbers.take_cells(STACK_CELLS);
            self.regions.arena.publish(at + offset_of!(WalkDesc, cells), self.stack_cells.into());
        }
        for plan in sites {
            self.build_site(plan, &mut numbers);
        }
        let (hooks, descriptors, end) = self.regions.arena.layout.room();
        self.places.hooks.give(numbers.hook as u32..hooks);
        self.places.descriptors.give(numbers.consumer as u32..descriptors);
        self.places.cells.give(numbers.cell / 8..end / 8);
        self.drop_incomplete();
        self.write_trampolines()
    }

    pub(crate) fn build_site(&mut self, plan: SitePlan, numbers: &mut Numbers) {
        let region = self.regions.regions.iter().position(|r| r.reaches(&plan)).unwrap_or(0);
        let first_hook = numbers.hook as u32;
        let first_cell = plan.opens().map_or(numbers.cell, |f| numbers.functions[&f]);
        let bodies: Vec<Body> = plan
            .actions
            .iter()
            .zip(&plan.placement.hooks)
            .map(|(action, hook)| match action {
                Action::Count => Body::Count { cell: numbers.take_cells(1) },
                Action::Consumers(list) => self.describe(region, &plan, hook, list, numbers),
            })
            .collect();
        let hooks = first_hook..numbers.hook as u32;
        let is_mapped = |at: &u64| self.regions.puns.iter().any(|pages| pages.contains(at));
        let region = &mut self.regions.regions[region];
        let at = match plan.placement.pun {
            None => region.next,
            Some(_) => match plan.block.filter(is_mapped).filter(|_| plan.landing.iter().all(is_mapped)) {
                Some(at) => at,
                None => return self.missed.push((plan, Missed::NoRoom)),
            },
        };
        match Armed::build(plan, at, region.table, region.slow, self.ways, first_cell, &bodies) {
            Ok(mut armed) => {
                armed.hooks = hooks;
                if armed.plan.placement.pun.is_none() {
                    region.next = armed.trampoline.end().next_multiple_of(64);
                    debug_assert!(region.next <= region.code.end);
                }
                self.armed.push(armed);
            }
            Err((plan, far)) => self.missed.push((*plan, Missed::TooFar(far))),
        }
    }

    /// With an exit missing, calls would look unwound that left by it, and returns too few; with the entry missing, the
    /// exits would find calls that were never opened.
    pub(crate) fn drop_incomplete(&mut self) {
        let broken = incomplete(self.missed.iter().map(|(plan, _)| plan));
        let (dropped, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.armed)
            .into_iter()
            .partition(|a| a.plan.wholes().any(|w| broken.contains(&w)));
        self.armed = kept;
        self.missed.extend(dropped.into_iter().map(|a| (a.plan, Missed::Incomplete)));
    }

    /// Writes what the agent needs to know of a hook: its description and its consumers.
    fn describe(
        &mut self,
        region: usize,
        plan: &SitePlan,
        hook: &Hook,
        list: &[Consumer],
        numbers: &mut Numbers,
    ) -> Body {
        let id = HookId(numbers.hook as u32);
        let (mut site, members) = self.first_list(region, list, numbers);
        let guard = self.guard(plan, &members);
        site.is_guarded = guard.is_some();
        let region = &self.regions.regions[region];
        let (arena, layout) = (&self.regions.arena, &self.regions.arena.layout);
        site.write(arena, site.place.start, members.iter().map(|(_, member)| member));
        let in_target = |at: Option<usize>| at.map_or(0, |at| arena.remote + at as u64);
        let at = layout.site(numbers.hook);
        numbers.hook += 1;
        let table = region.table + wire::table::CPU0 as u64;
        arena.publish(at + offset_of!(SiteDesc, table), table);
        let rseq_offset = i64::from(self.rseq_offset.unwrap_or_default());
        arena.publish(at + offset_of!(SiteDesc, rseq_offset), rseq_offset as u64);
        arena.publish(at + offset_of!(SiteDesc, red_zone), text::above_frame(hook).into());
        arena.publish(at + offset_of!(SiteDesc, addr), plan.addr() + u64::from(hook.offset));
        arena.publish(at + offset_of!(SiteDesc, has_flags), u64::from(!hook.flags_dead));
        arena.publish(at + offset_of!(SiteDesc, process), arena.family() << 32 | self.process);
        arena.publish(at + offset_of!(SiteDesc, is_edge), plan.is_edge.into());
        let function = plan.exit_of.unwrap_or(plan.addr() + u64::from(hook.offset));
        arena.publish(at + offset_of!(SiteDesc, function), function);
        arena.publish(at + offset_of!(SiteDesc, children), arena.children_copy());
        arena.publish(at + offset_of!(SiteDesc, frames), in_target(layout.frames()));
        arena.publish(at + offset_of!(SiteDesc, ns_per_tick), self.ns_per_tick);
        arena.publish(at + offset_of!(SiteDesc, rings), in_target(layout.ring(0)));
        arena.publish(at + offset_of!(SiteDesc, tid_offset), self.tid_offset);
        arena.publish(at + offset_of!(SiteDesc, has_fsgsbase), threads::has_fsgsbase().into());
        // Without consumers the next descriptor is another hook's, or none.
        publish(arena, id, (!members.is_empty()).then_some(site.place.start));
        let (desc, uses) = (arena.remote + at as u64, site.saved);
        self.places.book.open(id, site, members);
        Body::Hit { desc, uses, guard }
    }

    /// What is asked of a hit before its registers are saved: what the one program of the hook would ask first, if no other consumer
    /// may come. Who is turned down is counted as one that ran.
    fn guard(&self, plan: &SitePlan, members: &[(Fresh, Member)]) -> Option<Guarded> {
        let [(_, Member { consumer: Consumer::Program { program, .. }, .. })] = members else {
            return None;
        };
        let guards = self.programs.get(*program)?.guards;
        let is_fixed = !self.places.is_open && plan.may_be_guarded();
        let cell = members[0].1.cell() + 8 * program_cell::RAN;
        (is_fixed && guards[0].is_some()).then_some(Guarded { cell, guards })
    }

    /// The consumers that a hook is armed with, and their places.
    fn first_list(
        &mut self,
        region: usize,
        list: &[Consumer],
        numbers: &mut Numbers,
    ) -> (HookSite, Vec<(Fresh, Member)>) {
        let placed = self.placed[region].clone();
        let region = &self.regions.regions[region];
        let agent = match self.rseq_offset {
            Some(_) => &region.agent.rseq,
            None => &region.agent.locked,
        };
        let place = numbers.consumer as u32..(numbers.consumer + list.len()) as u32;
        numbers.consumer += list.len();
        let member = |consumer: &Consumer| {
            let cell = numbers.cell_of(*consumer) / 8;
            let cells = cell..cell + consumer.cells();
            (self.places.book.fresh(), Member { consumer: *consumer, cells, is_first: true })
        };
        let members = list.iter().map(member).collect();
        let mut site = HookSite {
            handlers: agent.handlers,
            programs: placed,
            clobbers: region.clobbers.counting(self.rseq_offset.is_some()),
            saved: RegSet::default(),
            is_guarded: false,
            place,
        };
        // Who may come later, and want to see any register that an argument is passed in.
        let is_open = self.places.is_open && list.iter().all(|c| may_come_alone(*c));
        let later: &[Consumer] = if is_open { &LATER } else { &[] };
        let mut uses = later.iter().fold(site.uses_of(list), |uses, c| uses | site.uses(*c));
        if is_open {
            uses |= OF_RUNS.iter().fold(0, |uses, kind| uses | site.clobbers.handler(*kind).bits());
        }
        site.saved = uses.into();
        (site, members)
    }

    /// Writes all trampolines, neighbours in one go, while the target runs.
    fn write_trampolines(&self) -> Result<(), Broken> {
        for region in &self.regions.regions {
            let start = region.blocks;
            let mut bytes = vec![0xcc; (region.next - start) as usize];
            for armed in self.armed.iter().filter(|a| region.code.contains(&a.trampoline.at)) {
                let at = (armed.trampoline.at - start) as usize;
                bytes[at..at + armed.trampoline.bytes.len()].copy_from_slice(&armed.trampoline.bytes);
            }
            self.memory.write(start, &bytes)?;
        }
        for armed in self.armed.iter().filter(|a| a.plan.placement.pun.is_some()) {
            self.memory.write(armed.trampoline.at, &armed.trampoline.bytes)?;
            if let Some((at, bytes)) = armed.landing() {
                self.memory.write(at, &bytes)?;
            }
        }
        Ok(())
    }

    /// Stops the world and writes every patch. Returns the longest stall.
    ///
    /// Where another nanoprobe leaves at this moment, its last threads are let out first.
    pub(crate) fn arm_all(&mut self) -> Result<Duration, ArmFailure> {
        let own = self.regions.arena.remote;
        let mut longest = Duration::ZERO;
        let end = Instant::now() + OTHERS_PATIENCE;
        let mut pause = Duration::from_millis(1);
        let warmth = self.kernel.as_ref().and_then(KernelProbes::warm_up);
        let kernels: Vec<u64> =
            self.kernel.iter().flat_map(KernelProbes::waiting).map(SitePlan::addr).collect();
        loop {
            let world = World::stop(self.pid())?;
            self.memory.check()?;
            let may_wait = Instant::now() < end;
            match self.check_rseq(&world) {
                Err(ArmFailure::RseqUnknown(_)) if may_wait => {}
                rseq => {
                    rseq?;
                    let ours = (&self.armed[..], &kernels[..]);
                    let others = Others::find(&self.memory, &mut Pages::of(&self.memory), own, &world, ours)?;
                    if !may_wait || !self.armed.iter().any(|armed| others.come_out_in(armed)) {
                        longest = longest.max(self.arm(world, &others)?);
                        drop(warmth);
                        return Ok(longest);
                    }
                }
            }
            longest = longest.max(world.resume());
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// Writes every patch, in a stop.
    fn arm(&mut self, mut world: World, others: &Others) -> Result<Duration, ArmFailure> {
        let windows = Windows::of(&self.armed);
        let mut pages = Pages::of(&self.memory);
        for armed in &mut self.armed {
            let is_there = armed.patches().all(|p| pages.is_mapped(p.addr));
            armed.missed = match is_there {
                true => chain::join(&self.memory, &mut pages, others, armed)?,
                false => Some(Missed::Unmapped),
            };
        }
        windows.keep_out(&self.memory, &mut self.armed, &mut world)?;
        let broken = incomplete(self.armed.iter().filter(|a| a.missed.is_some()).map(|a| &a.plan));
        for armed in self.armed.iter_mut().filter(|a| a.plan.wholes().any(|w| broken.contains(&w))) {
            armed.missed.get_or_insert(Missed::Incomplete);
        }
        // Before the first is written: should a write fail, the detach has to look at all of them.
        for armed in &mut self.armed {
            armed.is_live = armed.missed.is_none();
        }
        // Islands first: a 2-byte jump must never lead to padding.
        for armed in self.armed.iter().filter(|a| a.missed.is_none()) {
            pages.set(armed.jump.addr, &armed.jump.new)?;
        }
        pages.flush()?;
        for armed in self.armed.iter().filter(|a| a.missed.is_none()) {
            if let Some(short) = &armed.short {
                pages.set(short.addr, &short.new)?;
            }
        }
        pages.flush()?;
        for armed in self.armed.iter().filter(|a| a.is_live) {
            if let Some(at) = armed.plan.semaphore {
                semaphore::raise(&self.memory, armed.trampoline.entry_addr(), at)?;
            }
        }
        for armed in self.armed.iter().filter(|a| !a.is_live && !a.is_out) {
            self.memory.write(armed.trampoline.header_addr(), &[0; TrampolineHeader::LEN])?;
        }
        if let Some(kernel) = &mut self.kernel {
            self.missed.extend(kernel.link(&self.memory, &mut pages, others));
        }
        let stall = world.resume();
        let (live, dropped): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.armed).into_iter().partition(|a| a.is_live || a.is_out);
        self.armed = live;
        let dropped = dropped.into_iter().filter_map(|a| Some((a.plan, a.missed?)));
        self.missed.extend(dropped);
        Ok(stall)
    }

    /// Every thread must have its rseq area where the trampolines expect it, or one that says "none" there.
    fn check_rseq(&self, world: &World) -> Result<(), ArmFailure> {
        let Some(expected) = self.rseq_offset else { return Ok(()) };
        // Of one that sleeps we cannot ask, unless it is behind a child that we can ask.
        if let Some(sleeper) = world.sleepers().find(|s| s.fs_base.is_none()) {
            return Err(ArmFailure::RseqUnknown(sleeper.tid));
        }
        for thread in world.threads() {
            let is_same = rseq_offset(thread.tid, thread.regs.thread_pointer()) == Some(expected);
            if is_same || world.is_behind(thread) {
                continue;
            }
            let cpu_id = thread.regs.thread_pointer().wrapping_add_signed(i64::from(expected) + 4);
            let mut word = [0u8; 4];
            let read = self.memory.read(cpu_id, &mut word);
            let is_none = read.is_ok() && matches!(i32::from_le_bytes(word), -1 | -2);
            let is_registered = ptrace::rseq_config(thread.tid).is_ok_and(|c| c.area != 0);
            if is_registered || !is_none {
                return Err(ArmFailure::RseqDiffers);
            }
        }
        Ok(())
    }
}

/// The windows of several instructions, by address: where no thread may stand when a jump is written.
struct Windows(Vec<(std::ops::Range<u64>, usize)>);

impl Windows {
    fn of(armed: &[Armed]) -> Windows {
        let several = armed.iter().enumerate().filter(|(_, a)| a.has_several_instructions());
        let mut windows: Vec<_> = several.map(|(i, a)| (a.interior(), i)).collect();
        windows.sort_by_key(|(w, _)| w.start);
        Windows(windows)
    }

    /// The site whose window holds `addr`.
    fn at(&self, addr: u64) -> Option<usize> {
        let after = self.0.partition_point(|(w, _)| w.start <= addr);
        self.0[..after].last().filter(|(w, _)| w.contains(&addr)).map(|(_, i)| *i)
    }

    /// Moves threads that stand inside a window to the copy of the instruction that they stand on, and
    /// gives up sites that a thread will return into. They are moved at once: before anything is written.
    fn keep_out(&self, memory: &Memory, armed: &mut [Armed], world: &mut World) -> Result<(), Broken> {
        let bounds = self.0.first().zip(self.0.last()).map(|(a, b)| a.0.start..b.0.end);
        let Some(bounds) = bounds else { return Ok(()) };
        for thread in world.threads_mut() {
            if self.at(thread.pc()).is_some() {
                // Out of a restartable sequence it can only go by the abort address.
                leave_sequence(memory, thread)?;
            }
            let pc = thread.pc();
            let Some(i) = self.at(pc).filter(|i| armed[*i].missed.is_none()) else { continue };
            match armed[i].moved(pc) {
                Some(to) => thread.set_pc(to),
                None => armed[i].missed = Some(Missed::ThreadInside { tid: thread.tid }),
            }
        }
        for sleeper in world.sleepers() {
            for i in sleeper.pcs().filter_map(|pc| self.at(pc)) {
                armed[i].missed.get_or_insert(Missed::ThreadInside { tid: sleeper.tid });
            }
        }
        // As they are now: stacks grow, and threads have come.
        let mappings = image_maps(memory.pid)?;
        for back in stacks::find(memory, world, &mappings, bounds, |w| self.at(w).is_some()) {
            if let Some(i) = self.at(back.pc) {
                armed[i].missed.get_or_insert(Missed::ThreadInside { tid: back.tid });
            }
        }
        Ok(())
    }
}
