//! Starting a program so that probes are in place before its `main`.
//!
//! For:     `nanoprobe ... -- CMD`.
//! State:   a child, which stands in a ptrace stop at its ELF entry point until `go`.
//! Context: control.
//! Keeps:   L1 the child's arguments, environment, descriptors, signals and process group are what they would
//!             be without us: `Heritage`.
//!          L3 once it has ended, nobody is signalled for it, and its status is known.
//!          L2 at the entry point all start-up libraries are mapped and relocated, and one thread exists.
//!          L4 if we die before `go`, it ends: nobody would ever let it run.
//! Checked: tests below (L4 before there is a tracer); testkit `lives`, `launching`, `kills` (L4).
//!
//! Constructors of shared libraries run before the entry point, in the dynamic loader: their hits are not seen.

use crate::arch::{BEHIND_BREAKPOINT, BREAKPOINT};
use crate::facts::ending::Ending;
use crate::facts::error::Broken;
use crate::find::memory::Memory;
use crate::find::process;
use crate::follow::heritage::Heritage;
use crate::hold::reports::{self, NOHANG};
use crate::hold::tracer::Held;
use std::cell::RefCell;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};
use sys::ptrace::{self, event};
use sys::wait::Status;
use sys::{Errno, PidFd};

const SIGTRAP: i32 = 5;
const SIGKILL: i32 = 9;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;
const AT_ENTRY: u64 = 9;
/// Status of a child that nobody waits for.
const EX_TEMPFAIL: i32 = 75;
/// How often we look whether it has come to its entry point.
const LOOK: Duration = Duration::from_micros(50);

/// How long one may take to die of SIGKILL: in the kernel it cannot.
const DEATH_PATIENCE: Duration = Duration::from_secs(5);

/// A program that we started: our child.
#[derive(Debug)]
pub struct Launched {
    pid: i32,
    /// By which it is signalled and reaped: its number may be another's once it has ended.
    process: PidFd,
    /// Until it is let go: it stands in a stop of ours, and is killed if we die.
    held: RefCell<Option<Held>>,
}

/// Why a program did not come to its entry point.
#[derive(Debug)]
pub(crate) enum Stray {
    /// It ended.
    Ended,
    /// We were asked to leave; there is no breakpoint of ours in it any more, and it stands.
    Left,
    Broken(Broken),
}

impl From<Broken> for Stray {
    fn from(broken: Broken) -> Stray {
        Stray::Broken(broken)
    }
}

