//! All threads that run in a process's memory, held still.
//!
//! For:     writing text that threads run, looking where they stand, running a call in one of them.
//! State:   the ptrace stops of the threads, owned by the calling OS thread.
//! Context: control, apart (tracer.rs).
//! Keeps:   S1 while a value lives, no thread that shares the memory runs user code, whichever process it is of.
//!          S2 a signal that arrived meanwhile is delivered, none is invented.
//!          S3 an interrupted system call goes on: the kernel restarts most by itself; one that it would end
//!             with EINTR for our stop alone is set back to its start.
//!          S4 on drop every thread runs on (or stays stopped by job control, as before).
//!          S5 a stop ends, whatever the threads do: one that sleeps in the kernel and cannot be stopped (behind its
//!             vfork child) is taken as it sleeps: it was asked to stop, and does before it runs its own code again; one
//!             that waits for a CPU is waited for, as long as the user allows, and the others run between tries.
//!          S6 who waits for another tracer keeps no thread from it that stands: two that each had one would wait for ever.
//!          S7 the stall that is told is the longest of all tries.
//! Checked: testkit `waits`, `signals`, `lives`, `endings`; the longest stall is measured and printed. S6 by tests below, and
//!          `torture uprobe`.

use crate::arch;
use crate::arch::SleptIn;
use crate::facts::error::{Broken, Stop};
use crate::facts::inject;
use crate::find::process::{self, Asleep, ENGINE_NAME};
use crate::find::sharers::Sharers;
use crate::hold::interrupted::undo_interruption;
use crate::hold::reports::{self, NOHANG};
use crate::hold::tracer::{self, Asked, is_held};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use sys::Errno;
use sys::ptrace::{self, Regs};
use sys::wait::Status;

/// How long others stand for a thread that does not get a CPU before we let all go and try again.
const TRY: Duration = Duration::from_millis(200);
/// The same after several tries.
const TRY_MAX: Duration = Duration::from_secs(2);
/// How long we wait for a thread in an uninterruptible sleep: for a disk it is less.
const SLEEP: Duration = Duration::from_millis(50);
/// How often we look what those are about that have not stopped.
const LOOK: Duration = Duration::from_millis(1);
/// Only after so long do we look whether those that stand have died meanwhile.
const SUSPICIOUS: Duration = Duration::from_millis(5);

/// How long we try to stop a process, in ms.
static PATIENCE_MS: AtomicU64 = AtomicU64::new(30_000);

/// Stops that this process of ours has asked for.
static STOPS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The longest time that a thread stood in the tries of the stop that this OS thread makes.
    static TRIED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// How often we have stopped a process so far, whichever: what must not stop one is counted by it.
pub fn stops() -> u64 {
    STOPS.load(Ordering::Relaxed)
}

