//! Going with a thread into the program that it execs.
//!
//! For:     `--follow`.
//! State:   a doorbell on each function that execs; who calls one waits for our answer.
//! Context: control. One OS thread: ptrace ties stops to it.
//! Keeps:   X1 nobody is traced but from just before its exec to the new program's first own instruction.
//!          X2 a thread whose exec fails goes on as if nobody had looked; one waits a second at most.
//!          X3 rings are answered in their order, each once.
//!          X4 a thread is traced only if it maps our arena at our address, looked at again once it stands: what the ring says
//!             is the target's word.
//! Checked: testkit `follows`, `launching`, `family` (X4).
//!
//! A program that makes the call by itself, as Go's runtime does, is not heard of.

use crate::arch;
use crate::find::process::{self, Status as Process};
use crate::follow::bell::{Bell, Deaf};
use crate::follow::launch::run_to_entry;
use crate::hold::interrupted::undo_interruption;
use crate::hold::reports::{self, NOHANG};
use crate::hold::tracer::Held;
use crate::live::session::Session;
use crate::live::site::SiteView;
use crate::plan::{Images, Verb};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use sys::ptrace::{self, event};
use sys::wait::Status;
use sys::{Errno, nr};

/// Where programs exec: glibc, musl, and what is linked with either.
const FUNCTIONS: [&str; 3] = ["u:libc.so.6:/^(execve|execveat)$/", "u:ld-musl-x86_64:execve", "u::execve"];

/// As <linux/capability.h> has it.
const CAP_SYS_PTRACE: u32 = 19;
/// How long a thread that has rung may take to say who it is: it may wait for a CPU meanwhile.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long an exec may take until we let it go alone.
const EXEC_PATIENCE: Duration = Duration::from_secs(5);
/// How long one that has said it may take to stop: it too may wait for a CPU.
const STOP_PATIENCE: Duration = Duration::from_millis(500);
/// How many system calls a thread may make between the ring and its exec.
const CALLS_MAX: u32 = 64;

/// A process whose calls of exec are heard of, and those of its forked children.
#[derive(Debug)]
pub struct Execs {
    bell: Bell,
    /// Rings that cannot be true.
    forged: u64,
    /// Rings of which nobody said who rang, or who did not stop, in time.
    late: u64,
}

impl Execs {
    /// Begins to listen; `None`: the process has ended.
    ///
    /// # Errors
    /// Why that cannot be: in words.
    pub fn listen(images: &mut Images, pid: i32) -> Result<Option<Execs>, String> {
        let execs = Execs::begin(images, pid);
        // Whatever is not found in a process that ends is no fault of its own.
        if execs.is_err() && !process::lives(Process::of(pid)) { Ok(None) } else { execs.map(Some) }
    }

    fn begin(images: &mut Images, pid: i32) -> Result<Execs, String> {
        if !process::has_capability(CAP_SYS_PTRACE) {
            return Err(
                "going into set-user-id programs takes CAP_SYS_PTRACE, and they must stay what they are"
                    .into(),
            );
        }
        if !process::is_in_our_namespace(pid) {
            return Err("the process is in another pid namespace".into());
        }
        let bell = Bell::hang(images, pid, &FUNCTIONS, Verb::RingBeforeExec).map_err(|deaf| match deaf {
            Deaf::Filtered => {
                "its seccomp filter may kill it for the futex call by which it would wait".to_owned()
            }
            Deaf::NoFunction(why) => format!("it has no function that execs: {why}"),
            Deaf::Broken(broken) => broken.to_string(),
        })?;
        Ok(Execs { bell, forged: 0, late: 0 })
    }

    /// The process, for as long as its program runs.
    pub fn is_alive(&self) -> bool {
        self.bell.is_alive()
    }

    /// True if a thread waits that is about to exec.
    pub fn is_rung(&self) -> bool {
        self.bell.is_rung()
    }

