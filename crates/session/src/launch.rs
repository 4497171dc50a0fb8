//! Starting a program so that probes are in place before its `main`.
//!
//! For:     `nanoprobe ... -- CMD`.
//! State:   a child, stopped at its ELF entry point until `go`.
//! Context: control.
//! Keeps:   L1 the child's arguments, environment, descriptors, signals and process group are what they would
//!             be without us.
//!          L2 at the entry point all start-up libraries are mapped and relocated, and one thread exists.
//! Checked: testkit `lives`.
//!
//! Constructors of shared libraries run before the entry point, in the dynamic loader: their hits are not seen.

use crate::error::Broken;
use crate::memory::Memory;
use crate::process;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use sys::ptrace;
use sys::wait::{self, Status};
use sys::{Errno, sched};

const INT3: [u8; 1] = [0xcc];
const SIGTRAP: i32 = 5;
const SIGKILL: i32 = 9;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;
const AT_ENTRY: u64 = 9;

/// A program that we started.
#[derive(Debug)]
pub struct Launched {
    child: Child,
}

impl Launched {
    /// Starts `program` and stops it at its entry point.
    pub fn start(program: &str, args: &[String]) -> Result<Launched, Broken> {
        let failed = |why: String| Broken::Launch { command: program.to_owned(), why };
        let mut command = Command::new(program);
        command.args(args);
        // SAFETY: the closure makes one system call and allocates nothing, as a forked child must.
        unsafe { command.pre_exec(trace_me) };
        let child = command.spawn().map_err(|e| failed(e.to_string()))?;
        let mut launched = Launched { child };
        match launched.run_to_entry() {
            Ok(()) => Ok(launched),
            Err(broken) => {
                launched.kill();
                Err(broken)
            }
        }
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn run_to_entry(&mut self) -> Result<(), Broken> {
        let pid = self.pid();
        await_trap(pid)?;
        let call = |what| move |errno| Broken::Call { what, errno };
        ptrace::set_options(pid, ptrace::O_EXITKILL).map_err(call("ptrace of the new program"))?;
        if let Err(other) = process::check(pid)
            && !matches!(other, Broken::Traced { .. })
        {
            return Err(other);
        }
        run_to_entry(pid)?;
        // It stays stopped by job control until `go`, whoever traces it meanwhile.
        ptrace::detach(pid, SIGSTOP).map_err(call("release of the new program"))
    }

    /// Lets it run.
    pub fn go(&self) {
        let _ = sched::kill(self.pid(), SIGCONT);
    }

    /// Asks it to end.
    pub fn terminate(&self, signal: i32) {
        let _ = sched::kill(self.pid(), signal);
    }

    /// Its end, if it has come.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    fn kill(&mut self) {
        let _ = sched::kill(self.pid(), SIGKILL);
        let _ = self.child.wait();
    }

    /// Ends it, for an attach that failed.
    pub fn abandon(mut self) {
        self.kill();
    }
}

/// Runs a program of one thread, traced and stopped at its exec, to its ELF entry point.
///
/// Until it is there, it has a breakpoint of ours in it, and dies of it if we die.
pub(crate) fn run_to_entry(pid: i32) -> Result<(), Broken> {
    let call = |what| move |errno| Broken::Call { what, errno };
    let entry = entry(pid)?;
    let memory = Memory::open(pid)?;
    let mut byte = [0u8];
    memory.read(entry, &mut byte)?;
    memory.write(entry, &INT3)?;
    ptrace::cont(pid, 0).map_err(call("start of the new program"))?;
    await_trap(pid)?;
    memory.write(entry, &byte)?;
    let mut regs = ptrace::regs(pid).map_err(call("registers of the new program"))?;
    regs.rip = entry;
    ptrace::set_regs(pid, &regs).map_err(call("registers of the new program"))
}

/// Waits for the stop by exec or by our breakpoint; other signals go through.
fn await_trap(pid: i32) -> Result<(), Broken> {
    loop {
        match wait::wait(pid, wait::ALL) {
            Err(Errno::EINTR) => {}
            Ok(Some((_, Status::Signal(SIGTRAP)))) => return Ok(()),
            Ok(Some((_, Status::Signal(signal)))) => drop(ptrace::cont(pid, signal)),
            Ok(Some((_, Status::Event(..)))) => drop(ptrace::cont(pid, 0)),
            _ => return Err(Broken::Gone { pid }),
        }
    }
}

fn trace_me() -> std::io::Result<()> {
    ptrace::trace_me().map_err(|e| std::io::Error::from_raw_os_error(e.0))
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
