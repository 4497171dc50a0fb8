//! All threads of a process held still.
//!
//! For:     writing text that threads run, looking where they stand, running a call in one of them.
//! State:   the ptrace stops of this process's threads, owned by the calling OS thread.
//! Context: control.
//! Keeps:   S1 while a value lives, no thread of the target runs user code.
//!          S2 a signal that arrived meanwhile is delivered, none is invented.
//!          S3 an interrupted system call goes on: the kernel restarts most by itself; one that it would end
//!             with EINTR for our stop alone is set back to its start.
//!          S4 on drop every thread runs on (or stays stopped by job control, as before).
//! Checked: testkit `waits`, `signals`, `lives`; the longest stall is measured and printed.

use crate::error::Broken;
use crate::reports::{self, NOHANG};
use crate::{inject, process};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use sys::ptrace::{self, Regs};
use sys::wait::Status;
use sys::{Errno, nr};

/// How long a thread may take to stop before we let all go and try again.
const PATIENCE: Duration = Duration::from_millis(50);
/// The same after several tries.
const PATIENCE_MAX: Duration = Duration::from_secs(1);
/// Only after so long do we look whether those that stand have died meanwhile.
const SUSPICIOUS: Duration = Duration::from_millis(5);
/// What the command names its engine process.
pub const ENGINE_NAME: &str = "np-engine";

/// What the kernel keeps in rax for calls that it will restart.
const ERESTARTNOINTR: i64 = 513;
const ERESTART_RESTARTBLOCK: i64 = 516;

thread_local! {
    /// The process that this OS thread keeps in a stop.
    static HELD: Cell<i32> = const { Cell::new(0) };
}

/// A process whose first thread stands in a ptrace stop of ours: as long as it does, [`World::stop`] takes it as it is, and
/// leaves it so.
#[derive(Debug)]
pub struct Held {
    pid: i32,
}

impl Held {
    /// `pid` must be seized by this OS thread, and stopped.
    pub(crate) fn new(pid: i32) -> Held {
        HELD.set(pid);
        Held { pid }
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.pid
    }
}

/// Lets it run.
impl Drop for Held {
    fn drop(&mut self) {
        if is_held(self.pid) {
            HELD.set(0);
            reports::let_go(self.pid, 0);
        }
    }
}

/// This OS thread keeps the process in a stop.
pub(crate) fn is_held(pid: i32) -> bool {
    pid != 0 && HELD.get() == pid
}

/// One stopped thread.
#[derive(Debug)]
pub(crate) struct Thread {
    pub tid: i32,
    pub regs: Regs,
    changed: bool,
    asked: Instant,
}

impl Thread {
    /// Where the thread goes on: the system call itself, if the kernel is about to restart one.
    pub fn pc(&self) -> u64 {
        if self.restarts() { self.regs.rip - 2 } else { self.regs.rip }
    }

    /// Moves the thread, which then goes on at `pc`.
    pub fn set_pc(&mut self, pc: u64) {
        let rip = if self.restarts() { pc + 2 } else { pc };
        self.set_regs(Regs { rip, ..self.regs });
    }

    /// Sets registers at once: if we die before the world runs on, the thread is where it was sent.
    pub fn set_regs(&mut self, regs: Regs) {
        self.regs = regs;
        self.changed = ptrace::set_regs(self.tid, &self.regs).is_err();
    }

    /// True if the kernel will set rip back to the system call when the thread runs on.
    fn restarts(&self) -> bool {
        restarts(&self.regs)
    }

    /// A call that the kernel would go on with by `restart_syscall` starts again from its beginning: a seccomp
    /// filter that knows only the call itself would kill the thread for the other. Its time-out starts over.
    fn avoid_restart_call(&mut self) {
        if (self.regs.orig_rax as i64) >= 0 && self.regs.rax as i64 == -ERESTART_RESTARTBLOCK {
            self.set_regs(Regs { rax: (-ERESTARTNOINTR) as u64, ..self.regs });
        }
    }

