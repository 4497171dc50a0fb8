//! Programs that anybody executes, from before their first instruction on.
//!
//! For:     scripts that trace every process that runs a file.
//! State:   the files whose execution the kernel tells us of, with whoever executes one waiting for our answer.
//! Context: control. One OS thread: ptrace ties stops to it.
//! Keeps:   Y1 nobody is traced but from the answer to the new program's first own instruction.
//!          Y2 whom we may not or need not trace goes on at once, and is counted.
//!          Y3 if we die, whoever waits goes on: the kernel answers for us.
//! Checked: testkit `births`.

use crate::find::process::{self, Status as Process};
use crate::follow::execs::{Caller, new_program, next_stop};
use crate::hold::interrupted::undo_interruption;
use crate::hold::reports;
use crate::hold::tracer::Held;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};
use sys::ptrace::{self, event};
use sys::wait::Status;
use sys::{Errno, Fanotify, Opened};

/// How long an exec may take until we let it go alone.
const EXEC_PATIENCE: Duration = Duration::from_secs(5);

/// Files whose execution we hear of.
#[derive(Debug)]
pub struct Births {
    listener: Fanotify,
    /// Those that went alone.
    missed: u64,
}

impl Births {
    /// Begins to listen, to no file yet.
    ///
    /// # Errors
    /// Why that cannot be, in words.
    pub fn listen() -> Result<Births, String> {
        let listener = Fanotify::new().map_err(|errno| match errno {
            Errno::EPERM => {
                "hearing of every process that starts takes CAP_SYS_ADMIN (fanotify); name one with -p or start it with -c"
                    .to_owned()
            }
            errno => format!("the kernel does not tell of programs before they run: {errno}"),
        })?;
        Ok(Births { listener, missed: 0 })
    }

    /// Hears of executions of a file too.
    ///
    /// # Errors
    /// Why that cannot be, in words.
    pub fn watch(&self, path: &Path) -> Result<(), String> {
        let text = CString::new(path.as_os_str().as_bytes()).map_err(|_| "a path with a NUL".to_owned())?;
        self.listener.watch(&text).map_err(|errno| format!("{}: {errno}", path.display()))
    }

    /// Readable when somebody waits.
    pub fn watched(&self) -> i32 {
        self.listener.watched()
    }

    /// How many went alone: traced by others, in another pid namespace, or too slow.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Goes with the next who executes one of the files to its entry point; `None`: nobody waits, or who did came to none.
    pub fn next(&mut self, is_asked: &mut dyn FnMut() -> bool) -> Option<Held> {
        let opened = self.listener.next().ok()??;
        let tid = opened.tid;
        let Some(pid) = subject(tid) else {
            self.missed += u64::from(tid == 0);
            return None;
        };
        let held = follow(Caller { tid, pid }, opened, is_asked);
        self.missed += u64::from(held.is_none());
        held
    }
}

/// The process of a thread that we may trace: not we ourselves, and of our numbers.
fn subject(tid: i32) -> Option<i32> {
    let pid = Process::of_any(tid).ok()??.tgid;
    (pid != sys::getpid().cast_signed() && process::is_in_our_namespace(pid)).then_some(pid)
}

/// Seizes a thread that waits in its exec, lets it go on, and follows it to the entry point.
fn follow(caller: Caller, opened: Opened<'_>, is_asked: &mut dyn FnMut() -> bool) -> Option<Held> {
    let Caller { tid, pid } = caller;
    ptrace::seize(tid, ptrace::O_TRACESYSGOOD | ptrace::O_TRACEEXEC).ok()?;
    drop(opened);
    // An exec that fails comes to this stop, and one that succeeds to its own before.
    let _ = ptrace::interrupt(tid);
    let end = Instant::now() + EXEC_PATIENCE;
    loop {
        let Some((who, status)) = next_stop(tid, pid)? else {
            if Instant::now() > end || is_asked() {
                reports::let_go(tid, 0);
                return None;
            }
            std::thread::sleep(Duration::from_micros(20));
            continue;
        };
        match status {
            Status::Event(event::EXEC, _) => return new_program(caller, who, end, is_asked),
            Status::Exited(_) | Status::Killed(_) => return None,
            Status::Signal(signal) => drop(ptrace::cont(who, signal)),
            _ => {
                // Its exec is made again, if it was interrupted and not refused: we hear of that one too.
                if let Ok(mut regs) = ptrace::regs(who)
                    && undo_interruption(who, &mut regs)
                {
                    let _ = ptrace::set_regs(who, &regs);
                }
                reports::let_go(who, 0);
                return None;
            }
        }
    }
}
