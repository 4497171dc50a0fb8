//! Leaving one process as it was.
//!
//! For:     the end of a session, forked children, and recovery after a controller was killed.
//! State:   first the bytes, at once; then our memory, as soon as no thread is in it.
//! Context: control.
//! Keeps:   D1 after the first stop no site leads to us, and the text there equals the file.
//!          D2 memory is unmapped only when no thread's program counter, and no address saved in a signal frame,
//!             lies in it, and no thread's rseq area refers to it.
//!          D3 a thread that stood in a trampoline goes on at the probed address, its hit counted or not
//!             begun.
//!          D4 what lies where our memory lay is neither written nor unmapped unless it is our arena's file that is mapped there.
//! Checked: tests below; testkit `traces`, `endings`; `torture attach`.

use crate::arch;
use crate::enter::footing::Footing;
use crate::enter::occupants::occupants;
use crate::enter::semaphore;
use crate::facts::error::Broken;
use crate::facts::site::Link;
use crate::find::maps::image_maps;
use crate::find::memory::Memory;
use crate::find::process;
use crate::find::proof::{Gone, Unmapped};
use crate::hold::hijack::on_their_way_back;
use crate::hold::remote::Remote;
use crate::hold::stacks;
use crate::hold::world::{Thread, World};
use crate::leave::leaving::{Leaving, TRACER_PATIENCE};
use crate::leave::receipt::{Receipt, Residue};
use crate::leave::verify::{self, is_same_place};
use crate::patch::chain::{self, Left};
use crate::patch::pages::Pages;
use std::time::{Duration, Instant};
use sys::ptrace::Regs;
use text::{PcPlace, Rollback};

/// How long we try to get our memory back before we say that we could not.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long in all, with the time that threads wait for a CPU: they leave as soon as they get one.
const CPU_PATIENCE: Duration = Duration::from_secs(60);
/// More CPU time than a thread needs from a stop to the end of a trampoline.
const WAY_OUT: Duration = Duration::from_micros(50);
/// Offset of `rseq_cs` in an rseq area.
const RSEQ_CS: i64 = 8;

