//! The process that a torture works on, from outside.
//!
//! For:     tortures whose target is another process: starting and ending it.
//! State:   the child process, and what it says.
//! Context: control.
//! Keeps:   T1 dropped, the target is gone.
//!          T2 we never wait for it without end.
//! Checked: `tests/uprobe_live.rs`, `tests/live.rs`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long an answer may take: children run to their end first.
const PATIENCE: Duration = Duration::from_secs(120);

/// The process with the busy threads.
pub struct Target {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Target {
    /// Starts it with these words, and waits until it is ready.
    pub fn start(words: &[String]) -> Result<Target, String> {
        let program = std::env::current_exe().map_err(|e| e.to_string())?;
        let mut command = Command::new(program);
        command.arg("torture-target").args(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| e.to_string())?;
        let out = child.stdout.take().ok_or("no pipe from the target")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let stdin = child.stdin.take();
        let target = Target { child, stdin, lines };
        target.hear("ready")?;
        Ok(target)
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Waits for a word.
    pub fn hear(&self, word: &str) -> Result<(), String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) if line == word => Ok(()),
            Ok(line) => Err(format!("the target said '{line}' and not '{word}'")),
            Err(_) => Err(format!("hang: the target does not say '{word}': {}", self.states())),
        }
    }

    pub fn say(&mut self, word: &str) -> Result<(), String> {
        let stdin = self.stdin.as_mut().ok_or("no pipe to the target")?;
        stdin.write_all(format!("{word}\n").as_bytes()).map_err(|e| format!("the target is gone: {e}"))
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: our own child, which nobody has waited for.
        unsafe { libc::kill(self.pid(), signal) };
    }

    /// How it ended, if it has.
    ///
    /// Not asked by a wait while it lives: that would take the stops away that other threads of ours wait for.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        let has_ended = stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']));
        if has_ended { self.child.wait().ok() } else { None }
    }

    /// Tells it to end, and waits for that.
    pub fn finish(&mut self) -> Result<(), String> {
        drop(self.stdin.take());
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            match self.ended() {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("the target ended with {status}")),
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        }
        Err(format!("hang: the target does not end: {}", self.states()))
    }

    /// What its threads do, for the reader of a failure.
    pub fn states(&self) -> String {
        let task = format!("/proc/{}/task", self.pid());
        let threads = fs::read_dir(task).into_iter().flatten().filter_map(Result::ok);
        let states: Vec<String> = threads
            .map(|t| {
                let read = |name: &str| fs::read_to_string(t.path().join(name)).unwrap_or_default();
                let state = read("stat").rsplit_once(") ").map(|s| s.1[..1].to_string());
                format!("{} {} {}", t.file_name().to_string_lossy(), state.unwrap_or_default(), read("wchan"))
            })
            .collect();
        states.join(", ")
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Memory that a process has for itself, in KiB.
pub fn private_kb(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or("0");
    line.split_whitespace().next().and_then(|kb| kb.parse().ok()).unwrap_or(0)
}

/// Memory behind the mapped file of this name, in KiB, whoever has touched it.
pub fn shared_kb(pid: u32, name: &str) -> u64 {
    let files = fs::read_dir(format!("/proc/{pid}/map_files")).into_iter().flatten().flatten();
    let is_it = |path: &Path| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains(name));
    let found = files.map(|file| file.path()).filter(|path| is_it(path));
    let blocks = found.filter_map(|path| Some(fs::metadata(path).ok()?.blocks()));
    blocks.max().unwrap_or(0) / 2
}
