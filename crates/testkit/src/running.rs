//! A target process that takes commands and answers in lines.
//!
//! For:     tests that drive a target while it is traced.
//! State:   the child, its input, the lines of its outputs.
//! Context: control.
//! Keeps:   G1 no wait is without a deadline; G2 the process is gone when the value is dropped;
//!          G3 a signal is sent only to a child that was not reaped.
//! Checked: tests/targets.rs.

use std::io::Write;
use std::process::{Child, ChildStdin, Command, ExitStatus};
use std::time::Duration;

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::lines::Lines;
use crate::{Error, Result, wait_until};

/// Long enough for any answer on a machine that is busy with other tests.
const ANSWER: Duration = Duration::from_secs(60);

/// A started target.
pub struct Running {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    lines: Lines,
    errors: Lines,
}

impl Running {
    /// Starts a command whose three streams are pipes.
    pub(crate) fn start(mut command: Command, name: String) -> Result<Self> {
        // A target that dies as it should not is told by its status; no core file is wanted.
        let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
        let mut child = command.spawn().map_err(Error::io(&name))?;
        let input = child.stdin.take();
        let lines = Lines::read(child.stdout.take().expect("stdout is a pipe"));
        let errors = Lines::read(child.stderr.take().expect("stderr is a pipe"));
        Ok(Self { name, child, input, lines, errors })
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The same as text, as arguments want it.
    pub fn pid_text(&self) -> String {
        self.child.id().to_string()
    }

    /// Writes a line to its input.
    pub fn command(&mut self, line: &str) -> Result<()> {
        let doing = format!("writing `{line}` to {}", self.name);
        let Some(input) = &mut self.input else {
            return Err(Error::Unexpected { wanted: doing, seen: "its input is closed".into() });
        };
        input.write_all(format!("{line}\n").as_bytes()).map_err(Error::io(doing))
    }

    /// The next line of its output that begins with `prefix`.
    pub fn expect(&mut self, prefix: &str) -> Result<String> {
        self.expect_within(prefix, ANSWER)
    }

    /// The same with a limit of one's own.
    pub fn expect_within(&mut self, prefix: &str, within: Duration) -> Result<String> {
        let waited_for = format!("`{prefix}...` of {}", self.name);
        self.lines.find(&waited_for, within, |line| line.starts_with(prefix))
    }

    /// Has `function` called `calls` times; the number of hits that a probe on it must see.
    pub fn run(&mut self, calls: u64, function: &str) -> Result<u64> {
        self.command(&format!("run {calls} {function}"))?;
        let line = self.expect("calls ")?;
        number(&line, function)
    }

    /// The answer to `totals`.
    pub fn totals(&mut self) -> Result<String> {
        self.command("totals")?;
        self.expect("totals ")
    }

    /// `FUNCTION+0xOFFSET` of a label inside a function.
    pub fn place(&mut self, label: &str) -> Result<String> {
        self.command(&format!("where {label}"))?;
        let line = self.expect(&format!("where {label}="))?;
        Ok(line.rsplit('=').next().unwrap_or_default().to_owned())
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.child.id() as i32);
        kill(pid, signal).map_err(|e| Error::io(format!("{signal} to {pid}"))(e.into()))
    }

    /// Its state in /proc, such as 'S' or 'T'.
    pub fn state(&self) -> Result<char> {
        let path = format!("/proc/{}/stat", self.pid());
        let stat = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
        let after = stat.rsplit(')').next().unwrap_or_default();
        Ok(after.trim_start().chars().next().unwrap_or('?'))
    }

    /// Returns once its state is `wanted`.
    pub fn wait_state(&self, wanted: char) -> Result<()> {
        let waited_for = format!("state {wanted} of {}", self.name);
        wait_until(&waited_for, ANSWER, || self.state().is_ok_and(|state| state == wanted))
    }

    /// Closes its input, on which every target ends, and returns how it ended.
    pub fn end(mut self) -> Result<ExitStatus> {
        self.input = None;
        self.wait()
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        let mut status = None;
        let name = self.name.clone();
        wait_until(&format!("the end of {name}"), ANSWER, || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        })?;
        status
            .ok_or_else(|| Error::Unexpected { wanted: format!("the status of {name}"), seen: "none".into() })
    }

    /// All of its standard output and error, once it has ended.
    pub fn output(&mut self) -> Result<(String, String)> {
        Ok((self.lines.text_to_end(ANSWER)?, self.errors.text_to_end(ANSWER)?))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail if it has ended, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The number after `key=` in a line of `key=number` words.
pub fn number(line: &str, key: &str) -> Result<u64> {
    line.split_whitespace()
        .filter_map(|word| word.strip_prefix(key)?.strip_prefix('=')?.parse().ok())
        .next()
        .ok_or_else(|| Error::Unexpected { wanted: format!("a number `{key}=`"), seen: line.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_is_found_by_its_whole_key() {
        let line = "totals idle=5 work_args=7 work=3";
        assert_eq!(number(line, "work").unwrap(), 3);
        assert_eq!(number(line, "idle").unwrap(), 5);
        assert!(number(line, "args").is_err());
    }
}
