//! Going with a thread into the program that it execs.
//!
//! For:     `--follow`.
//! State:   a session of one probe for each function that execs; who calls one waits for our answer.
//! Context: control. One OS thread: ptrace ties stops to it.
//! Keeps:   X1 nobody is traced but from just before its exec to the new program's first own instruction.
//!          X2 a thread whose exec fails goes on as if nobody had looked; one waits a second at most.
//!          X3 rings are answered in their order, each once.
//! Checked: testkit `follows`.
//!
//! A program that makes the call by itself, as Go's runtime does, is not heard of.

use crate::error::Broken;
use crate::launch::run_to_entry;
use crate::plan::{Images, PlanError, Verb, plan_with};
use crate::process::{self, Status as Process};
use crate::session::Session;
use crate::site::SitePlan;
use crate::world::{Held, undo_interruption};
use image::Spec;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use sys::ptrace::{self, event};
use sys::wait::{self, Status};
use sys::{Errno, nr};
use wire::Doorbell;

/// Where programs exec: glibc, musl, and what is linked with either.
const FUNCTIONS: [&str; 3] = ["u:libc.so.6:/^(execve|execveat)$/", "u:ld-musl-x86_64:execve", "u::execve"];

/// How long a thread that has rung may take to say who it is.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long an exec may take until we let it go alone.
const EXEC_PATIENCE: Duration = Duration::from_secs(5);
/// How many system calls a thread may make between the ring and its exec.
const CALLS_MAX: u32 = 64;

/// A process whose calls of exec are heard of, and those of its forked children.
#[derive(Debug)]
pub struct Execs {
    session: Session,
}

impl Execs {
    /// Begins to listen.
    ///
    /// # Errors
    /// Why that cannot be: in words.
    pub fn listen(images: &mut Images, pid: i32) -> Result<Execs, String> {
        if !process::has_capability(CAP_SYS_PTRACE) {
            return Err(
                "going into set-user-id programs takes CAP_SYS_PTRACE, and they must stay what they are"
                    .into(),
            );
        }
        if !process::is_in_our_namespace(pid) {
            return Err("the process is in another pid namespace".into());
        }
        if Process::of(pid).is_some_and(|s| s.seccomp != 0) {
            return Err("its seccomp filter may kill it for the futex call by which it would wait".into());
        }
        let mut first = None;
        for function in FUNCTIONS {
            let spec = Spec::parse(function).unwrap_or_else(|_| unreachable!("a constant that parses"));
            match plan_with(images, pid, &[spec], Verb::RingBeforeExec) {
                Ok(plan) => return attach(pid, plan.sites).map(|session| Execs { session }),
                Err(error) => drop(first.get_or_insert(error)),
            }
        }
        let why = first.as_ref().map_or_else(String::new, PlanError::to_string);
        Err(format!("it has no function that execs: {why}"))
    }

    /// The process, for as long as its program runs.
    pub fn is_alive(&self) -> bool {
        self.session.is_alive()
    }

    fn bell(&self) -> &Doorbell {
        self.session.regions.arena.doorbell()
    }

    /// True if a thread waits that is about to exec.
    pub fn is_rung(&self) -> bool {
        self.bell().rung.load(Ordering::Relaxed) != self.bell().answered.load(Ordering::Relaxed)
    }

    /// Goes with the thread that rang first to the entry point of the new program; `None`: it came to no exec, or to a
    /// program that cannot be entered.
    pub fn follow(&self) -> Option<Held> {
        // Relaxed: the number is all that we learn from it, and the kernel orders the rest when it stops the thread.
        let ring = self.bell().answered.load(Ordering::Relaxed).wrapping_add(1);
        let caller = self.caller(ring);
        let is_seized = |tid: &i32| ptrace::seize(*tid, ptrace::O_TRACESYSGOOD | ptrace::O_TRACEEXEC).is_ok();
        let seized = caller.filter(is_seized);
        if let Some(tid) = seized {
            let _ = ptrace::interrupt(tid);
        }
        self.answer(ring);
        seized.and_then(into_program)
    }

