//! Leaving a process as it was.
//!
//! For:     `Session::detach`.
//! State:   first the bytes, at once; then our memory, as soon as no thread is in it.
//! Context: control.
//! Keeps:   D1 after the first stop no site leads to us, and the text there equals the file.
//!          D2 memory is unmapped only when no thread's program counter, and no address saved in a signal frame,
//!             lies in it, and no thread's rseq area refers to it.
//!          D3 a thread that stood in a trampoline goes on at the probed address, its hit counted or not
//!             begun.
//!          D4 forked children that inherited our patches are freed of them too.
//! Checked: testkit `traces`, `torture attach`.

use crate::attach::image_maps;
use crate::chain::{self, Left};
use crate::error::Broken;
use crate::foothold::Foothold;
use crate::footing::Footing;
use crate::hijack::on_their_way_back;
use crate::memory::Memory;
use crate::pages::Pages;
use crate::process;
use crate::remote::Remote;
use crate::semaphore;
use crate::session::Session;
use crate::site::{Armed, Link};
use crate::stacks;
use crate::verify::is_same_place;
use crate::world::{Hurry, Thread, World};
use image::Mapping;
use std::fs;
use std::time::{Duration, Instant};
use sys::ptrace::Regs;
use text::{PcPlace, Rollback};

/// How long we try to get our memory back before we say that we could not.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long in all, with the time that threads wait for a CPU: they leave as soon as they get one.
const CPU_PATIENCE: Duration = Duration::from_secs(60);
/// More CPU time than a thread needs from a stop to the end of a trampoline.
const WAY_OUT: Duration = Duration::from_micros(50);
/// How long we wait for another tracer to go before we say that we could not leave.
pub(crate) const TRACER_PATIENCE: Duration = Duration::from_secs(10);
/// Offset of `rseq_cs` in an rseq area.
const RSEQ_CS: i64 = 8;

/// What a detach found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// Sites whose bytes are the file's again.
    pub restored: usize,
    /// Sites where another nanoprobe goes on.
    pub handed_over: usize,
    /// Sites that somebody else had changed; left alone. Names.
    pub foreign: Vec<String>,
    /// Addresses where a breakpoint of the kernel's still stands though ours are taken out: nobody owns it, or one that we
    /// do not know.
    pub breakpoints: Vec<u64>,
    /// Sites whose module the process has unmapped meanwhile.
    pub unmapped: usize,
    /// Pages of a soft watch that have their own protection again.
    pub pages: usize,
    /// Every restored site was read back and equals the file.
    pub is_verified: bool,
    /// All our mappings are gone from the target.
    pub is_unmapped: bool,
    /// The thread that kept us from unmapping, and for how long we waited.
    pub held_by: Option<i32>,
    /// The process ended, or runs another program, before we detached.
    pub was_gone: bool,
    /// Forked children that were freed of our patches.
    pub children: usize,
    /// The longest time that a thread stood still for us, from attach to now.
    pub longest_stall: Duration,
    /// The kernel has mapped a page of its own, `[uprobes]`, for sites on rung 7; it stays until the process ends.
    pub has_kernel_page: bool,
    /// How long the detach took.
    pub took: Duration,
}

impl Receipt {
    /// The receipt of both.
    pub fn and(mut self, other: Receipt) -> Receipt {
        self.restored += other.restored;
        self.handed_over += other.handed_over;
        self.foreign.extend(other.foreign);
        self.breakpoints.extend(other.breakpoints);
        self.unmapped += other.unmapped;
        self.pages += other.pages;
        self.is_verified &= other.is_verified;
        self.is_unmapped = (self.is_unmapped || self.was_gone) && (other.is_unmapped || other.was_gone);
        self.held_by = self.held_by.or(other.held_by);
        self.was_gone &= other.was_gone;
        self.has_kernel_page |= other.has_kernel_page;
        self.children = self.children.max(other.children);
        self.longest_stall = self.longest_stall.max(other.longest_stall);
        self.took += other.took;
        self
    }
}

