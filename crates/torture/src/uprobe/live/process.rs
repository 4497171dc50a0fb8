//! The target, from outside.
//!
//! For:     starting and ending it, and looking whether it is as before.
//! State:   the child process, and what it says.
//! Context: control.
//! Keeps:   T1 dropped, the target is gone.
//!          T2 we never wait for it without end.
//! Checked: `tests/uprobe_live.rs`.

use crate::uprobe::stressed::Orders;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
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
    pub fn start(orders: &Orders) -> Result<Target, String> {
        let program = std::env::current_exe().map_err(|e| e.to_string())?;
        let mut command = Command::new(program);
        command.arg("torture-target").args(orders.words());
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

/// What must be the same before and after.
#[derive(Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Code, and files without a name.
    mappings: Vec<String>,
    descriptors: usize,
    threads: usize,
}

impl Footprint {
    pub fn of(pid: i32) -> Result<Footprint, String> {
        let gone = |e: std::io::Error| format!("the target is gone: {e}");
        let entries =
            |what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).map(Iterator::count).map_err(gone);
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).map_err(gone)?;
        // The kernel's page for displaced instructions stays until the process ends.
        let is_ours = |l: &&str| (l.contains("memfd") || l.contains("r-xp")) && !l.contains("[uprobes");
        let mappings = maps.lines().filter(is_ours).map(String::from).collect();
        Ok(Footprint { mappings, descriptors: entries("fd")?, threads: entries("task")? })
    }
}

/// Compares all code that the target has of files with the files.
///
/// # Errors
/// Where they differ.
pub fn check_text(pid: i32) -> Result<(), String> {
    let memory = fs::File::open(format!("/proc/{pid}/mem")).map_err(|e| e.to_string())?;
    let mappings = image::maps::read_maps(pid as u32).map_err(|e| e.to_string())?;
    for m in mappings.iter().filter(|m| m.permissions.is_executable && m.file.is_some()) {
        let (start, len) = (m.range.start.0, (m.range.end.0 - m.range.start.0) as usize);
        let path = format!("/proc/{pid}/map_files/{start:x}-{:x}", m.range.end.0);
        let file = fs::File::open(path).or_else(|_| fs::File::open(&m.path));
        let file = file.map_err(|e| format!("{}: {e}", m.path.display()))?;
        let (mut is, mut should) = (vec![0; len], vec![0; len]);
        memory.read_exact_at(&mut is, start).map_err(|e| e.to_string())?;
        // The last page may be longer than the file.
        let mut read = 0;
        while let Ok(n @ 1..) = file.read_at(&mut should[read..], m.offset.0 + read as u64) {
            read += n;
        }
        if let Some(at) = is.iter().zip(&should).position(|(a, b)| a != b) {
            let at = start + at as u64;
            return Err(format!("the text differs from the file at {at:#x} of {}", m.path.display()));
        }
    }
    Ok(())
}