    /// Goes with the thread that rang first to the entry point of the new program; `None`: it came to no exec, or to a
    /// program that cannot be entered.
    ///
    /// What the ring says is written by the target: only a thread is traced that maps our arena where we put it and stands in
    /// our code, as whoever rings does.
    pub fn follow(&mut self, is_asked: &mut dyn FnMut() -> bool) -> Option<Held> {
        // Relaxed: the number is all that we learn from it, and the kernel orders the rest when it stops the thread.
        let ring = self.bell.words().answered.load(Ordering::Relaxed).wrapping_add(1);
        let caller = self.caller(ring, is_asked);
        self.late += u64::from(caller.is_none());
        let traced = caller.and_then(|tid| self.trace(tid));
        self.bell.answer(ring);
        traced.and_then(|caller| into_program(caller, is_asked))
    }

    /// Seizes a thread that has rung, and waits for it to stand.
    fn trace(&mut self, tid: i32) -> Option<Caller> {
        let pid = Process::of_any(tid).ok()??.tgid;
        if !self.is_ours(tid) {
            return None;
        }
        ptrace::seize(tid, ptrace::O_TRACESYSGOOD | ptrace::O_TRACEEXEC).ok()?;
        if !is_stopped_soon(tid) {
            self.late += u64::from(process::lives(Process::of_any(tid)));
            reports::let_go(tid, 0);
            return None;
        }
        let regs = ptrace::regs(tid).ok().map(|mut regs| {
            if undo_interruption(tid, &mut regs, None) {
                let _ = ptrace::set_regs(tid, &regs);
            }
            regs
        });
        // Its number may have become another's before we had it. One that waited too long has gone on by itself.
        let now = Process::of_any(tid).ok().flatten();
        let is_ours = now.is_some_and(|now| now.tgid == pid) && self.is_ours(tid);
        if !is_ours || !regs.is_some_and(|regs| self.is_in_our_code(regs.pc())) {
            reports::let_go(tid, 0);
            return None;
        }
        let _ = ptrace::cont_to_syscall(tid, 0);
        Some(Caller { tid, pid })
    }

    /// The thread runs in the memory of this session; counts those that live and do not.
    fn is_ours(&mut self, tid: i32) -> bool {
        let is_ours = self.bell.session.is_inherited_by(tid);
        // One that is about to end has no memory any more.
        self.forged += u64::from(!is_ours && process::lives(Process::of_any(tid)));
        is_ours
    }

    fn is_in_our_code(&self, pc: u64) -> bool {
        self.bell.session.regions.regions.iter().any(|region| region.code.contains(&pc))
    }

    /// How many rings named a thread that lives and is not, or not any more, of this session's processes.
    pub fn forged(&self) -> u64 {
        self.forged
    }

    /// Who rang, if it says so in time.
    fn caller(&self, ring: u32, is_asked: &mut dyn FnMut() -> bool) -> Option<i32> {
        let end = Instant::now() + PATIENCE;
        loop {
            // [BELL-6] Orders nothing but itself. Pairs with [BELL-5].
            match self.bell.words().caller(ring).swap(0, Ordering::Relaxed) {
                0 if Instant::now() < end && !is_asked() => std::thread::sleep(Duration::from_micros(50)),
                0 => return None,
                tid => return i32::try_from(tid).ok(),
            }
        }
    }

    /// How many went to another program alone: nobody answered them for a second, or they were too late for us.
    pub fn unheard(&self) -> u64 {
        let of = |site: SiteView<'_>| site.hits().saturating_add(site.children_hits());
        self.bell.session.sites().map(of).fold(self.late, u64::saturating_add)
    }

    /// Records of the target that could not be believed: [`Session::damaged`].
    pub fn damaged(&self) -> u64 {
        self.bell.session.damaged()
    }

    /// Stops listening; the session is to be detached.
    pub fn close(self) -> Session {
        self.bell.close()
    }
}

/// A thread of ours that is about to exec, and its process.
#[derive(Clone, Copy)]
pub(crate) struct Caller {
    pub tid: i32,
    pub pid: i32,
}

/// Has a seized thread stop; false if it does not, which then may be let go only later.
fn is_stopped_soon(tid: i32) -> bool {
    if ptrace::interrupt(tid).is_err() {
        return false;
    }
    let end = Instant::now() + STOP_PATIENCE;
    while Instant::now() < end {
        match reports::take(tid, NOHANG) {
            Ok(None) | Err(Errno::EINTR) => std::thread::sleep(Duration::from_micros(20)),
            Ok(Some((_, Status::Event(event::STOP, _)))) => return true,
            // It is delivered, and the stop follows before the handler runs.
            Ok(Some((_, Status::Signal(signal)))) => drop(ptrace::cont(tid, signal)),
            Ok(Some((_, Status::Exited(_) | Status::Killed(_)))) | Err(_) => return false,
            Ok(Some(_)) => drop(ptrace::cont(tid, 0)),
        }
    }
    false
}

