//! Going with a thread into the program that it execs.
//!
//! For:     `--follow`.
//! State:   a doorbell on each function that execs; who calls one waits for our answer.
//! Context: control. One OS thread: ptrace ties stops to it.
//! Keeps:   X1 nobody is traced but from just before its exec to the new program's first own instruction.
//!          X2 a thread whose exec fails goes on as if nobody had looked; one waits a second at most.
//!          X3 rings are answered in their order, each once.
//! Checked: testkit `follows`.
//!
//! A program that makes the call by itself, as Go's runtime does, is not heard of.

use crate::bell::{Bell, Deaf};
use crate::launch::run_to_entry;
use crate::plan::{Images, Verb};
use crate::process::{self, Status as Process};
use crate::session::{Session, SiteView};
use crate::world::{Held, undo_interruption};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use sys::ptrace::{self, event};
use sys::wait::{self, Status};
use sys::{Errno, nr};

/// Where programs exec: glibc, musl, and what is linked with either.
const FUNCTIONS: [&str; 3] = ["u:libc.so.6:/^(execve|execveat)$/", "u:ld-musl-x86_64:execve", "u::execve"];

/// As <linux/capability.h> has it.
const CAP_SYS_PTRACE: u32 = 19;
/// How long a thread that has rung may take to say who it is.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long an exec may take until we let it go alone.
const EXEC_PATIENCE: Duration = Duration::from_secs(5);
/// How many system calls a thread may make between the ring and its exec.
const CALLS_MAX: u32 = 64;

/// A process whose calls of exec are heard of, and those of its forked children.
#[derive(Debug)]
pub struct Execs {
    bell: Bell,
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
        let bell = Bell::hang(images, pid, &FUNCTIONS, Verb::RingBeforeExec).map_err(|deaf| match deaf {
            Deaf::Filtered => {
                "its seccomp filter may kill it for the futex call by which it would wait".to_owned()
            }
            Deaf::NoFunction(why) => format!("it has no function that execs: {why}"),
            Deaf::Broken(broken) => broken.to_string(),
        })?;
        Ok(Execs { bell })
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
    pub fn follow(&self) -> Option<Held> {
        // Relaxed: the number is all that we learn from it, and the kernel orders the rest when it stops the thread.
        let ring = self.bell.words().answered.load(Ordering::Relaxed).wrapping_add(1);
        let caller = self.caller(ring);
        let is_seized = |tid: &i32| ptrace::seize(*tid, ptrace::O_TRACESYSGOOD | ptrace::O_TRACEEXEC).is_ok();
        let seized = caller.filter(is_seized);
        if let Some(tid) = seized {
            let _ = ptrace::interrupt(tid);
        }
        self.bell.answer(ring);
        seized.and_then(into_program)
    }

    /// Who rang, if it says so in time.
    fn caller(&self, ring: u32) -> Option<i32> {
        let end = Instant::now() + PATIENCE;
        loop {
            // [BELL-6] Orders nothing but itself. Pairs with [BELL-5].
            match self.bell.words().caller(ring).swap(0, Ordering::Relaxed) {
                0 if Instant::now() < end => std::thread::sleep(Duration::from_micros(50)),
                0 => return None,
                tid => return i32::try_from(tid).ok(),
            }
        }
    }

    /// How many went to another program alone, because nobody answered them for a second.
    pub fn unheard(&self) -> u64 {
        let of = |site: SiteView<'_>| site.hits().saturating_add(site.children_hits());
        self.bell.session.sites().map(of).fold(0, u64::saturating_add)
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
        let signal = if let Status::Signal(signal) = status { signal } else { 0 };
        calls += u32::from(status == Status::Syscall);
        if status == Status::Syscall && has_failed(who) || calls > CALLS_MAX || is_late {
            let _ = ptrace::detach(who, signal);
            return None;
        }
        if let (Status::Event(..), Ok(mut regs)) = (status, ptrace::regs(who))
            && undo_interruption(who, &mut regs)
        {
            let _ = ptrace::set_regs(who, &regs);
        }
        let _ = ptrace::cont_to_syscall(who, signal);
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