impl Launched {
    /// Starts `program` and stops it at its entry point; gives up, and ends it, when `is_asked` to.
    ///
    /// # Errors
    /// It cannot be started or probed; or it ended before it came there, as it would have without us.
    #[allow(clippy::zombie_processes, reason = "it is reaped by its descriptor")]
    pub fn start(
        program: &str,
        args: &[String],
        heritage: Heritage,
        mut is_asked: impl FnMut() -> bool,
    ) -> Result<Launched, Broken> {
        let failed = |why: String| Broken::Launch { command: program.to_owned(), why };
        let mut command = Command::new(program);
        command.args(args);
        let engine = sys::getpid().cast_signed();
        // SAFETY: the closure makes system calls and allocates nothing, as a forked child must.
        unsafe { command.pre_exec(move || begin(&heritage, engine)) };
        let pid = command.spawn().map_err(|e| failed(e.to_string()))?.id() as i32;
        reports::adopt(pid);
        let process = match PidFd::open(pid) {
            Ok(process) => process,
            Err(errno) => {
                // Not reaped yet: the number is still its own.
                let _ = sys::sched::kill(pid, SIGKILL);
                return Err(Broken::Call { what: "pidfd_open of the new program", errno });
            }
        };
        let mut launched = Launched { pid, process, held: RefCell::default() };
        match launched.run_to_entry(&mut is_asked) {
            Ok(()) => Ok(launched),
            Err(stray) => {
                let by_itself = launched.ended();
                let ending = launched.abandon();
                let early = |ending| Broken::EndedEarly { command: program.to_owned(), ending };
                Err(match (stray, by_itself) {
                    (_, Some(ending)) => early(ending),
                    (Stray::Ended, None) => early(ending),
                    (Stray::Left, None) => failed("we were asked to end before its first instruction".into()),
                    (Stray::Broken(broken), None) => broken,
                })
            }
        }
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    fn run_to_entry(&mut self, is_asked: &mut dyn FnMut() -> bool) -> Result<(), Stray> {
        let pid = self.pid;
        await_stop(pid, is_asked, |status| status == Status::Signal(SIGTRAP))?;
        let call = |what| move |errno| Broken::Call { what, errno };
        ptrace::set_options(pid, ptrace::O_EXITKILL).map_err(call("ptrace of the new program"))?;
        if let Err(other) = process::check(pid)
            && !matches!(other, Broken::Traced { .. })
        {
            return Err(other.into());
        }
        run_to_entry(pid, is_asked)?;
        self.hold().map_err(|_| Stray::Ended)
    }

    /// Exchanges the first tracing for one that can interrupt. It stays stopped by job control, too, until `go`.
    fn hold(&self) -> Result<(), Errno> {
        ptrace::detach(self.pid, SIGSTOP)?;
        ptrace::seize(self.pid, ptrace::O_EXITKILL | ptrace::O_TRACESYSGOOD)?;
        loop {
            match reports::take(self.pid, 0) {
                Ok(Some((_, Status::Event(event::STOP, _)))) => break,
                Ok(Some((_, Status::Signal(signal)))) => ptrace::cont(self.pid, signal)?,
                Ok(Some((_, Status::Exited(_) | Status::Killed(_)))) => return Err(Errno::ESRCH),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        self.held.replace(Some(Held::new(self.pid)));
        Ok(())
    }

    /// Lets it run.
    pub fn go(&self) {
        // In this order: if we die in between, it runs or ends.
        self.signal(SIGCONT);
        drop(self.held.take());
    }

    /// Asks it to end.
    pub fn terminate(&self, signal: i32) {
        self.signal(signal);
    }

    fn signal(&self, signal: i32) {
        // If it has ended, nobody gets it.
        let _ = self.process.signal(signal);
    }

    /// Its end, if it has come.
    pub fn ended(&self) -> Option<Ending> {
        match reports::end_of(self.pid, &self.process) {
            Ok(status) => status.map(Ending::of),
            Err(Errno::EINTR) => None,
            Err(_) => Some(Ending::Unseen),
        }
    }

    /// Ends it, for an attach that failed.
    pub fn abandon(self) -> Ending {
        self.signal(SIGKILL);
        let end = Instant::now() + DEATH_PATIENCE;
        loop {
            match self.ended() {
                Some(ending) => return ending,
                None if Instant::now() > end => return Ending::Unseen,
                // If it stands in a stop of ours, its end is reported to us as to its tracer.
                None => drop(reports::take(self.pid, NOHANG)),
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        reports::disown(self.pid);
    }
}

/// Runs a program of one thread, traced and stopped at its exec, to its ELF entry point.
///
/// Until it is there, it has a breakpoint of ours in it, and dies of it if we die.
pub(crate) fn run_to_entry(pid: i32, is_asked: &mut dyn FnMut() -> bool) -> Result<(), Stray> {
    let call = |what| move |errno| Broken::Call { what, errno };
    let entry = entry(pid)?;
    let memory = Memory::open(pid)?;
    let mut byte = BREAKPOINT;
    memory.read(entry, &mut byte)?;
    memory.write(entry, &BREAKPOINT)?;
    ptrace::cont(pid, 0).map_err(|_| Stray::Ended)?;
    // A SIGTRAP from anywhere else is the program's own.
    let is_there = |status| {
        status == Status::Signal(SIGTRAP)
            && ptrace::regs(pid).is_ok_and(|regs| regs.pc() == entry + BEHIND_BREAKPOINT)
    };
    let awaited = await_stop(pid, is_asked, is_there);
    if !matches!(awaited, Err(Stray::Ended)) {
        memory.write(entry, &byte)?;
    }
    awaited?;
    let regs = ptrace::regs(pid).map_err(call("registers of the new program"))?;
    ptrace::set_regs(pid, &regs.at(entry)).map_err(call("registers of the new program"))?;
    Ok(())
}

/// Waits for a stop; whatever else comes goes through.
fn await_stop(
    pid: i32,
    is_asked: &mut dyn FnMut() -> bool,
    is_it: impl Fn(Status) -> bool,
) -> Result<(), Stray> {
    let mut is_leaving = false;
    loop {
        match reports::take(pid, NOHANG) {
            Err(Errno::EINTR) => {}
            Ok(None) if !is_leaving && is_asked() => {
                is_leaving = true;
                // A seized one stops; one that asked to be traced takes a signal, which it does not get to see.
                if ptrace::interrupt(pid).is_err() {
                    let _ = sys::sched::kill(pid, SIGSTOP);
                }
            }
            Ok(None) => std::thread::sleep(LOOK),
            Ok(Some((_, Status::Exited(_) | Status::Killed(_)))) | Err(_) => return Err(Stray::Ended),
            Ok(Some((_, status))) if is_it(status) => return Ok(()),
            Ok(Some((_, Status::Signal(SIGSTOP) | Status::Event(event::STOP, _)))) if is_leaving => {
                return Err(Stray::Left);
            }
            Ok(Some((_, Status::Signal(signal)))) => drop(ptrace::cont(pid, signal)),
            Ok(Some(_)) => drop(ptrace::cont(pid, 0)),
        }
    }
}

/// In the forked child. Its parent becomes its tracer: if we are dead by then, that is a process that knows nothing of it, and any
/// signal would leave it stopped for ever, a write to those who wait for it among them: it ends without a word.
fn begin(heritage: &Heritage, engine: i32) -> std::io::Result<()> {
    sys::signal::set_mask(u64::MAX);
    let traced = ptrace::trace_me();
    if std::os::unix::process::parent_id().cast_signed() != engine {
        sys::exit(EX_TEMPFAIL);
    }
    // From here on its tracer looks at each signal, or dies, which lets it run.
    let begun = traced.and_then(|()| heritage.pass_on());
    begun.map_err(|e| std::io::Error::from_raw_os_error(e.0))
}

/// Where the program's own code begins, from the auxiliary vector.
fn entry(pid: i32) -> Result<u64, Broken> {
    let path = format!("/proc/{pid}/auxv");
    let auxv = fs::read(&path).map_err(|e| Broken::File { path: path.clone(), why: e.to_string() })?;
    let words: Vec<u64> =
        auxv.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap_or_default())).collect();
    let entry = words.chunks_exact(2).find(|pair| pair[0] == AT_ENTRY).map(|pair| pair[1]);
    entry.ok_or(Broken::File { path, why: "it names no entry point".into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    /// Set in the process that dies between its fork and what its child does then.
    const ROLE: &str = "NANOPROBE_TEST_LAUNCHES";
    const THIS: &str = "follow::launch::tests::child_of_one_who_died_before_it_was_traced_ends";
    const LIMIT: Duration = Duration::from_secs(20);

    fn launch_and_wait() -> ! {
        let (heritage, engine) = (Heritage::of_this_process(), sys::getpid().cast_signed());
        let mut command = Command::new("/bin/true");
        let orphaned = move || {
            while std::os::unix::process::parent_id().cast_signed() == engine {
                std::thread::sleep(Duration::from_millis(1));
            }
            begin(&heritage, engine)
        };
        // SAFETY: the closure makes system calls and allocates nothing.
        unsafe { command.pre_exec(orphaned) };
        panic!("it began: {:?}", command.spawn());
    }

    fn state(pid: i32) -> Option<char> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(')').next()?.trim_start().chars().next()
    }

    #[test]
    fn child_of_one_who_died_before_it_was_traced_ends() {
        if std::env::var_os(ROLE).is_some() {
            launch_and_wait();
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([THIS, "--exact", "--test-threads=1"]).env(ROLE, "1").stdout(Stdio::null());
        let mut engine = command.stderr(Stdio::null()).spawn().unwrap();
        let until = |what: &str, is_so: &mut dyn FnMut() -> bool| {
            let end = Instant::now() + LIMIT;
            while !is_so() {
                assert!(Instant::now() < end, "no {what} in {LIMIT:?}");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let mut child = 0;
        until("child", &mut || {
            let tasks = fs::read_dir(format!("/proc/{}/task", engine.id())).unwrap().flatten();
            let all = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
            child = all.collect::<String>().split_whitespace().next().map_or(0, |pid| pid.parse().unwrap());
            child != 0
        });
        engine.kill().unwrap();
        engine.wait().unwrap();
        let begun = Instant::now();
        until("end or stop", &mut || {
            state(child).is_none_or(|state| matches!(state, 'Z' | 'X' | 't')) || begun.elapsed() > LIMIT / 2
        });
        let state = state(child);
        let is_over = state.is_none_or(|state| matches!(state, 'Z' | 'X'));
        if !is_over {
            let _ = sys::sched::kill(child, SIGKILL);
        }
        assert!(is_over, "{state:?}");
    }
}