/// From now on processes whose threads wait for a CPU, or for another nanoprobe, are waited for so long.
pub fn set_patience(patience: Duration) {
    // A setting, made before the work that it is for.
    PATIENCE_MS.store(u64::try_from(patience.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

pub(crate) fn patience() -> Duration {
    Duration::from_millis(PATIENCE_MS.load(Ordering::Relaxed))
}

/// One stopped thread.
#[derive(Debug)]
pub(crate) struct Thread {
    pub tid: i32,
    /// Its process: the one that was asked for, or one that shares its memory.
    pub group: i32,
    pub regs: Regs,
    changed: bool,
    asked: Instant,
    /// What it slept in before it was asked to stop, where that has to be known.
    pub slept: Option<SleptIn>,
}

impl Thread {
    /// Where the thread goes on: the system call itself, if the kernel is about to restart one.
    pub fn pc(&self) -> u64 {
        arch::goes_on_at(&self.regs)
    }

    /// Moves the thread, which then goes on at `pc`.
    pub fn set_pc(&mut self, pc: u64) {
        self.set_regs(arch::sent_to(&self.regs, pc));
    }

    /// Sets registers at once: if we die before the world runs on, the thread is where it was sent.
    pub fn set_regs(&mut self, regs: Regs) {
        self.regs = regs;
        self.changed = ptrace::set_regs(self.tid, &self.regs).is_err();
    }

    /// What its registers are since it has run, for us, and stands again.
    pub fn learn_regs(&mut self) -> Result<(), Errno> {
        self.regs = ptrace::regs(self.tid)?;
        self.changed = false;
        Ok(())
    }

    /// A call that the kernel would go on with by `restart_syscall` starts again from its beginning: a seccomp
    /// filter that knows only the call itself would kill the thread for the other. Its time-out starts over.
    fn avoid_restart_call(&mut self) {
        if let Some(regs) = arch::without_restart_call(&self.regs) {
            self.set_regs(regs);
        }
    }

    /// A call that ends with EINTR because of our stop, and not of a signal, starts again.
    fn undo_interruption(&mut self) {
        if undo_interruption(self.tid, &mut self.regs, self.slept) {
            self.set_regs(self.regs);
        }
    }
}

/// A thread that sleeps in the kernel, uninterruptibly, and stops before it runs its own code again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sleeper {
    pub tid: i32,
    pub at: Asleep,
    /// Its thread pointer, if we know it: of a thread behind a vfork, by its child.
    pub fs_base: Option<u64>,
}

impl Sleeper {
    /// Where it may go on: the system call itself, if the kernel restarts it.
    pub fn pcs(&self) -> impl Iterator<Item = u64> {
        let call = self.at.call.map(|_| self.at.pc.wrapping_sub(arch::SYSCALL.len() as u64));
        [Some(self.at.pc), call].into_iter().flatten()
    }
}

/// A process whose threads all stand still, and those of all processes that share its memory.
#[derive(Debug)]
pub(crate) struct World {
    pub pid: i32,
    threads: BTreeMap<i32, Thread>,
    sleepers: BTreeMap<i32, Sleeper>,
    stalls: Vec<Duration>,
    /// A seccomp filter is on.
    has_filter: bool,
}

impl World {
    /// Stops the threads of `pid`.
    ///
    /// Another nanoprobe at work on it is waited for; any other tracer is an error.
    pub fn stop(pid: i32) -> Result<World, Broken> {
        World::stop_within(pid, patience(), |tracer| tracer == ENGINE_NAME)
    }

    /// The same for leaving: whoever traces the process is waited for, up to `tracers`.
    pub fn stop_to_leave(pid: i32, tracers: Duration) -> Result<World, Broken> {
        World::stop_within(pid, tracers, |_| true)
    }

    fn stop_within(pid: i32, tracers: Duration, is_awaited: impl Fn(&str) -> bool) -> Result<World, Broken> {
        inject::step().map_err(|errno| Broken::Call { what: "stop of the process", errno })?;
        STOPS.fetch_add(1, Ordering::Relaxed);
        let began = Instant::now();
        let mut pause = Duration::from_micros(500);
        if is_held(pid) {
            return World::held(pid);
        }
        let mut each = TRY;
        TRIED.set(Duration::ZERO);
        loop {
            // One of its threads may still be ours from before.
            reports::tidy();
            let (broken, patience) =
                match process::check(pid).and_then(|s| World::try_stop(pid, s.seccomp != 0, each)) {
                    Err(Broken::WontStop { tid, state, stop, .. }) => {
                        each = (each * 2).min(TRY_MAX);
                        let waited_ms = began.elapsed().as_millis() as u64;
                        (Broken::WontStop { tid, state, waited_ms, stop }, patience())
                    }
                    Err(broken @ Broken::Traced { .. }) => match &broken {
                        Broken::Traced { by_name, .. } if is_awaited(by_name) => {
                            World::let_late_go(pid);
                            (broken, tracers)
                        }
                        _ => return Err(broken),
                    },
                    Ok(mut world) => {
                        world.stalls.push(TRIED.get());
                        return Ok(world);
                    }
                    failed => return failed,
                };
            if began.elapsed() > patience {
                return Err(broken);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    fn new(pid: i32, has_filter: bool) -> World {
        World { pid, threads: BTreeMap::new(), sleepers: BTreeMap::new(), stalls: Vec::new(), has_filter }
    }

    /// Of a process whose first thread stands already; a library may have started others.
    fn held(pid: i32) -> Result<World, Broken> {
        let regs = ptrace::regs(pid).map_err(|errno| process::lost(pid, errno))?;
        let thread =
            Thread { tid: pid, group: pid, regs, changed: false, asked: Instant::now(), slept: None };
        let mut world = World::new(pid, false);
        world.threads.insert(pid, thread);
        world.with_all(TRY_MAX)
    }

    fn try_stop(pid: i32, has_filter: bool, patience: Duration) -> Result<World, Broken> {
        World::new(pid, has_filter).with_all(patience)
    }

    /// Lets those run on that were asked and stand by now: the tracer that we wait for may wait for one of them.
    fn let_late_go(pid: i32) {
        let has_filter = process::Status::of(pid).ok().flatten().is_some_and(|s| s.seccomp != 0);
        let mut world = World::new(pid, has_filter);
        for asked in tracer::all_late() {
            world.has_stopped(asked);
        }
    }

    /// Until no thread is left that does not stand.
    fn with_all(self, patience: Duration) -> Result<World, Broken> {
        let pid = self.pid;
        let mut world = self;
        let mut sharers = Sharers::of(pid)?;
        loop {
            let asked = world.ask(&sharers)?;
            if !asked.is_empty() {
                world.await_stops(asked, patience)?;
                continue;
            }
            let Some(thread) = world.threads.keys().next() else {
                // Nobody is left, or nobody who could work for us.
                return Err(match world.sleepers.values().next() {
                    Some(s) => Broken::WontStop { tid: s.tid, state: 'D', waited_ms: 0, stop: None },
                    None if process::is_over(pid) => Broken::Gone { pid },
                    // Its threads came and went, as they do in an exec.
                    None => Broken::WontStop { tid: pid, state: 'R', waited_ms: 0, stop: None },
                });
            };
            if !sharers.newcomers(*thread)? {
                world.learn_thread_pointers();
                return Ok(world);
            }
        }
    }

    /// Seizes and interrupts threads that are not yet ours.
    fn ask(&self, sharers: &Sharers) -> Result<Vec<Asked>, Broken> {
        let mut asked = Vec::new();
        for group in sharers.pids() {
            for tid in process::threads(group)? {
                if self.threads.contains_key(&tid) || self.sleepers.contains_key(&tid) {
                    continue;
                }
                // In an earlier try. A thread that was asked while it executed a program may run on without having
                // stopped: it is asked anew.
                if let Some(late) = tracer::late(tid) {
                    match process::thread_state(group, tid) {
                        // A first thread that has ended reports that with the last one: nobody may stand until then.
                        Some('Z' | 'X') => continue,
                        Some('R' | 'S') if late.since.elapsed() > TRY => drop(ptrace::interrupt(tid)),
                        _ => {}
                    }
                    asked.push(late);
                    continue;
                }
                let slept = arch::FORGETS_CALLS.then(|| process::slept_in(tid)).flatten();
                if !seize(group, tid)? {
                    continue;
                }
                let since = Instant::now();
                if ptrace::interrupt(tid).is_ok() {
                    let now = Asked { tid, group, since, slept };
                    tracer::is_asked(now);
                    asked.push(now);
                } else {
                    // It has died since: an exec of another thread waits until it is reaped.
                    reports::let_go(tid, 0);
                }
            }
        }
        Ok(asked)
    }

    /// Waits for those that were asked. Who does not stop in time stays asked.
    fn await_stops(&mut self, mut asked: Vec<Asked>, patience: Duration) -> Result<(), Broken> {
        let began = Instant::now();
        let mut pause = Duration::from_micros(5);
        let mut next_look = began + LOOK;
        loop {
            let before = asked.len();
            asked.retain(|one| !self.has_stopped(*one));
            if Instant::now() > next_look {
                asked.retain(|one| !self.is_asleep(*one, began.elapsed()));
                next_look = Instant::now() + LOOK;
            }
            let Some(Asked { tid, group, .. }) = asked.first().copied() else { return Ok(()) };
            if began.elapsed() > patience {
                let state = process::thread_state(group, tid).unwrap_or('?');
                let stop = stop_of(group, tid, state);
                self.run_on();
                let waited_ms = patience.as_millis() as u64;
                return Err(Broken::WontStop { tid, state, waited_ms, stop });
            }
            if asked.len() == before {
                if began.elapsed() > SUSPICIOUS {
                    self.reap_dead();
                    reports::tidy();
                    asked.retain(|one| !self.stands_untold(*one));
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_micros(200));
            }
        }
    }

    /// Whether a thread needs no waiting for because it sleeps uninterruptibly, or has ended without a report: of a first
    /// thread that comes when the others are reaped.
    fn is_asleep(&mut self, Asked { tid, group, .. }: Asked, waited: Duration) -> bool {
        match process::thread_state(group, tid) {
            None => process::threads(group).is_ok_and(|tids| !tids.contains(&tid)),
            Some('Z' | 'X') => {
                // With all of its process, maybe.
                self.reap_dead();
                true
            }
            Some('D') => {
                let Some(at) = process::asleep(tid) else { return false };
                // Without a child it is about to make one, and awake at once.
                let is_behind_child = at.call.is_some_and(|call| arch::makes_processes(call as usize))
                    && !process::children_of_thread(group, tid).is_empty();
                if is_behind_child || waited > SLEEP {
                    self.sleepers.insert(tid, Sleeper { tid, at, fs_base: None });
                }
                is_behind_child || waited > SLEEP
            }
            Some(_) => false,
        }
    }

    /// A vfork child has the thread pointer of the thread that waits for it.
    fn learn_thread_pointers(&mut self) {
        for sleeper in self.sleepers.values_mut() {
            let children = process::children_of_thread(self.pid, sleeper.tid);
            let is_child = |t: &&Thread| t.group != self.pid && children.contains(&t.group);
            sleeper.fs_base = self.threads.values().find(is_child).map(|t| t.regs.thread_pointer());
        }
    }

    /// Takes the thread's report if there is one. True if it needs no further waiting.
    fn has_stopped(&mut self, one: Asked) -> bool {
        let report = reports::take(one.tid, NOHANG);
        self.is_done(one, report)
    }

    /// The same of a thread whose report may have been taken when its registers could not be read: none comes any more while it
    /// stands.
    fn stands_untold(&mut self, one: Asked) -> bool {
        let Ok(regs) = ptrace::regs(one.tid) else { return false };
        // It stands for certain now: if there is a report, that says how.
        match reports::take(one.tid, NOHANG) {
            Ok(None) => self.stands(one, regs),
            report => return self.is_done(one, report),
        }
        tracer::is_heard_of(one.tid);
        true
    }

    /// Whether a report says that the thread needs no further waiting.
    fn is_done(&mut self, one: Asked, report: Result<Option<(i32, Status)>, Errno>) -> bool {
        let tid = one.tid;
        let is_over = match report {
            Ok(None) | Err(Errno::EINTR) => false,
            // One that fails from here on was killed in the stop: its end is the next report, and whoever executes a program
            // waits until we have taken that.
            Ok(Some((_, Status::Event(ptrace::event::STOP, _)))) => match ptrace::regs(tid) {
                Ok(regs) => {
                    self.stands(one, regs);
                    true
                }
                Err(_) => false,
            },
            // A signal came first: it is delivered, and the stop follows before the handler runs.
            Ok(Some((_, Status::Signal(signal)))) => {
                let _ = ptrace::cont(tid, signal);
                false
            }
            Ok(Some((_, Status::Exited(_) | Status::Killed(_)))) => true,
            Ok(Some(_)) => {
                let _ = ptrace::cont(tid, 0);
                false
            }
            Err(_) => true,
        };
        if is_over {
            tracer::is_heard_of(tid);
        }
        is_over
    }

    /// The thread stands, with these registers.
    fn stands(&mut self, one: Asked, regs: Regs) {
        let Asked { tid, group, since: asked, slept } = one;
        let mut thread = Thread { tid, group, regs, changed: false, asked, slept };
        thread.undo_interruption();
        if self.has_filter {
            thread.avoid_restart_call();
        }
        self.threads.insert(tid, thread);
    }

    /// Those that sleep in the kernel.
    pub fn sleepers(&self) -> impl Iterator<Item = &Sleeper> {
        self.sleepers.values()
    }

    /// Whether a thread is of a vfork child, whose parent waits: the two are never at work at once.
    pub fn is_behind(&self, thread: &Thread) -> bool {
        let parent = |s: &Sleeper| s.fs_base.is_some_and(|base| base == thread.regs.thread_pointer());
        thread.group != self.pid && self.sleepers.values().any(parent)
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
            let stall = thread.asked.elapsed();
            self.stalls.push(stall);
            TRIED.set(TRIED.get().max(stall));
        }
    }

    /// Keeps all traced and stopped for the caller, who lets them run; their ids, and since when they stand.
    pub fn keep(mut self) -> Vec<(i32, Instant)> {
        if is_held(self.pid) {
            tracer::forget_held();
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

/// What is known of a thread in this state, if it stands.
fn stop_of(group: i32, tid: i32, state: char) -> Option<Stop> {
    if state != 't' {
        return None;
    }
    let tracer = process::Status::of_thread(group, tid).ok().flatten()?.tracer;
    let is_ours = tracer == sys::gettid().cast_signed();
    Some(Stop { tracer, is_ours, has_report: sys::wait::has_report(tid) == Ok(true) })
}

/// Seizes one thread; false if it has ended.
///
/// A tracer that refuses us may have left when we look for it, and another one come: then it is tried again.
fn seize(pid: i32, tid: i32) -> Result<bool, Broken> {
    const TRIES: usize = 16;
    let mut refused = Errno::EPERM;
    for _ in 0..TRIES {
        refused = match tracer::seize(tid, ptrace::O_TRACESYSGOOD) {
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

impl Drop for Hurry {
    fn drop(&mut self) {
        if self.0 && !STAYS.with(Cell::get) {
            let _ = sys::sched::set_policy(sys::sched::NORMAL, 0);
        }
    }
}

thread_local! {
    static STAYS: Cell<bool> = const { Cell::new(false) };
}

/// The priority of the next attach or change of this thread, kept until this goes.
///
/// Whoever has to look at once at what hits cost would else wait for a processor behind the threads that make them: 8 busy threads on
/// 2 CPUs used 100 ms on a flood of lines before the first look at it.
#[derive(Debug)]
pub struct Haste {
    was_normal: bool,
    /// The thread's, and nobody else's.
    _here: PhantomData<*const ()>,
}

impl Haste {
    /// From the next attach of this thread on. What is done until it goes should be short: nobody else gets this processor.
    ///
    /// # Context
    /// Control.
    #[must_use = "it lasts as long as this"]
    pub fn from_attach() -> Haste {
        STAYS.with(|stays| stays.set(true));
        Haste { was_normal: sys::sched::policy() == Ok(sys::sched::NORMAL), _here: PhantomData }
    }
}

impl Drop for Haste {
    fn drop(&mut self) {
        STAYS.with(|stays| stays.set(false));
        if self.was_normal && sys::sched::policy() == Ok(sys::sched::FIFO) {
            let _ = sys::sched::set_policy(sys::sched::NORMAL, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::sync::Barrier;

    #[test]
    fn haste_keeps_the_priority_of_a_hurry_until_it_goes() {
        let is_fifo = || sys::sched::policy() == Ok(sys::sched::FIFO);
        drop(Hurry::begin());
        assert!(!is_fifo());
        let haste = Haste::from_attach();
        assert!(!is_fifo(), "nothing has begun");
        let is_allowed = Hurry::begin().0;
        assert_eq!(is_fifo(), is_allowed);
        drop(Hurry::begin());
        assert_eq!(is_fifo(), is_allowed);
        drop(haste);
        assert!(!is_fifo());
    }

    /// A process of two threads that sleep; it ends with the value.
    struct Sleepers(std::process::Child);

    impl Sleepers {
        fn begin() -> Sleepers {
            const PROGRAM: &str = "import threading, time\n\
                                   threading.Thread(target=time.sleep, args=(60,)).start()\n\
                                   time.sleep(60)";
            Sleepers(Command::new("python3").args(["-c", PROGRAM]).spawn().expect("python3"))
        }

        fn pid(&self) -> i32 {
            self.0.id().cast_signed()
        }

        fn threads(&self) -> Vec<i32> {
            let end = Instant::now() + Duration::from_secs(20);
            loop {
                let threads = process::threads(self.pid()).expect("it runs");
                if threads.len() == 2 {
                    return threads;
                }
                assert!(Instant::now() < end, "{threads:?}");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    impl Drop for Sleepers {
        fn drop(&mut self) {
            self.0.kill().expect("it is ours");
            self.0.wait().expect("it is ours");
        }
    }

    /// As after a try that came to this thread and not to the others; then all are to be stopped.
    fn stops_having_one(pid: i32, tid: i32, both: &Barrier) -> Result<(), Broken> {
        tracer::apart(|| {
            assert!(seize(pid, tid).expect("it is nobody's"));
            ptrace::interrupt(tid).expect("it is ours");
            tracer::is_asked(Asked { tid, group: pid, since: Instant::now(), slept: None });
            both.wait();
            World::stop(pid).map(drop)
        })
    }

    #[test]
    fn a_thread_whose_report_was_taken_and_that_stands_is_taken_as_it_stands() {
        let sleepers = Sleepers::begin();
        let (pid, tid) = (sleepers.pid(), sleepers.threads()[0]);
        let began = Instant::now();
        let stopped = tracer::apart(|| {
            assert!(seize(pid, tid).expect("it is nobody's"));
            ptrace::interrupt(tid).expect("it is ours");
            tracer::is_asked(Asked { tid, group: pid, since: Instant::now(), slept: None });
            while reports::take(tid, NOHANG).expect("it lives").is_none() {
                std::thread::yield_now();
            }
            World::stop(pid).map(|world| world.threads().count())
        });
        assert_eq!(stopped.expect("it is stopped"), 2);
        assert!(began.elapsed() < Duration::from_secs(20), "at once, and not when a stop is given up");
    }

    #[test]
    fn of_a_thread_that_stands_and_is_waited_for_it_is_told_whose_stop_that_is() {
        let sleepers = Sleepers::begin();
        let (pid, tid) = (sleepers.pid(), sleepers.threads()[0]);
        tracer::apart(|| {
            assert!(seize(pid, tid).expect("it is nobody's"));
            ptrace::interrupt(tid).expect("it is ours");
            while sys::wait::await_any() != Ok(tid) {
                std::thread::yield_now();
            }
            let stop = Stop { tracer: sys::gettid().cast_signed(), is_ours: true, has_report: true };
            assert_eq!(stop_of(pid, tid, 't'), Some(stop));
            reports::take(tid, NOHANG).expect("it lives").expect("it has stopped");
            assert_eq!(stop_of(pid, tid, 't'), Some(Stop { has_report: false, ..stop }));
            assert_eq!(stop_of(pid, tid, 'R'), None);
        });
    }

    #[test]
    fn two_tracers_that_each_have_a_thread_do_not_wait_for_each_other() {
        let sleepers = Sleepers::begin();
        let (pid, threads) = (sleepers.pid(), sleepers.threads());
        let both = &Barrier::new(2);
        let done = std::thread::scope(|scope| {
            let stops: Vec<_> =
                threads.iter().map(|tid| scope.spawn(move || stops_having_one(pid, *tid, both))).collect();
            stops.into_iter().map(|stop| stop.join().expect("no panic")).collect::<Vec<_>>()
        });
        assert!(done.iter().all(Result::is_ok), "{done:?}");
    }
}