impl Leaving<'_> {
    /// Leaves the process, unless it is gone, for certain.
    pub fn leave_or_see_end(&self, receipt: &mut Receipt) -> Result<(), Broken> {
        match self.leave(None, receipt) {
            Ok(()) => Ok(()),
            Err(broken) => match Gone::proven(self.memory) {
                Some(proof) => {
                    receipt.is_gone(proof);
                    Ok(())
                }
                None => Err(broken),
            },
        }
    }

    /// Disarms, unmaps and looks; in the stop that the process is in already, if it is.
    pub fn leave(&self, stopped: Option<World>, receipt: &mut Receipt) -> Result<(), Broken> {
        let pid = self.memory.pid;
        let footing = &self.footing.as_mapped(&image_maps(pid)?);
        let whole = Leaving { footing, ..*self };
        whole.leave_as_mapped(stopped, receipt)
    }

    fn leave_as_mapped(&self, mut stopped: Option<World>, receipt: &mut Receipt) -> Result<(), Broken> {
        let pid = self.memory.pid;
        let began = Instant::now();
        let mut pause = Duration::from_micros(500);
        let mut is_first = true;
        let mut given = Duration::ZERO;
        loop {
            let mut world = match stopped.take() {
                Some(world) => world,
                None => {
                    // Nobody is stopped for a memory that is gone: the number may be another process's by now.
                    self.memory.check()?;
                    World::stop_to_leave(pid, TRACER_PATIENCE)?
                }
            };
            // The memory may have been replaced by an exec before all threads stood.
            self.memory.check()?;
            // What lies where our memory lay may be a newcomer's: an orphan may have been recovered by another, and the
            // process may have unmapped what is ours.
            if !self.footing.stands(&image_maps(pid)?) {
                receipt.longest_stall = receipt.longest_stall.max(world.resume());
                receipt.residues.push(Residue::Displaced);
                receipt.is_left(None, None);
                return Ok(());
            }
            if is_first {
                self.disarm(&mut world, receipt)?;
                is_first = false;
            }
            forget_rseq(self.memory, &world, self.footing)?;
            let mut occupants = occupants(self.memory, &world, self.footing, &image_maps(pid)?);
            // Of a controller that died during a call: the thread makes it, and then nothing of it is left.
            occupants.extend(on_their_way_back(self.memory, &world, self.foothold));
            let unmapped = match occupants.is_empty() {
                true => Some(self.unmap(&mut world)?),
                false => None,
            };
            receipt.longest_stall = receipt.longest_stall.max(world.resume());
            if unmapped.is_some() || given > PATIENCE || began.elapsed() > CPU_PATIENCE {
                if unmapped.is_none() {
                    receipt.residues.extend(occupants.first().map(|by| Residue::Held { by: *by }));
                }
                receipt.is_left(verify::text(self), unmapped);
                return Ok(());
            }
            given += give_way(pid, &occupants, pause);
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }

    /// Takes these probes out, in one stop, and leaves the memory: others of the same session go on.
    pub fn take_out(&self, receipt: &mut Receipt) -> Result<(), Broken> {
        self.memory.check()?;
        let mut world = World::stop_to_leave(self.memory.pid, TRACER_PATIENCE)?;
        self.memory.check()?;
        let stands = self.footing.stands(&image_maps(self.memory.pid)?);
        match stands {
            true => self.disarm(&mut world, receipt)?,
            false => receipt.residues.push(Residue::Displaced),
        }
        receipt.longest_stall = receipt.longest_stall.max(world.resume());
        receipt.is_left(if stands { verify::text(self) } else { None }, None);
        Ok(())
    }

    fn unmap(&self, world: &mut World) -> Result<Unmapped, Broken> {
        let mut remote = Remote::begin(world, self.memory, self.foothold)?;
        self.footing.unmap(&mut remote)
    }

    /// Restores the bytes of all sites and moves threads out of their trampolines.
    fn disarm(&self, world: &mut World, receipt: &mut Receipt) -> Result<(), Broken> {
        let Leaving { memory, before, links, footing, .. } = *self;
        let islands = links.iter().filter(|l| l.jump_at != l.site).map(|l| (l.jump_at, l.site));
        let landings = links.iter().filter_map(|l| Some((l.landing?, l.site)));
        let islands: Vec<_> = islands.chain(landings).collect();
        let site_of = |pc: u64| islands.iter().find(|(island, _)| *island == pc).map(|(_, site)| *site);
        if let Some(sleeper) = world.sleepers().find(|s| site_of(s.at.pc).is_some()) {
            // It waits for the page of an instruction that will not be there.
            return Err(Broken::WontStop { tid: sleeper.tid, state: 'D', waited_ms: 0, stop: None });
        }
        // Before anything is written: if we die then, nobody stands on what is padding again. At the site the same jump
        // leads them on, or none.
        for thread in world.threads_mut() {
            if let Some(site) = site_of(thread.pc()) {
                thread.set_pc(site);
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
            if link.has_semaphore && left != Left::Foreign {
                receipt.residues.extend(lowered(memory, &mut pages, link));
            }
            match left {
                Left::Restored => restored.push(link),
                Left::HandedOver => receipt.handed_over += 1,
                Left::Foreign if !is_same_place(before, &image_maps(memory.pid)?, link.site) => {
                    receipt.unmapped += 1;
                }
                Left::Foreign => {
                    receipt.residues.push(Residue::Foreign { site: link.name.to_owned() });
                }
            }
        }
        pages.flush()?;
        let below = |link: &Link<'_>| text::jump_target(link.tail, code.bytes(link.tail, text::JUMP_LEN));
        chain::forget(memory, footing, links, below)?;
        receipt.restored += restored.len();
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
}

/// The count of a mark's tracers is one less. What could not be done is named.
fn lowered(memory: &Memory, pages: &mut Pages<'_>, link: &Link<'_>) -> Option<Residue> {
    // A second try goes on where the first one came to: that is noted.
    let tries = || semaphore::lower(memory, link.entry).or_else(|_| semaphore::lower(memory, link.entry));
    // Its page may be gone with the module's data; then there is no count either. And the note is gone with our memory, if
    // a detach that failed had come so far.
    let failed =
        tries().is_err() && semaphore::whose(memory, link.entry).is_some_and(|at| pages.is_mapped(at));
    failed.then(|| Residue::Raised { site: link.name.to_owned() })
}

/// A thread that a signal met on the jump in an island, with its handler still running, comes back to the site instead:
/// on the island is padding again.
fn come_back_to_sites(memory: &Memory, world: &World, islands: &[(u64, u64)]) -> Result<(), Broken> {
    let starts = || islands.iter().map(|(island, _)| *island);
    let Some((first, last)) = starts().min().zip(starts().max()) else { return Ok(()) };
    let mappings = image_maps(memory.pid)?;
    let site_of = |pc: u64| islands.iter().find(|(island, _)| *island == pc).map(|(_, site)| *site);
    for back in stacks::find(memory, world, &mappings, first..last + 1, |pc| site_of(pc).is_some()) {
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
                regs = regs.at(link.site + u64::from(rollback.resume));
                thread.set_regs(regs);
            }
        }
        Some(PcPlace::Displaced(origin)) => {
            // An operand may be gone already: the thread runs on to the end of the copy by itself.
            if !origin.is_restartable {
                return;
            }
            let regs = thread.regs;
            thread.set_regs(regs.with_sp(regs.sp() + u64::from(origin.stack_shift_bytes)));
            thread.set_pc(origin.leads_to.unwrap_or(link.site + u64::from(origin.offset)));
        }
        Some(PcPlace::Elsewhere) | None => {}
    }
}