    /// A call that ends with EINTR because of our stop, and not of a signal, starts again.
    fn undo_interruption(&mut self) {
        if undo_interruption(self.tid, &mut self.regs) {
            self.set_regs(self.regs);
        }
    }
}

/// Sets a call back to its start that ends with EINTR because of our stop, and not of a signal; true if it did.
pub(crate) fn undo_interruption(tid: i32, regs: &mut Regs) -> bool {
    let (call, answer) = (regs.orig_rax as i64, regs.rax as i64);
    if call < 0 || answer != -i64::from(Errno::EINTR.0) || call == nr::CLOSE as i64 {
        return false;
    }
    let waits = ptrace::sigmask(tid).and_then(|m| ptrace::has_deliverable_signal(tid, m));
    if waits == Ok(false) {
        regs.rip -= 2;
        regs.rax = regs.orig_rax;
        regs.orig_rax = u64::MAX;
    }
    waits == Ok(false)
}

/// True if the kernel is about to set rip back to the system call.
pub(crate) fn restarts(regs: &Regs) -> bool {
    (regs.orig_rax as i64) >= 0 && matches!(-(regs.rax as i64), 512 | 513 | 514 | 516)
}

/// A process whose threads all stand still.
#[derive(Debug)]
pub(crate) struct World {
    pub pid: i32,
    threads: BTreeMap<i32, Thread>,
    stalls: Vec<Duration>,
    /// A seccomp filter is on.
    has_filter: bool,
}

impl World {
    /// Stops the threads of `pid`.
    ///
    /// Another nanoprobe at work on it is waited for; any other tracer is an error.
    pub fn stop(pid: i32) -> Result<World, Broken> {
        World::stop_within(pid, Duration::from_secs(2), |tracer| tracer == ENGINE_NAME)
    }

    /// The same for leaving: whoever traces the process is waited for, up to `patience`.
    pub fn stop_to_leave(pid: i32, patience: Duration) -> Result<World, Broken> {
        World::stop_within(pid, patience, |_| true)
    }

