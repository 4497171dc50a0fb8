//! Programs that anybody executes, from before their first instruction on.
//!
//! For:     scripts that trace every process that runs a file.
//! State:   the files whose execution the kernel tells us of, with whoever executes one waiting for our answer.
//! Context: control. One OS thread traces: ptrace ties stops to it. Another answers where that one is late.
//! Keeps:   Y1 nobody is traced but from the answer to the new program's first own instruction.
//!          Y2 whom we may not or need not trace goes on at once, and is counted.
//!          Y3 if we die, whoever waits goes on: the kernel answers for us.
//!          Y4 nobody waits for us longer than `ANSWER`, whatever we wait for: a seizure of somebody who executes a script's
//!             interpreter waits for that exec, which waits for our answer.
//! Checked: tests below (Y4); testkit `scripts`.

use crate::find::process::{self, Status as Process};
use crate::follow::execs::{Caller, await_stop, new_program};
use crate::hold::interrupted::undo_interruption;
use crate::hold::reports;
use crate::hold::tracer::Held;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use sys::ptrace::{self, event};
use sys::wait::Status;
use sys::{Errno, Fanotify, Opened};

/// How long an exec may take until we let it go alone.
const EXEC_PATIENCE: Duration = Duration::from_secs(5);

/// Who executes a file waits so long for us, at most about.
const ANSWER: Duration = Duration::from_millis(100);
/// How often it is looked whether somebody waits too long.
const WATCH: Duration = Duration::from_millis(20);

/// Files whose execution we hear of.
#[derive(Debug)]
pub struct Births {
    heard: Arc<Heard>,
    watch: Option<JoinHandle<()>>,
    /// Those that went alone.
    missed: u64,
}

type Waiting = Opened<Arc<Fanotify>>;

/// What both threads know.
#[derive(Debug)]
struct Heard {
    listener: Arc<Fanotify>,
    /// Who waits while we seize him, and since when.
    asked: Mutex<Option<(Waiting, Instant)>>,
    /// When we began to listen, and how many milliseconds later we looked last.
    since: Instant,
    looked: AtomicU64,
    /// Those that the other thread let go: we did not look.
    late: AtomicU64,
    is_over: AtomicBool,
}