impl Session {
    /// Takes every probe out and our memory back.
    ///
    /// Counts stay readable.
    ///
    /// # Errors
    /// The process could not be stopped; nothing was changed.
    pub fn detach(&mut self) -> Result<Receipt, Broken> {
        let began = Instant::now();
        let _hurry = Hurry::begin();
        let mut receipt = Receipt { is_verified: true, ..Receipt::default() };
        self.is_over = true;
        if let Some(kernel) = &mut self.kernel {
            receipt.breakpoints = kernel.close(&self.memory);
            receipt.is_verified = receipt.breakpoints.is_empty();
        }
        match self.leave(&mut receipt) {
            Err(
                Broken::Gone { .. }
                | Broken::Replaced { .. }
                | Broken::NoProcess { .. }
                | Broken::Zombie { .. },
            ) => receipt.was_gone = true,
            other => other?,
        }
        receipt.children = self.free_children();
        receipt.longest_stall = self.longest_stall;
        receipt.took = began.elapsed();
        self.has_left = true;
        for armed in &mut self.armed {
            armed.is_live = false;
        }
        Ok(receipt)
    }

    fn leave(&mut self, receipt: &mut Receipt) -> Result<(), Broken> {
        let target = (&self.memory, self.mappings.as_slice());
        let stall = leave_process(target, &self.links(), &self.footing(), &self.foothold, receipt);
        self.longest_stall = self.longest_stall.max(stall?);
        let by_kernel = self.kernel.as_ref().map_or(&[][..], |kernel| &kernel.sites);
        receipt.restored += by_kernel.len() - receipt.breakpoints.len().min(by_kernel.len());
        receipt.has_kernel_page = !by_kernel.is_empty()
            && image_maps(self.pid())?.iter().any(|m| m.path.as_os_str() == "[uprobes]");
        if receipt.restored > 0 && !self.is_text_restored() {
            receipt.is_verified = false;
        }
        Ok(())
    }

    fn footing(&self) -> Footing {
        self.regions.footing(self.rseq_offset)
    }

    fn links(&self) -> Vec<Link<'_>> {
        self.armed.iter().filter(|a| a.is_live).map(Armed::link).collect()
    }

    /// Children that were forked while sites were armed have our jumps and our mappings in their copy of
    /// the memory; they are left like their parent. Returns how many there were.
    fn free_children(&self) -> usize {
        let heirs = heirs(self.regions.arena.inode, self.pid());
        let freed = heirs.into_iter().filter(|pid| {
            let mut receipt = Receipt::default();
            let memory = Memory::open(*pid);
            memory.is_ok_and(|m| {
                let child = (&m, self.mappings.as_slice());
                leave_process(child, &self.links(), &self.footing(), &self.foothold, &mut receipt).is_ok()
            })
        });
        freed.count()
    }
}

