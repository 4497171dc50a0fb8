//! The nanoprobe command, driven as a user would.
//!
//! For:     end-to-end tests.
//! State:   the path of the binary; a running command with its lines.
//! Context: control.
//! Keeps:   G1 no wait is without a deadline; G2 a command that is dropped is ended by SIGINT, so
//!          that it can leave its target, and killed only if that does not help.
//! Checked: the tests under tests/ that use it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::lines::Lines;
use crate::target::cargo_target_directory;
use crate::{Error, Outcome, Result, wait_until};

/// For one step of the command, on a machine that is busy with other tests.
const STEP: Duration = Duration::from_secs(60);

/// The built command.
#[derive(Clone)]
pub struct Nanoprobe {
    binary: PathBuf,
    prefix: Vec<String>,
}

/// The first line of a run that attached.
#[derive(Debug)]
pub struct Attached {
    /// The line itself.
    pub line: String,
    /// Probes in place.
    pub probes: u64,
    /// From the start of the command to this line.
    pub after: Duration,
}

impl Nanoprobe {
    /// The binary of NANOPROBE_BIN, else the newer one of cargo's release and debug builds.
    pub fn find() -> Result<Self> {
        if let Some(given) = std::env::var_os("NANOPROBE_BIN") {
            return Ok(Self { binary: given.into(), prefix: vec![] });
        }
        let looked: Vec<PathBuf> = ["release", "debug"]
            .map(|profile| cargo_target_directory().join(profile).join("nanoprobe"))
            .to_vec();
        let built = |path: &&PathBuf| path.metadata().and_then(|m| m.modified()).ok();
        match looked.iter().filter(|p| built(p).is_some()).max_by_key(built) {
            Some(binary) => Ok(Self { binary: binary.clone(), prefix: vec![] }),
            None => Err(Error::NoNanoprobe { looked }),
        }
    }

    /// Where the binary is.
    pub fn path(&self) -> &Path {
        &self.binary
    }

    /// The same, run through another command such as setpriv.
    pub fn through<const N: usize>(&self, prefix: [&str; N]) -> Self {
        Self { binary: self.binary.clone(), prefix: prefix.map(str::to_owned).to_vec() }
    }

    /// The same, of a copy of the binary.
    pub fn copied_to(&self, path: &Path) -> Result<Self> {
        std::fs::copy(&self.binary, path).map_err(Error::io(path.display()))?;
        Ok(Self { binary: path.into(), prefix: self.prefix.clone() })
    }

    /// Runs it to its end.
    pub fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Result<Outcome> {
        self.start(arguments)?.finish()
    }

    /// Starts it; the caller waits, interrupts and finishes.
    pub fn start<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Result<Tracing> {
        let mut words = self.prefix.iter().map(OsStr::new).chain([self.binary.as_os_str()]);
        let mut command = Command::new(words.next().expect("the binary is always there"));
        command.args(words).args(arguments).env("NO_COLOR", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let name = format!("{command:?}");
        let begun = Instant::now();
        let mut child = command.spawn().map_err(Error::io(&name))?;
        let input = child.stdin.take();
        let output = Lines::read(child.stdout.take().expect("stdout is a pipe"));
        let talk = Lines::read(child.stderr.take().expect("stderr is a pipe"));
        Ok(Tracing { name, begun, child, input, output, talk })
    }
}

/// The process that does a nanoprobe's work.
#[derive(Debug)]
pub struct Engine(Pid);

impl Engine {
    /// Kills it by SIGKILL, if it is still there, and waits until it is gone.
    pub fn kill(self) -> Result<()> {
        let exe = format!("/proc/{}/exe", self.0);
        // Nobody reaps it before its parent's end: the number is still its own, or free.
        let _ = kill(self.0, Signal::SIGKILL);
        wait_until("the end of an engine", Duration::from_secs(5), || !std::path::Path::new(&exe).exists())
    }
}

/// A nanoprobe that runs.
pub struct Tracing {
    name: String,
    begun: Instant,
    child: Child,
    input: Option<ChildStdin>,
    output: Lines,
    talk: Lines,
}

impl Tracing {
    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the line `Attached N probes ...`, or for its end, which is an error.
    pub fn attached(&mut self) -> Result<Attached> {
        let waited_for = format!("`Attached ...` of {}", self.name);
        let line = self.talk.find(&waited_for, STEP, |line| line.contains("Attached "))?;
        let after = self.begun.elapsed();
        let bad = || Error::Unexpected { wanted: "Attached N probes".into(), seen: line.clone() };
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "Attached").ok_or_else(bad)?;
        let probes = words.get(at + 1).and_then(|n| n.replace(',', "").parse().ok()).ok_or_else(bad)?;
        Ok(Attached { line, probes, after })
    }

    /// Waits for a line of talk with this in it.
    pub fn says(&mut self, what: &str) -> Result<String> {
        let waited_for = format!("`{what}` of {}", self.name);
        self.talk.find(&waited_for, STEP, |line| line.contains(what))
    }

