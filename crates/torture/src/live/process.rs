//! The target, from outside.
//!
//! For:     starting and ending it, and looking at its memory.
//! State:   the child process, and what it says.
//! Context: control.
//! Keeps:   T1 dropped, the target is gone.
//!          T2 we never wait for it without end.
//! Checked: `tests/live.rs`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long an answer may take, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The process with the busy threads.
pub struct Target {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Target {
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
            Err(_) => Err(format!("the target does not say '{word}'")),
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

    /// Whether it has ended. Not asked by a wait while it lives: a session of ours waits for its stops.
    pub fn has_ended(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
    }

    /// Tells it to end, and waits for that.
    pub fn finish(&mut self) -> Result<(), String> {
        drop(self.stdin.take());
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if self.has_ended() {
                let status = self.child.wait().map_err(|e| e.to_string())?;
                return if status.success() {
                    Ok(())
                } else {
                    Err(format!("the target ended with {status}"))
                };
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Err("the target does not end".into())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Memory that a process has, in KiB.
pub fn resident_kb(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0");
    line.split_whitespace().next().and_then(|kb| kb.parse().ok()).unwrap_or(0)
}
