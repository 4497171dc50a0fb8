//! The traced program, seen by its parent.
//!
//! For:     phases: start producers, stop them.
//! State:   the child, its two pipes, the shared mapping.
//! Context: control.
//! Keeps:   C1 between `stop` and the next `go` no producer exists.
//!          C2 dropped, the child has ended and was waited for.
//! Checked: cli tests/bench.rs.

use super::error::TriggerError;
use super::functions::Function;
use super::options::Options;
use super::phase::TICKS_A_SAMPLE;
use super::shared::Shared;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A started program with no producers.
#[derive(Debug)]
pub struct Traced {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    shared: Shared,
}

impl Traced {
    /// Starts it.
    pub fn start(options: &Options) -> Result<Traced, TriggerError> {
        // One tick more than the seconds have: the first record stands at tick 0.
        let ticks = (options.samples() + 1) * TICKS_A_SAMPLE as usize + 1;
        let len = Shared::len_bytes(options.producers, ticks);
        let errno = |e: sys::Errno| TriggerError::Io(std::io::Error::from_raw_os_error(e.0));
        let fd = sys::memfd_inheritable(c"nanoprobe-bench", len).map_err(errno)?;
        // SAFETY: the call above gave a new descriptor that nothing else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let shared = Shared::map(fd.as_raw_fd(), options.producers, ticks).map_err(errno)?;
        let cpus: Vec<String> = options.cpus.iter().map(usize::to_string).collect();
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", super::TARGET, &fd.as_raw_fd().to_string()]);
        command.args([options.producers.to_string(), ticks.to_string()]);
        command.arg(if cpus.is_empty() { "-".to_owned() } else { cpus.join(",") });
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (stdin, stdout) = pipes.ok_or_else(|| TriggerError::Child("has no pipes".into()))?;
        let mut traced = Traced { child, stdin: Some(stdin), stdout: BufReader::new(stdout), shared };
        traced.expect("ready")?;
        Ok(traced)
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// What its producers write.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Starts producers that call `function`; they run when this returns.
    pub fn go(&mut self, function: Function) -> Result<(), TriggerError> {
        self.ask(&format!("go {}", function.symbol()), "going")
    }

    /// Ends the producers; all their calls are made and recorded when this returns.
    pub fn stop(&mut self) -> Result<(), TriggerError> {
        self.ask("stop", "stopped")
    }

    fn ask(&mut self, what: &str, answer: &str) -> Result<(), TriggerError> {
        if let Some(stdin) = &mut self.stdin {
            writeln!(stdin, "{what}")?;
        }
        self.expect(answer)
    }

    fn expect(&mut self, answer: &str) -> Result<(), TriggerError> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        match line.trim() {
            said if said == answer => Ok(()),
            "" => Err(TriggerError::Child(match self.child.try_wait() {
                Ok(Some(status)) => format!("ended ({status})"),
                _ => "closed its output".into(),
            })),
            said => Err(TriggerError::Child(format!("said {said:?}, not {answer:?}"))),
        }
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        // The end of its input is its end.
        self.stdin = None;
        let _ = self.child.wait();
    }
}