    /// Who rang, if it says so in time.
    fn caller(&self, ring: u32) -> Option<i32> {
        let end = Instant::now() + PATIENCE;
        loop {
            // [BELL-6] Orders nothing but itself. Pairs with [BELL-5].
            match self.bell().caller(ring).swap(0, Ordering::Relaxed) {
                0 if Instant::now() < end => std::thread::sleep(Duration::from_micros(50)),
                0 => return None,
                tid => return i32::try_from(tid).ok(),
            }
        }
    }

    fn answer(&self, ring: u32) {
        self.bell().answered.store(ring, Ordering::Relaxed);
        let _ = sys::futex_wake_shared(&self.bell().answered, u32::MAX >> 1);
    }

    /// How many went to another program alone, because nobody answered them for a second.
    pub fn unheard(&self) -> u64 {
        self.session.sites().map(|site| site.hits() + site.children_hits()).sum()
    }

    /// Stops listening; the session is to be detached.
    pub fn close(self) -> Session {
        self.answer(Doorbell::CLOSED);
        self.session
    }
}

const CAP_SYS_PTRACE: u32 = 19;

fn attach(pid: i32, sites: Vec<SitePlan>) -> Result<Session, String> {
    Session::attach(pid, sites).map_err(|broken: Broken| broken.to_string())
}

/// Follows a seized thread through its exec to the new program's entry point.
fn into_program(tid: i32) -> Option<Held> {
    let pid = Process::of(tid)?.tgid;
    let end = Instant::now() + EXEC_PATIENCE;
    let mut calls = 0;
    loop {
        let is_late = Instant::now() > end;
        let Some((who, status)) = next_stop(tid, pid)? else {
            if is_late {
                let _ = ptrace::interrupt(tid);
            }
            std::thread::sleep(Duration::from_micros(20));
            continue;
        };
        match status {
            Status::Event(event::EXEC, _) => {
                let held = Held::new(pid);
                let is_ours = process::check(pid).is_ok() && run_to_entry(pid).is_ok();
                return is_ours.then_some(held);
            }
            Status::Exited(_) | Status::Killed(_) => return None,
            _ => {}
        }
        calls += u32::from(status == Status::Syscall);
        if status == Status::Syscall && has_failed(who) || calls > CALLS_MAX || is_late {
            let _ = ptrace::detach(who, if let Status::Signal(signal) = status { signal } else { 0 });
            return None;
        }
        if let (Status::Event(..), Ok(mut regs)) = (status, ptrace::regs(who))
            && undo_interruption(who, &mut regs)
        {
            let _ = ptrace::set_regs(who, &regs);
        }
        let _ = ptrace::cont_to_syscall(who, if let Status::Signal(signal) = status { signal } else { 0 });
    }
}

/// The next report of a thread, or of its process, whose number another thread than the first takes at its exec.
/// `Some(None)`: there is none yet; `None`: it is gone.
#[allow(clippy::option_option, reason = "gone, not yet, and this")]
fn next_stop(tid: i32, pid: i32) -> Option<Option<(i32, Status)>> {
    match wait::wait(tid, wait::ALL | wait::NOHANG) {
        Ok(Some(change)) => Some(Some(change)),
        Ok(None) | Err(Errno::EINTR) => Some(None),
        Err(_) if tid == pid => None,
        Err(_) => match wait::wait(pid, wait::ALL | wait::NOHANG) {
            Ok(Some(change)) => Some(Some(change)),
            _ => Process::of(pid).map(|_| None),
        },
    }
}

/// The thread stands behind an exec that failed. Before the call, rax is -ENOSYS.
fn has_failed(tid: i32) -> bool {
    ptrace::regs(tid).is_ok_and(|regs| {
        let is_exec = matches!(regs.orig_rax as usize, nr::EXECVE | nr::EXECVEAT);
        let answer = regs.rax as i64;
        is_exec && answer < 0 && answer != -i64::from(Errno::ENOSYS.0)
    })
}
