//! Watchpoints in debug registers.
//!
//! For:     `nanoprobe watch`.
//! State:   one perf event for each thread and watch, and each CPU where the trap comes before the access; a claim that says so to
//!          others; who sees each access, if more than counts is wanted or the trap comes before.
//! Context: control. The target runs except while events are opened.
//! Keeps:   H1 each access from user mode counts once, whatever thread makes it, born before or after: events
//!          are opened while all threads stand still, so that none is born between, and are inherited.
//!          H2 the target's memory and signals are left alone.
//!          H3 counts are the events' own, and do not depend on what was recorded; of a watch that is over since traps break what it
//!             watches, the tries that were seen are taken off.
//! Checked: testkit `watching`, against a program that counts its own writes; the machine's test (docs/aarch64.md).

use super::ahead::{Ahead, Lapse};
use super::callers::Callers;
use super::record::Recorder;
use super::registers::{Claim, Others, Taken, process_in_words};
use super::{Access, Detail, Touch, Watch, WatchError, step};
use crate::arch;
use crate::facts::descriptor::owned;
use crate::facts::error::Broken;
use crate::facts::ported;
use crate::find::memory::Memory;
use crate::find::process;
use crate::hold::world::{Hurry, World};
use crate::leave::recover::recover;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use sys::perf::{self, Breakpoint, access};
use sys::{Errno, sched};

/// Watches of a process, counting.
#[derive(Debug)]
pub struct Hard {
    /// Before the events, as it has to end before they do.
    _claim: Option<Claim>,
    pid: i32,
    start_time: Option<u64>,
    watches: Vec<Watch>,
    /// By watch.
    events: Vec<Vec<File>>,
    eyes: Eyes,
    threads: usize,
    /// How long it took to set them, and how long a thread stood.
    took: Duration,
    stall: Duration,
}

/// Who sees each access.
#[derive(Debug)]
enum Eyes {
    /// Nobody: it is only counted.
    None,
    /// Programs of the kernel's, in a trap behind it.
    Behind(Recorder),
    /// We, by samples of traps before it.
    Ahead(Ahead),
}

impl Hard {
    /// Watches from now on, on all threads and those that they will start; forked processes too if told.
    ///
    /// # Errors
    /// See [`WatchError`]; then nothing is left behind.
    pub fn arm(
        pid: i32,
        watches: Vec<Watch>,
        with_children: bool,
        detail: Detail,
    ) -> Result<Hard, WatchError> {
        if detail == Detail::Stacks {
            ported::check(ported::STACKS)?;
        }
        recover(pid)?;
        let mut others = Others::default();
        others.look();
        sched::raise_descriptor_limit();
        let _hurry = Hurry::begin();
        let began = Instant::now();
        let world = World::stop(pid)?;
        others.look();
        let taken = Taken::of(&world, &others);
        taken.check(&watches)?;
        let mut eyes = eyes(pid, &watches, detail)?;
        let tids: Vec<i32> = world.threads().map(|t| t.tid).collect();
        let mut events = Vec::new();
        for (n, watch) in watches.iter().enumerate() {
            match open_all(n, watch, &tids, with_children, &mut eyes) {
                Ok(opened) => events.push(opened),
                Err(errno) => {
                    drop(world);
                    return Err(refused(pid, watch, errno, &watches[..events.len()], &taken));
                }
            }
        }
        let _claim = Claim::of(&world, &watches);
        let stall = world.resume();
        let took = began.elapsed();
        let start_time = process::start_time(pid);
        Ok(Hard { _claim, pid, start_time, watches, events, eyes, threads: tids.len(), took, stall })
    }

    /// The accesses that were recorded since the last call; none if only counts were wanted.
    pub fn take_touches(&mut self) -> Vec<Touch> {
        self.take(false)
    }

    /// The rest of them, after [`disarm`](Self::disarm).
    pub fn take_last_touches(&mut self) -> Vec<Touch> {
        self.take(true)
    }

    fn take(&mut self, is_last: bool) -> Vec<Touch> {
        let ahead = match &mut self.eyes {
            Eyes::None => return Vec::new(),
            Eyes::Behind(recorder) => return recorder.take(),
            Eyes::Ahead(ahead) => ahead,
        };
        let (touches, lapsed) = ahead.take(is_last);
        for Lapse { watch, .. } in lapsed {
            disable(&self.events[watch]);
        }
        touches
    }

    /// Whether [`take_touches`](Self::take_touches) has to be called again and again.
    pub fn has_to_look(&self) -> bool {
        !matches!(self.eyes, Eyes::None)
    }

    /// Who was seen to stop the process meanwhile, by number and name, where that may end the watches of some of its threads.
    pub fn stopped_by(&self) -> Option<(i32, String)> {
        let Eyes::Ahead(ahead) = &self.eyes else { return None };
        ahead.tracer().map(|pid| (pid, process::name(pid)))
    }

    /// Watches that are over, as their trap breaks exclusive accesses of the process: a thread would begin again for ever.
    pub fn lapses(&self) -> &[Lapse] {
        match &self.eyes {
            Eyes::Ahead(ahead) => ahead.lapses(),
            _ => &[],
        }
    }

    /// Accesses that were counted and found no room to be recorded.
    pub fn lost(&self) -> u64 {
        match &self.eyes {
            Eyes::None => 0,
            Eyes::Behind(recorder) => recorder.lost(),
            Eyes::Ahead(ahead) => ahead.untold(),
        }
    }