impl Heard {
    fn asked(&self) -> MutexGuard<'_, Option<(Waiting, Instant)>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers that order nothing.
    fn look(&self) {
        self.looked.store(self.since.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Answers whom the tracing thread keeps waiting, until it is over.
    fn watch(&self) {
        while !self.is_over.load(Ordering::Relaxed) {
            thread::sleep(WATCH);
            self.asked().take_if(|(_, since)| since.elapsed() >= ANSWER);
            let looked = Duration::from_millis(self.looked.load(Ordering::Relaxed));
            while self.since.elapsed().saturating_sub(looked) >= ANSWER {
                match Fanotify::next(Arc::clone(&self.listener)) {
                    Ok(Some(_answered)) => drop(self.late.fetch_add(1, Ordering::Relaxed)),
                    _ => break,
                }
            }
        }
    }
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
        let heard = Arc::new(Heard {
            listener: Arc::new(listener),
            asked: Mutex::new(None),
            since: Instant::now(),
            looked: AtomicU64::new(0),
            late: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let watch = thread::Builder::new().name(process::ENGINE_NAME.into()).spawn({
            let heard = Arc::clone(&heard);
            move || heard.watch()
        });
        let watch = watch.map_err(|error| format!("a thread that answers cannot be started: {error}"))?;
        Ok(Births { heard, watch: Some(watch), missed: 0 })
    }

    /// Hears of executions of a file too.
    ///
    /// # Errors
    /// Why that cannot be, in words.
    pub fn watch(&self, path: &Path) -> Result<(), String> {
        let text = CString::new(path.as_os_str().as_bytes()).map_err(|_| "a path with a NUL".to_owned())?;
        self.heard.listener.watch(&text).map_err(|errno| format!("{}: {errno}", path.display()))
    }

    /// Readable when somebody waits.
    pub fn watched(&self) -> i32 {
        self.heard.listener.watched()
    }

    /// How many went alone: traced by others, in another pid namespace, or too slow for us.
    pub fn missed(&self) -> u64 {
        self.missed.saturating_add(self.heard.late.load(Ordering::Relaxed))
    }

    /// Goes with the next who executes one of the files to its entry point; `None`: nobody waits, or who did came to none.
    pub fn next(&mut self, is_asked: &mut dyn FnMut() -> bool) -> Option<Held> {
        self.heard.look();
        let opened = Fanotify::next(Arc::clone(&self.heard.listener)).ok()??;
        let tid = opened.tid;
        let Some(pid) = subject(tid) else {
            self.missed += u64::from(tid == 0);
            return None;
        };
        *self.heard.asked() = Some((opened, Instant::now()));
        let held = follow(Caller { tid, pid }, &self.heard, is_asked);
        self.heard.asked().take();
        self.heard.look();
        self.missed += u64::from(held.is_none());
        held
    }
}

impl Drop for Births {
    fn drop(&mut self) {
        self.heard.is_over.store(true, Ordering::Relaxed);
        // It ends after its next look, and had nothing to give.
        drop(self.watch.take().map(JoinHandle::join));
    }
}

/// The process of a thread that we may trace: not we ourselves, and of our numbers.
fn subject(tid: i32) -> Option<i32> {
    let pid = Process::of_any(tid).ok()??.tgid;
    (pid != sys::getpid().cast_signed() && process::is_in_our_namespace(pid)).then_some(pid)
}

/// Seizes a thread that waits in its exec, lets it go on, and follows it to the entry point.
fn follow(caller: Caller, heard: &Heard, is_asked: &mut dyn FnMut() -> bool) -> Option<Held> {
    let tid = caller.tid;
    // It may wait for an exec that waits for our answer: the other thread then gives it (Y4).
    ptrace::seize(tid, ptrace::O_TRACESYSGOOD | ptrace::O_TRACEEXEC).ok()?;
    heard.asked().take();
    // An exec that fails comes to this stop, and one that succeeds to its own before.
    let _ = ptrace::interrupt(tid);
    let end = Instant::now() + EXEC_PATIENCE;
    loop {
        let (who, status) = await_stop(caller, end, is_asked)?;
        match status {
            Status::Event(event::EXEC, _) => return new_program(caller, who, end, is_asked),
            Status::Exited(_) | Status::Killed(_) => return None,
            Status::Signal(signal) => drop(ptrace::cont(who, signal)),
            _ => {
                // Its exec is made again, if it was interrupted and not refused: we hear of that one too.
                if let Ok(mut regs) = ptrace::regs(who)
                    && undo_interruption(who, &mut regs, None)
                {
                    let _ = ptrace::set_regs(who, &regs);
                }
                reports::let_go(who, 0);
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A script: its interpreter is opened while the kernel keeps everybody from tracing who executes it.
    #[test]
    fn who_executes_a_script_whose_interpreter_we_hear_of_does_not_wait_for_ever() {
        let Ok(mut births) = Births::listen() else {
            return; // without the right nobody waits for us
        };
        let dir = std::env::temp_dir().join(format!("np-births-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (shell, script) = (dir.join("shell"), dir.join("script"));
        std::fs::copy("/bin/true", &shell).unwrap();
        std::fs::write(&script, format!("#!{}\n", shell.display())).unwrap();
        std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        if births.watch(&shell).is_ok() {
            // Its parent is another process: who waits for a child in the tracer's own process is given its stops.
            let run = |script: &Path| {
                let output =
                    Command::new("/bin/sh").args(["-c", "\"$0\"; exit $?"]).arg(script).output().unwrap();
                assert!(output.status.success(), "{output:?}");
            };
            let command = script.clone();
            let child = thread::spawn(move || run(&command));
            while !child.is_finished() {
                // Either it is followed, or it goes alone: both end.
                drop(births.next(&mut || false));
                thread::sleep(Duration::from_millis(1));
            }
            child.join().unwrap();
            // Nobody looks: it goes alone.
            run(&script);
            assert!(births.missed() > 0);
        }
        std::fs::remove_dir_all(dir).unwrap();
    }
}