    /// Writes a line to its input, which a launched command inherits.
    pub fn command(&mut self, line: &str) -> Result<()> {
        use std::io::Write;
        let doing = format!("writing `{line}` to {}", self.name);
        match &mut self.input {
            Some(input) => input.write_all(format!("{line}\n").as_bytes()).map_err(Error::io(doing)),
            None => Err(Error::Unexpected { wanted: doing, seen: "its input is closed".into() }),
        }
    }

    /// The next line of standard output with this prefix, for a launched command that talks.
    pub fn expect(&mut self, prefix: &str) -> Result<String> {
        let waited_for = format!("`{prefix}...` of {}", self.name);
        self.output.find(&waited_for, STEP, |line| line.starts_with(prefix))
    }

    /// Ctrl-C.
    pub fn interrupt(&self) -> Result<()> {
        self.signal(Signal::SIGINT)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.child.id() as i32);
        kill(pid, signal).map_err(|e| Error::io(format!("{signal} to nanoprobe {pid}"))(e.into()))
    }

    /// Closes its input, waits for its end and gives all it said.
    pub fn finish(mut self) -> Result<Outcome> {
        self.input = None;
        let mut status = None;
        let ended = wait_until(&format!("the end of {}", self.name), STEP, || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        });
        let Some(status) = status else {
            let seen =
                self.talk.text_to_end(Duration::ZERO).err().map_or_else(String::new, |e| e.to_string());
            ended?;
            return Err(Error::Unexpected { wanted: "a status".into(), seen });
        };
        let stdout = self.output.text_to_end(STEP)?;
        let stderr = self.talk.text_to_end(STEP)?;
        Ok(Outcome { status, stdout, stderr })
    }

    /// Ctrl-C, and then `finish`.
    pub fn interrupt_and_finish(self) -> Result<Outcome> {
        self.interrupt()?;
        self.finish()
    }

    /// Kills it by SIGKILL, as the out-of-memory killer would, and reaps it.
    pub fn kill(mut self) -> Result<()> {
        self.signal(Signal::SIGKILL)?;
        self.child.wait().map_err(Error::io("waiting for a killed nanoprobe"))?;
        Ok(())
    }

    /// Kills the processes that it started to do its work.
    pub fn kill_children(&self) -> Result<()> {
        self.signal_children(Signal::SIGKILL)
    }

    /// The one that does the work.
    pub fn engine(&self) -> Result<Engine> {
        let wanted = || Error::Unexpected { wanted: "an engine".into(), seen: "none".into() };
        self.children()?.first().copied().map(Engine).ok_or_else(wanted)
    }

    /// Sends a signal to the processes that it started to do its work.
    pub fn signal_children(&self, signal: Signal) -> Result<()> {
        for child in self.children()? {
            kill(child, signal).map_err(|e| Error::io(format!("{signal} to {child}"))(e.into()))?;
        }
        Ok(())
    }

    /// Kills all of it as at one moment: stopped first, so that none sees another die.
    pub fn kill_with_children(self) -> Result<()> {
        let children = self.children()?;
        self.signal(Signal::SIGSTOP)?;
        for child in &children {
            kill(*child, Signal::SIGKILL).map_err(|e| Error::io(format!("SIGKILL to {child}"))(e.into()))?;
        }
        self.kill()?;
        // Their memory goes some moments after the signal; until then they look alive.
        let is_gone = |pid: &Pid| !std::path::Path::new(&format!("/proc/{pid}/exe")).exists();
        wait_until("the end of what was killed", Duration::from_secs(5), || children.iter().all(is_gone))
    }

    /// Without the one that only guards against such deaths.
    fn children(&self) -> Result<Vec<Pid>> {
        let path = format!("/proc/{0}/task/{0}/children", self.pid());
        let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
        let is_guard = |pid: &i32| {
            std::fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|name| name.starts_with("np-guard"))
        };
        let pids = text.split_whitespace().filter_map(|pid| pid.parse().ok());
        Ok(pids.filter(|pid| !is_guard(pid)).map(Pid::from_raw).collect())
    }
}

/// Kills the process that waits for the two others of a nanoprobe to die, which traces `target`.
pub fn kill_guard_of(target: u32) -> Result<()> {
    let title = format!("np-guard {target}");
    let is_guard = |p: &i32| {
        std::fs::read_to_string(format!("/proc/{p}/cmdline")).is_ok_and(|c| c.trim_end_matches('\0') == title)
    };
    let find = || -> Vec<i32> {
        let numbers = std::fs::read_dir("/proc").into_iter().flatten();
        let pids = numbers.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
        pids.filter(is_guard).collect()
    };
    // It takes its name a moment after it was started.
    wait_until(&title, Duration::from_secs(5), || !find().is_empty())?;
    let guards = find();
    assert_eq!(guards.len(), 1, "{title}: {guards:?}");
    kill(Pid::from_raw(guards[0]), Signal::SIGKILL).map_err(|e| Error::io(&title)(e.into()))
}

impl Drop for Tracing {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        let _ = self.interrupt();
        let ended =
            wait_until("its end", Duration::from_secs(5), || matches!(self.child.try_wait(), Ok(Some(_))));
        if ended.is_err() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