    /// A watch by its number.
    pub fn watch(&self, number: usize) -> Option<&Watch> {
        self.watches.get(number)
    }

    /// The watches, each with its accesses so far.
    ///
    /// # Errors
    /// An event cannot be read.
    pub fn counts(&mut self) -> std::io::Result<Vec<(&Watch, u64)>> {
        let mut counts = Vec::new();
        for (n, (watch, events)) in self.watches.iter().zip(&mut self.events).enumerate() {
            let mut sum = 0u64;
            for event in events {
                let mut value = [0u8; 8];
                event.read_exact(&mut value)?;
                sum += u64::from_le_bytes(value);
            }
            let broken = if let Eyes::Ahead(ahead) = &self.eyes { ahead.broken(n) } else { 0 };
            counts.push((watch, sum.saturating_sub(broken)));
        }
        Ok(counts)
    }

    /// Stops counting, so that what is read afterwards is final.
    pub fn disarm(&mut self) {
        self.events.iter().for_each(|events| disable(events));
    }

    /// Whether the process is still the one that we watch.
    pub fn is_alive(&self) -> bool {
        !process::is_over(self.pid)
            && process::start_time(self.pid).is_none_or(|t| Some(t) == self.start_time)
    }

    /// Threads that had events opened.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// How long arming took, and the longest time that a thread stood for it.
    pub fn times(&self) -> (Duration, Duration) {
        (self.took, self.stall)
    }
}

fn disable(events: &[File]) {
    for event in events {
        // It is over with the descriptor at the latest.
        let _ = perf::disable(event.as_raw_fd());
    }
}

/// In a process that stands.
fn eyes(pid: i32, watches: &[Watch], detail: Detail) -> Result<Eyes, WatchError> {
    if detail == Detail::Count && !arch::TRAPS_AHEAD {
        return Ok(Eyes::None);
    }
    let memory = Arc::new(Memory::open(pid)?);
    let values: Vec<u64> = watches.iter().map(|w| step::value(&memory, w)).collect();
    if arch::TRAPS_AHEAD {
        return Ok(Eyes::Ahead(Ahead::new(pid, memory, watches, &values, detail)));
    }
    let callers = (detail == Detail::Stacks).then(|| Callers::of(memory));
    Recorder::new(pid, watches, &values, callers).map(Eyes::Behind)
}

/// One event for each thread; on each CPU, where samples are taken.
fn open_all(
    number: usize,
    watch: &Watch,
    tids: &[i32],
    with_children: bool,
    eyes: &mut Eyes,
) -> Result<Vec<File>, Errno> {
    let recorder = match eyes {
        Eyes::None => None,
        Eyes::Behind(recorder) => Some(recorder),
        Eyes::Ahead(ahead) => return ahead.open(number, tids, with_children),
    };
    let open = |tid: &i32| {
        let event = open(watch, *tid, with_children, recorder.is_some())?;
        recorder.as_ref().map_or(Ok(()), |r| r.attach(number, event.as_raw_fd()))?;
        Ok(event)
    };
    tids.iter().map(open).collect()
}

fn open(watch: &Watch, tid: i32, with_children: bool, is_recorded: bool) -> Result<File, Errno> {
    let breakpoint = Breakpoint {
        addr: watch.addr,
        len: watch.len,
        access: match watch.access {
            Access::Write => access::WRITE,
            Access::ReadWrite => access::READ_WRITE,
        },
        starts_disabled: false,
        is_inherited: true,
        is_for_children: with_children,
        raises_sigtrap: false,
        runs_program: is_recorded,
    };
    owned(perf::open_breakpoint(&breakpoint, tid)).map(File::from)
}

/// The kernel's answer with what can be found out about it.
pub(super) fn refused(pid: i32, watch: &Watch, errno: Errno, armed: &[Watch], taken: &Taken) -> WatchError {
    match errno {
        Errno::ENOSPC | Errno::EBUSY => {
            let ours = armed.iter().map(|w| format!("{} (this command)", w.name));
            let claimed = taken.holders().iter().cloned();
            let holders = ours.chain(claimed).chain(others(pid)).collect();
            WatchError::NoRegister { name: watch.name.clone(), registers: taken.registers(), holders }
        }
        Errno::ENODEV | Errno::ENOENT | Errno::EOPNOTSUPP | Errno::ENOSYS => WatchError::NoHardware { errno },
        Errno::EACCES | Errno::EPERM => WatchError::not_allowed(errno),
        errno => WatchError::Broken(Broken::Call { what: "perf_event_open", errno }),
    }
}

/// Processes that hold perf events. The kernel does not tell which of those are breakpoints, nor whose.
fn others(pid: i32) -> Vec<String> {
    let mut found = Vec::new();
    let tracer = process::Status::of(pid).ok().flatten().map_or(0, |s| s.tracer);
    if tracer != 0 && tracer != sys::getpid() as i32 {
        found.push(format!("perhaps {tracer} ({}), which traces the process", process::name(tracer)));
    }
    for other in process::all().into_iter().flatten().filter(|other| *other != sys::getpid() as i32) {
        let Ok(fds) = fs::read_dir(format!("/proc/{other}/fd")) else { continue };
        let links = fds.flatten().filter_map(|e| fs::read_link(e.path()).ok());
        let events = links.filter(|l| l.as_os_str() == "anon_inode:[perf_event]").count();
        if events > 0 {
            found.push(format!("perhaps {}: {events} perf events", process_in_words(other)));
        }
    }
    found
}