/// Processes other than `pid` that map the arena with this inode.
fn heirs(inode: u64, pid: i32) -> Vec<i32> {
    let Ok(proc) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = proc.filter_map(|e| e.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let ours = sys::getpid().cast_signed();
    let marker = format!("/memfd:{} (deleted)", wire::ARENA_NAME);
    let inode = format!(" {inode} ");
    pids.filter(|p| *p != pid && *p != ours)
        .filter(|p| {
            let maps = fs::read_to_string(format!("/proc/{p}/maps")).unwrap_or_default();
            maps.lines().any(|l| l.ends_with(&marker) && l.contains(&inode))
        })
        .collect()
}

/// Disarms and unmaps in one process, given with its mappings when the sites were armed, if they are known. Returns the
/// longest stall.
pub(crate) fn leave_process(
    (memory, before): (&Memory, &[Mapping]),
    links: &[Link<'_>],
    footing: &Footing,
    foothold: &Foothold,
    receipt: &mut Receipt,
) -> Result<Duration, Broken> {
    let mappings = image_maps(memory.pid)?;
    let footing = &footing.as_mapped(&mappings);
    let mut longest = Duration::ZERO;
    let began = Instant::now();
    let mut pause = Duration::from_micros(500);
    let mut is_first = true;
    let mut given = Duration::ZERO;
    loop {
        // Nobody is stopped for an address space that is gone: the number may be another process's by now. And it may be
        // replaced by an exec before all threads stand.
        memory.check()?;
        let mut world = World::stop_to_leave(memory.pid, TRACER_PATIENCE)?;
        memory.check()?;
        let mut word = [0u8; 8];
        memory.read(footing.arena.start, &mut word).map_err(|_| Broken::Gone { pid: memory.pid })?;
        if is_first {
            disarm((memory, before), &mut world, links, footing, receipt)?;
            is_first = false;
        }
        if let Some(offset) = footing.rseq_offset {
            forget_rseq(memory, &world, footing, offset);
        }
        let mut occupants = occupants(&world, footing, &mappings);
        // Of a controller that died during a call: the thread makes it, and then nothing of it is left.
        occupants.extend(on_their_way_back(memory, &world, foothold));
        receipt.held_by = occupants.first().copied();
        if occupants.is_empty() {
            let mut remote = Remote::begin(&mut world, memory, foothold)?;
            footing.unmap(&mut remote)?;
            drop(remote);
            receipt.is_unmapped = true;
        }
        longest = longest.max(world.resume());
        if receipt.is_unmapped || given > PATIENCE || began.elapsed() > CPU_PATIENCE {
            return Ok(longest);
        }
        give_way(memory.pid, &occupants, pause);
        given += pause;
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// Restores the bytes of all sites and moves threads out of their trampolines.
fn disarm(
    (memory, before): (&Memory, &[Mapping]),
    world: &mut World,
    links: &[Link<'_>],
    footing: &Footing,
    receipt: &mut Receipt,
) -> Result<(), Broken> {
    let islands = links.iter().filter(|l| l.jump_at != l.site).map(|l| (l.jump_at, l.site));
    let landings = links.iter().filter_map(|l| Some((l.landing?, l.site)));
    let islands: Vec<_> = islands.chain(landings).collect();
    // Before anything is written: if we die then, nobody stands on what is padding again. At the site the same jump
    // leads them on, or none.
    for thread in world.threads_mut() {
        let pc = thread.pc();
        if let Some((_, site)) = islands.iter().find(|(island, _)| *island == pc) {
            thread.set_pc(*site);
        }
    }
    come_back_to_sites(memory, world, &islands)?;
    let mut pages = Pages::of(memory);
    // One read for all tails: thousands of small ones would double the stall.
    let code = footing.read_code(memory)?;
    let mut restored: Vec<&Link<'_>> = Vec::with_capacity(links.len());
    for link in links {
        if !pages.is_mapped(link.jump_at) || !pages.is_mapped(link.site) {
            receipt.unmapped += 1;
            continue;
        }
        let left = chain::leave(memory, &mut pages, link, code.bytes(link.tail, text::JUMP_LEN))?;
        if let Some(at) = link.semaphore.filter(|_| left != Left::Foreign) {
            // Its page may be gone with the module's data; then there is no count either.
            let _ = semaphore::lower(memory, at);
        }
        match left {
            Left::Restored => restored.push(link),
            Left::HandedOver => receipt.handed_over += 1,
            Left::Foreign if !is_same_place(before, &image_maps(memory.pid)?, link.site) => {
                receipt.unmapped += 1;
            }
            Left::Foreign => {
                receipt.is_verified = false;
                receipt.foreign.push(link.name.to_owned());
            }
        }
    }
    pages.flush()?;
    let below = |link: &Link<'_>| text::jump_target(link.tail, code.bytes(link.tail, text::JUMP_LEN));
    chain::forget(memory, footing, links, below)?;
    receipt.restored = restored.len();
    restored.sort_by_key(|link| link.entry);
    for thread in world.threads_mut() {
        let pc = thread.pc();
        // A block begins less than 256 bytes before its entry.
        let near = restored.partition_point(|link| link.entry <= pc);
        for link in restored.iter().skip(near.saturating_sub(1)).take(2) {
            move_out(memory, thread, link);
        }
    }
    Ok(())
}

/// A thread that a signal met on the jump in an island, with its handler still running, comes back to the site instead:
/// on the island is padding again.
fn come_back_to_sites(memory: &Memory, world: &World, islands: &[(u64, u64)]) -> Result<(), Broken> {
    let starts = || islands.iter().map(|(island, _)| *island);
    let Some((first, last)) = starts().min().zip(starts().max()) else { return Ok(()) };
    let mappings = image_maps(memory.pid)?;
    let site_of = |pc: u64| islands.iter().find(|(island, _)| *island == pc).map(|(_, site)| *site);
    for back in stacks::find(world, &mappings, first..last + 1, |pc| site_of(pc).is_some()) {
        if let Some(site) = site_of(back.pc) {
            memory.write(back.at, &site.to_le_bytes())?;
        }
    }
    Ok(())
}

/// Gives a thread in this trampoline what it had at the site, and sends it back there.
fn move_out(memory: &Memory, thread: &mut Thread, link: &Link<'_>) {
    let Some(trampoline) = link.trampoline else { return };
    match trampoline.place_of(thread.pc()) {
        Some(PcPlace::Body(rollback)) => {
            if let Some(mut regs) = rolled_back(memory, &thread.regs, &rollback) {
                regs.rip = link.site + u64::from(rollback.resume);
                thread.set_regs(regs);
            }
        }
        Some(PcPlace::Displaced(origin)) => {
            // An operand may be gone already: the thread runs on to the end of the copy by itself.
            if !origin.is_restartable {
                return;
            }
            let mut regs = thread.regs;
            regs.rsp += u64::from(origin.stack_shift_bytes);
            thread.set_regs(regs);
            thread.set_pc(origin.leads_to.unwrap_or(link.site + u64::from(origin.offset)));
        }
        Some(PcPlace::Elsewhere) | None => {}
    }
}

/// The registers at the site, from what the trampoline has saved by now.
fn rolled_back(memory: &Memory, regs: &Regs, rollback: &Rollback) -> Option<Regs> {
    let mut out = *regs;
    let load = |slot: u16| {
        let mut word = [0u8; 8];
        memory.read(regs.rsp + u64::from(slot), &mut word).ok()?;
        Some(u64::from_le_bytes(word))
    };
    for saved in &rollback.saved {
        *by_number(&mut out, saved.number)? = load(saved.slot)?;
    }
    if let Some(slot) = rollback.flags {
        // ah as lahf left it, al the overflow flag.
        let ax = load(slot)?;
        let (low, overflow) = ((ax >> 8) & 0xd5, ax & 1);
        out.eflags = (out.eflags & !0x8d5) | low | overflow << 11;
    }
    out.rsp = regs.rsp + u64::from(rollback.rsp_add);
    Some(out)
}

fn by_number(regs: &mut Regs, number: u8) -> Option<&mut u64> {
    Some(match number {
        0 => &mut regs.rax,
        1 => &mut regs.rcx,
        2 => &mut regs.rdx,
        6 => &mut regs.rsi,
        7 => &mut regs.rdi,
        8 => &mut regs.r8,
        9 => &mut regs.r9,
        10 => &mut regs.r10,
        11 => &mut regs.r11,
        _ => return None,
    })
}

/// Whether a thread is in this memory of ours or another controller's, or will come back to it.
pub(crate) fn is_occupied(world: &World, footing: &Footing, mappings: &[Mapping]) -> bool {
    !occupants(world, footing, mappings).is_empty()
}

/// The threads that are in our memory, or will come back to it.
fn occupants(world: &World, footing: &Footing, mappings: &[Mapping]) -> Vec<i32> {
    // A thread that was moved out has its new place in `regs` already.
    let mut tids: Vec<i32> = world.threads().filter(|t| footing.contains(t.pc())).map(|t| t.tid).collect();
    if let Some(bounds) = footing.bounds() {
        let found = stacks::find(world, mappings, bounds, |w| footing.contains(w));
        tids.extend(found.into_iter().map(|back| back.tid));
    }
    tids.sort_unstable();
    tids.dedup();
    tids
}

/// Waits for `pause`, and on until none of these threads waits for its turn on a CPU.
///
/// With many more busy threads than CPUs a turn comes after a tenth of a second and more. Stopping all threads again
/// before it came puts it off: a detach took five seconds so.
fn give_way(pid: i32, tids: &[i32], pause: Duration) {
    let before: Vec<_> = tids.iter().map(|tid| process::cpu_time(pid, *tid)).collect();
    let waits_for_cpu = |(tid, before): (&i32, &Option<Duration>)| {
        let ran = process::cpu_time(pid, *tid).zip(*before).map(|(now, before)| now.saturating_sub(before));
        ran.is_some_and(|ran| ran < WAY_OUT) && process::thread_state(pid, *tid) == Some('R')
    };
    let end = Instant::now() + CPU_PATIENCE;
    std::thread::sleep(pause);
    while Instant::now() < end && tids.iter().zip(&before).any(waits_for_cpu) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The kernel reads the descriptor that a thread's rseq area names whenever it preempts the thread, and
/// kills it if the descriptor is not mapped. A thread that stands in our code may be in the section that it
/// names, and keeps it.
fn forget_rseq(memory: &Memory, world: &World, footing: &Footing, offset: i32) {
    for thread in world.threads().filter(|t| !footing.contains(t.pc())) {
        let at = thread.regs.fs_base.wrapping_add_signed(i64::from(offset) + RSEQ_CS);
        let mut word = [0u8; 8];
        if memory.read(at, &mut word).is_ok() && footing.contains(u64::from_le_bytes(word)) {
            let _ = memory.write(at, &[0; 8]);
        }
    }
}