/// Follows a thread that waits at the bell through its exec to the new program's entry point.
fn into_program(caller: Caller, is_asked: &mut dyn FnMut() -> bool) -> Option<Held> {
    let end = Instant::now() + EXEC_PATIENCE;
    let mut calls = 0;
    let mut is_in_exec = false;
    loop {
        let (who, status) = await_stop(caller, end, is_asked)?;
        let signal = match status {
            Status::Event(event::EXEC, _) => return new_program(caller, who, end, is_asked),
            Status::Exited(_) | Status::Killed(_) => return None,
            Status::Signal(signal) => signal,
            _ => 0,
        };
        calls += u32::from(status == Status::Syscall);
        // An exec that succeeds reports itself before anything else: whatever comes instead, a refusal or a signal from a
        // filter, it has failed.
        if is_in_exec || calls > CALLS_MAX {
            reports::let_go(who, signal);
            return None;
        }
        is_in_exec = status == Status::Syscall && begins_exec(who);
        if let (Status::Event(..), Ok(mut regs)) = (status, ptrace::regs(who))
            && undo_interruption(who, &mut regs, None)
        {
            let _ = ptrace::set_regs(who, &regs);
        }
        let _ = ptrace::cont_to_syscall(who, signal);
    }
}

/// At a stop by exec of a thread of ours, which has its process's number now: to the new program's entry point.
pub(crate) fn new_program(
    caller: Caller,
    who: i32,
    end: Instant,
    is_asked: &mut dyn FnMut() -> bool,
) -> Option<Held> {
    let pid = caller.pid;
    if who != pid || ptrace::event_message(who) != Ok(caller.tid as u64) {
        reports::let_go(who, 0);
        return None;
    }
    // Dropped, it lets it go.
    let held = Held::new(pid);
    let mut is_late = || Instant::now() > end || is_asked();
    let is_there = process::check(pid).is_ok() && run_to_entry(pid, &mut is_late).is_ok();
    is_there.then_some(held)
}

/// The next report of a thread, or of its process; `None`: it is gone, or late.
pub(crate) fn await_stop(
    caller: Caller,
    end: Instant,
    is_asked: &mut dyn FnMut() -> bool,
) -> Option<(i32, Status)> {
    loop {
        if let Some(report) = next_stop(caller.tid, caller.pid)? {
            return Some(report);
        }
        if Instant::now() > end || is_asked() {
            // It stops some time, and is let go then.
            reports::let_go(caller.tid, 0);
            return None;
        }
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// The next report of a thread, or of its process, whose number another thread than the first takes at its exec.
/// `Some(None)`: there is none yet; `None`: it is gone.
#[allow(clippy::option_option, reason = "gone, not yet, and this")]
fn next_stop(tid: i32, pid: i32) -> Option<Option<(i32, Status)>> {
    match reports::take(tid, NOHANG) {
        Ok(Some(change)) => Some(Some(change)),
        Ok(None) | Err(Errno::EINTR) => Some(None),
        Err(_) if tid == pid => None,
        Err(_) => match reports::take(pid, NOHANG) {
            Ok(Some(change)) => Some(Some(change)),
            _ if process::is_over(pid) => None,
            _ => Some(None),
        },
    }
}

/// The thread stands before a call of exec.
fn begins_exec(tid: i32) -> bool {
    ptrace::is_at_entry(tid) == Ok(true)
        && ptrace::regs(tid).is_ok_and(|r| matches!(arch::call_number(&r), nr::EXECVE | nr::EXECVEAT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_ended_is_not_listened_to_and_that_is_no_error() {
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        let pid = ended.id().cast_signed();
        let is_zombie = || Process::of(pid).unwrap().is_some_and(|now| now.state == 'Z');
        while !is_zombie() {
            std::thread::yield_now();
        }
        assert!(Execs::listen(&mut Images::default(), pid).unwrap().is_none());
        ended.wait().unwrap();
        assert!(Execs::listen(&mut Images::default(), pid).unwrap().is_none());
    }
}