    fn stop_within(pid: i32, patience: Duration, is_awaited: impl Fn(&str) -> bool) -> Result<World, Broken> {
        inject::step().map_err(|errno| Broken::Call { what: "stop of the process", errno })?;
        let began = Instant::now();
        let mut pause = Duration::from_micros(500);
        if is_held(pid) {
            return World::held(pid);
        }
        // Each thread must get a CPU before it stops: on a busy machine, with a low priority, that takes longer.
        let mut each = PATIENCE;
        loop {
            // One of its threads may still be ours from before.
            reports::tidy();
            let broken = match process::check(pid).and_then(|s| World::try_stop(pid, s.seccomp != 0, each)) {
                Err(broken @ Broken::WontStop { .. }) => {
                    each = (each * 2).min(PATIENCE_MAX);
                    broken
                }
                Err(broken @ Broken::Traced { .. }) => match &broken {
                    Broken::Traced { by_name, .. } if is_awaited(by_name) => broken,
                    _ => return Err(broken),
                },
                done => return done,
            };
            if began.elapsed() > patience {
                return Err(broken);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// Of a process whose first thread stands already; a library may have started others.
    fn held(pid: i32) -> Result<World, Broken> {
        let regs = ptrace::regs(pid).map_err(|_| Broken::Gone { pid })?;
        let thread = Thread { tid: pid, regs, changed: false, asked: Instant::now() };
        let threads = BTreeMap::from([(pid, thread)]);
        World { pid, threads, stalls: Vec::new(), has_filter: false }.with_all(PATIENCE_MAX)
    }

    fn try_stop(pid: i32, has_filter: bool, patience: Duration) -> Result<World, Broken> {
        World { pid, threads: BTreeMap::new(), stalls: Vec::new(), has_filter }.with_all(patience)
    }

    /// Until no thread is left that does not stand.
    fn with_all(self, patience: Duration) -> Result<World, Broken> {
        let mut world = self;
        loop {
            let asked = world.ask()?;
            if asked.is_empty() {
                break;
            }
            world.await_stops(asked, patience)?;
        }
        if world.threads.is_empty() {
            return Err(Broken::Gone { pid: world.pid });
        }
        Ok(world)
    }

    /// Seizes and interrupts threads that are not yet ours.
    fn ask(&self) -> Result<Vec<(i32, Instant)>, Broken> {
        let mut asked = Vec::new();
        for tid in process::threads(self.pid) {
            if self.threads.contains_key(&tid) {
                continue;
            }
            match seize(self.pid, tid) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(broken) => {
                    release(&asked);
                    return Err(broken);
                }
            }
            let now = Instant::now();
            if ptrace::interrupt(tid).is_ok() {
                asked.push((tid, now));
            }
        }
        Ok(asked)
    }

    fn await_stops(&mut self, mut asked: Vec<(i32, Instant)>, patience: Duration) -> Result<(), Broken> {
        let began = Instant::now();
        let mut pause = Duration::from_micros(5);
        loop {
            let before = asked.len();
            asked.retain(|(tid, since)| !self.has_stopped(*tid, *since));
            if asked.is_empty() {
                return Ok(());
            }
            if began.elapsed() > patience {
                let tid = asked[0].0;
                let state = process::thread_state(self.pid, tid).unwrap_or('?');
                self.let_late_ones_go(&asked);
                return Err(Broken::WontStop { tid, state, waited_ms: patience.as_millis() as u64 });
            }
            if asked.len() == before {
                if began.elapsed() > SUSPICIOUS {
                    self.reap_dead();
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_micros(200));
            }
        }
    }

    /// Takes the thread's report if there is one. True if it needs no further waiting.
    fn has_stopped(&mut self, tid: i32, asked: Instant) -> bool {
        match reports::take(tid, NOHANG) {
            Ok(None) | Err(Errno::EINTR) => false,
            Ok(Some((_, Status::Event(ptrace::event::STOP, _)))) => {
                if let Ok(regs) = ptrace::regs(tid) {
                    let mut thread = Thread { tid, regs, changed: false, asked };
                    thread.undo_interruption();
                    if self.has_filter {
                        thread.avoid_restart_call();
                    }
                    self.threads.insert(tid, thread);
                }
                true
            }
            // A signal came first: it is delivered, and the stop follows before the handler runs.
            Ok(Some((_, Status::Signal(signal)))) => ptrace::cont(tid, signal).is_err(),
            Ok(Some((_, Status::Exited(_) | Status::Killed(_)))) => true,
            Ok(Some(_)) => ptrace::cont(tid, 0).is_err(),
            Err(_) => true,
        }
    }

    /// Threads that have not stopped can be detached only in a stop: wait for it in the background of
    /// the others running on.
    fn let_late_ones_go(&mut self, late: &[(i32, Instant)]) {
        self.run_on();
        for (tid, asked) in late {
            let began = Instant::now();
            while !self.has_stopped(*tid, *asked) {
                if began.elapsed() > PATIENCE_MAX {
                    // It is let go when it stops, whoever looks next.
                    reports::let_go(*tid, 0);
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
                reports::tidy();
            }
            self.run_on();
        }
    }

    /// Reaps threads that were killed in our stop: one that executes another program waits for that.
    fn reap_dead(&mut self) {
        let is_dead = |tid: &i32| {
            matches!(
                reports::take(*tid, NOHANG),
                Ok(Some((_, Status::Exited(_) | Status::Killed(_)))) | Err(_)
            )
        };
        self.threads.retain(|tid, _| !is_dead(tid));
    }

    /// The stopped threads.
    pub fn threads_mut(&mut self) -> impl Iterator<Item = &mut Thread> {
        self.threads.values_mut()
    }

    /// The stopped threads.
    pub fn threads(&self) -> impl Iterator<Item = &Thread> {
        self.threads.values()
    }

    fn run_on(&mut self) {
        for thread in std::mem::take(&mut self.threads).into_values() {
            if thread.changed {
                let _ = ptrace::set_regs(thread.tid, &thread.regs);
            }
            if !(is_held(self.pid) && thread.tid == self.pid) {
                reports::let_go(thread.tid, 0);
            }
            self.stalls.push(thread.asked.elapsed());
        }
    }

    /// Keeps all traced and stopped for the caller, who lets them run; their ids, and since when they stand.
    pub fn keep(mut self) -> Vec<(i32, Instant)> {
        if is_held(self.pid) {
            HELD.set(0);
        }
        let mut kept = Vec::new();
        for thread in std::mem::take(&mut self.threads).into_values() {
            if thread.changed {
                let _ = ptrace::set_regs(thread.tid, &thread.regs);
            }
            kept.push((thread.tid, thread.asked));
        }
        kept
    }

    /// Lets all run on; returns the longest time that one of them stood.
    pub fn resume(mut self) -> Duration {
        self.run_on();
        self.stalls.iter().max().copied().unwrap_or_default()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.run_on();
    }
}

/// Seizes one thread; false if it has ended.
///
/// A tracer that refuses us may have left when we look for it, and another one come: then it is tried again.
fn seize(pid: i32, tid: i32) -> Result<bool, Broken> {
    const TRIES: usize = 16;
    let mut refused = Errno::EPERM;
    for _ in 0..TRIES {
        refused = match ptrace::seize(tid, ptrace::O_TRACESYSGOOD) {
            Ok(()) => return Ok(true),
            Err(Errno::ESRCH) => return Ok(false),
            Err(_) if ended(pid, tid) => return Ok(false),
            Err(errno) => errno,
        };
        process::check_untraced(pid, tid)?;
    }
    Err(process::why_not(pid, refused))
}

fn ended(pid: i32, tid: i32) -> bool {
    matches!(process::thread_state(pid, tid), None | Some('Z' | 'X'))
}

/// Lets threads go that were asked to stop but not waited for.
fn release(asked: &[(i32, Instant)]) {
    for (tid, _) in asked {
        loop {
            match reports::take(*tid, 0) {
                Ok(Some((_, Status::Signal(signal)))) => {
                    let _ = ptrace::cont(*tid, signal);
                }
                Err(Errno::EINTR) => {}
                _ => break,
            }
        }
        reports::let_go(*tid, 0);
    }
}

/// Real-time priority while others stand still or wait for us to get on, where that is allowed.
///
/// On a machine with 32 busy threads a CPU, a time-shared controller gets 3 % of one: an attach took seconds.
#[derive(Debug)]
pub(crate) struct Hurry(bool);

impl Hurry {
    pub fn begin() -> Hurry {
        let is_normal = sys::sched::policy() == Ok(sys::sched::NORMAL);
        Hurry(is_normal && sys::sched::set_policy(sys::sched::FIFO, 1).is_ok())
    }
}

/// More of the CPUs' time while somebody waits for a plan, where that is allowed. Not real-time: a plan may take seconds.
///
/// With 32 busy threads a CPU the plan of 50,000 sites, 0.7 s of work, took 14 s.
#[derive(Debug)]
pub(crate) struct Haste(Option<i32>);

impl Haste {
    const NICE: i32 = -15;

    pub fn begin() -> Haste {
        let before = sys::sched::nice().ok().filter(|nice| *nice > Haste::NICE);
        Haste(before.filter(|_| sys::sched::set_nice(Haste::NICE).is_ok()))
    }
}

impl Drop for Haste {
    fn drop(&mut self) {
        if let Some(nice) = self.0 {
            let _ = sys::sched::set_nice(nice);
        }
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        if self.0 {
            let _ = sys::sched::set_policy(sys::sched::NORMAL, 0);
        }
    }
}