/// The registers at the site, from what the trampoline has saved by now.
fn rolled_back(memory: &Memory, regs: &Regs, rollback: &Rollback) -> Option<Regs> {
    let mut out = *regs;
    let load = |slot: u16| memory.word(regs.sp() + u64::from(slot));
    for saved in &rollback.saved {
        *arch::register(&mut out, saved.number)? = load(saved.slot)?;
    }
    if let Some(slot) = rollback.flags {
        arch::set_flags(&mut out, load(slot)?);
    }
    Some(out.with_sp(regs.sp() + u64::from(rollback.rsp_add)))
}

/// Waits for `pause`, and on until none of these threads waits for its turn on a CPU. How much of that they all had for
/// themselves: one that is ready to run has what time it got on a CPU.
///
/// With many more busy threads than CPUs a turn comes after a tenth of a second and more. Stopping all threads again
/// before it came puts it off: a detach took five seconds so.
fn give_way(pid: i32, tids: &[i32], pause: Duration) -> Duration {
    let before: Vec<_> = tids.iter().map(|tid| process::cpu_time(pid, *tid)).collect();
    // `None` of one that does not wait for a CPU.
    let ran = |(tid, before): (&i32, &Option<Duration>)| {
        let ran =
            process::cpu_time(pid, *tid).zip(*before).map(|(now, before)| now.saturating_sub(before))?;
        (process::thread_state(pid, *tid) == Some('R')).then_some(ran)
    };
    let all = || tids.iter().zip(&before).filter_map(ran);
    let end = Instant::now() + CPU_PATIENCE;
    std::thread::sleep(pause);
    while Instant::now() < end && all().any(|ran| ran < WAY_OUT) {
        std::thread::sleep(Duration::from_millis(1));
    }
    all().fold(pause, Duration::min)
}

/// The kernel reads the descriptor that a thread's rseq area names whenever it preempts the thread, and
/// kills it if the descriptor is not mapped. A thread that stands in our code may be in the section that it
/// names, and keeps it.
pub(crate) fn forget_rseq(memory: &Memory, world: &World, footing: &Footing) -> Result<(), Broken> {
    let Some(offset) = footing.rseq_offset else { return Ok(()) };
    let outside = world.threads().filter(|t| !footing.contains(t.pc())).map(|t| t.regs.thread_pointer());
    for base in outside.chain(world.sleepers().filter_map(|s| s.fs_base)) {
        let at = base.wrapping_add_signed(i64::from(offset) + RSEQ_CS);
        if memory.word(at).is_some_and(|named| footing.contains(named)) {
            // Left there, it would be the thread's death as soon as our memory is gone.
            memory.write(at, &[0; 8])?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::inject::tests::Subject;
    use crate::live::session::Session;
    use sys::{mapping as mm, nr};

    /// A stopped thread of the subject's unmaps the arena, and maps memory of its own there.
    fn displace(session: &Session) {
        let arena = session.regions.footing(None).arena;
        let mut world = World::stop(session.pid()).unwrap();
        let mut remote = Remote::begin(&mut world, &session.memory, &session.foothold).unwrap();
        remote.unmap(&arena).unwrap();
        let (prot, flags) =
            (mm::PROT_READ | mm::PROT_WRITE, mm::MAP_PRIVATE | mm::MAP_ANONYMOUS | mm::MAP_FIXED);
        let args = [arena.start, arena.end - arena.start, prot as u64, flags as u64, u64::MAX, 0];
        assert_eq!(remote.call("mmap", nr::MMAP, args).unwrap(), arena.start);
        session.memory.write(arena.start, b"its own").unwrap();
    }

    #[test]
    fn memory_that_the_process_has_mapped_where_our_arena_was_is_left_alone() {
        let subject = Subject::start();
        let mut session = Session::attach(subject.pid(), subject.idle_site()).unwrap();
        let arena = session.regions.footing(None).arena;
        displace(&session);
        let before = subject.seen();
        let receipt = session.detach().unwrap();
        assert_eq!(session.memory.read_vec(arena.start, 7).unwrap(), b"its own");
        assert!(subject.seen() == before, "something was written or unmapped: {receipt:?}");
        assert!(!receipt.is_verified() && !receipt.is_unmapped(), "the jump is there: {receipt:?}");
        assert_eq!(receipt.residues, [Residue::Displaced]);
    }
}
