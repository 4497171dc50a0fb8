//! What a process looks like from outside, to compare before and after.
//!
//! For:     the promise that nanoprobe leaves no trace.
//! State:   a copy of what /proc told at one moment, with every byte of executable memory.
//! Context: control; the process is not stopped, so its own changes show too. A libc blocks all signals of both threads while
//!          one makes the other: a snapshot waits until none does.
//! Keeps:   G1 equal snapshots mean: same threads, file descriptors, mappings, signal state and
//!          code; G2 a difference names its place.
//! Checked: tests/targets.rs changes one byte, opens a descriptor, and sees both.

mod mapping;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::{Error, Result, wait_until};
pub(crate) use mapping::Mapping;

/// Lines of /proc/PID/status that only a tracer would change.
const STATUS: &[&str] = &[
    "Name",
    "TracerPid",
    "Uid",
    "Gid",
    "Threads",
    "SigPnd",
    "ShdPnd",
    "SigBlk",
    "SigIgn",
    "SigCgt",
    "CapEff",
    "NoNewPrivs",
    "Seccomp",
    "Seccomp_filters",
    "Umask",
    "CoreDumping",
];

/// SIGKILL and SIGSTOP, which nobody blocks, and 32 to 34, which musl leaves to itself.
const NOT_BLOCKED: u64 = 1 << 8 | 1 << 18 | 0b111 << 31;

/// How long a thread may take to come to be.
const SETTLED: Duration = Duration::from_secs(60);

const NO_DIFFERENCE: &str = "no difference";

/// A process as /proc shows it.
pub struct Snapshot {
    pid: u32,
    /// One line per fact: a key that is unique, and its value.
    facts: BTreeMap<String, String>,
    /// Executable mappings and their bytes.
    code: Vec<(Mapping, Vec<u8>)>,
}

/// How two snapshots differ, a line for each difference.
#[derive(PartialEq, Eq)]
pub struct Difference {
    lines: Vec<String>,
}

impl Snapshot {
    /// The process as it is now, or as soon as none of its threads is making another.
    pub fn take(pid: u32) -> Result<Self> {
        let mut facts = Ok(BTreeMap::new());
        wait_until(&format!("process {pid} to have no thread that blocks all signals"), SETTLED, || {
            facts = threads_of(pid);
            !facts.as_ref().is_ok_and(makes_a_thread)
        })?;
        let mut facts = facts?;
        for fd in names(&format!("/proc/{pid}/fd"))? {
            // One that is closed between the two calls was never ours to compare.
            if let Ok(file) = fs::read_link(format!("/proc/{pid}/fd/{fd}")) {
                facts.insert(format!("descriptor {fd}"), file.display().to_string());
            }
        }
        for link in ["cwd", "root", "exe"] {
            let path = format!("/proc/{pid}/{link}");
            let file = fs::read_link(&path).map_err(Error::io(&path))?;
            facts.insert(link.into(), file.display().to_string());
        }
        let (mappings, code) = code_of(pid)?;
        for mapping in mapping::joined(&mappings) {
            facts.insert(format!("mapping {mapping}"), String::new());
        }
        Ok(Self { pid, facts, code })
    }

    /// What is different in `later`; empty if nothing is.
    pub fn difference(&self, later: &Self) -> Difference {
        let mut lines = Vec::new();
        for (key, value) in &self.facts {
            match later.facts.get(key) {
                None => lines.push(format!("gone     {key} {value}")),
                Some(now) if now != value => lines.push(format!("changed  {key}: {value} -> {now}")),
                Some(_) => {}
            }
        }
        let new = later.facts.iter().filter(|(key, _)| !self.facts.contains_key(*key));
        lines.extend(new.map(|(key, value)| format!("new      {key} {value}")));
        for (mapping, before) in &self.code {
            let same = |m: &Mapping| m.start == mapping.start && m.end == mapping.end;
            if let Some((_, after)) = later.code.iter().find(|(m, _)| same(m)) {
                lines.extend(changed_bytes(mapping, before, after));
            }
        }
        Difference { lines }
    }

    /// What is different in the same process now.
    pub fn difference_now(&self) -> Result<Difference> {
        Ok(self.difference(&Self::take(self.pid)?))
    }

    /// Returns once the same process is as it was; an error with the difference if that takes longer
    /// than `within`.
    pub fn comes_back(&self, within: Duration) -> Result<()> {
        let mut last = String::new();
        let waited = wait_until("the process to be as before", within, || {
            last = self.difference_now().map_or_else(|e| e.to_string(), |d| d.to_string());
            last == NO_DIFFERENCE
        });
        waited.map_err(|_| Error::Deadline {
            waited_for: format!("process {} to be as before", self.pid),
            within,
            seen: last,
        })
    }

    /// Bytes of code that were copied.
    pub fn code_bytes(&self) -> usize {
        self.code.iter().map(|(_, bytes)| bytes.len()).sum()
    }
}

impl Difference {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The same without the lines that `known` accepts: what the target does by itself.
    pub fn without(self, known: impl Fn(&str) -> bool) -> Self {
        Self { lines: self.lines.into_iter().filter(|line| !known(line)).collect() }
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.lines[..] {
            [] => f.write_str(NO_DIFFERENCE),
            _ => f.write_str(&self.lines.join("\n")),
        }
    }
}

impl std::fmt::Debug for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

fn names(directory: &str) -> Result<Vec<String>> {
    let entries = fs::read_dir(directory).map_err(Error::io(directory))?;
    Ok(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

/// What /proc tells of a process and of each of its threads.
fn threads_of(pid: u32) -> Result<BTreeMap<String, String>> {
    let mut facts = BTreeMap::new();
    status_facts(&format!("/proc/{pid}/status"), "process", &mut facts)?;
    for tid in names(&format!("/proc/{pid}/task"))? {
        status_facts(&format!("/proc/{pid}/task/{tid}/status"), &format!("thread {tid}"), &mut facts)?;
    }
    Ok(facts)
}

/// Whether a thread blocks all signals that can be blocked, as a libc has it for a moment. No target does.
fn makes_a_thread(facts: &BTreeMap<String, String>) -> bool {
    let all = |mask: &str| u64::from_str_radix(mask, 16).is_ok_and(|mask| mask | NOT_BLOCKED == u64::MAX);
    facts.iter().any(|(key, mask)| key.ends_with("SigBlk") && all(mask))
}

fn status_facts(path: &str, owner: &str, facts: &mut BTreeMap<String, String>) -> Result<()> {
    let text = fs::read_to_string(path).map_err(Error::io(path))?;
    let known = text.lines().filter_map(|line| line.split_once(':')).filter(|(key, _)| STATUS.contains(key));
    for (key, value) in known {
        facts.insert(format!("{owner} {key}"), value.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    Ok(())
}

/// How often the mappings are read again where one has gone meanwhile: a runtime takes memory of its own away, and so do we.
const TRIES: usize = 5;

type Code = Vec<(Mapping, Vec<u8>)>;

/// All mappings, and what those of code have, of one moment.
fn code_of(pid: u32) -> Result<(Vec<Mapping>, Code)> {
    let mut left = TRIES;
    loop {
        let mappings = mapping::read(pid)?;
        left -= 1;
        match read_code(pid, &mappings) {
            Err(_) if left > 0 && mapping::read(pid)? != mappings => {}
            read => return Ok((mappings, read?)),
        }
    }
}

fn read_code(pid: u32, mappings: &[Mapping]) -> Result<Code> {
    let path = format!("/proc/{pid}/mem");
    let memory = File::open(&path).map_err(Error::io(&path))?;
    let mut code = Vec::new();
    // The vsyscall page lies in the kernel's half, where this file does not reach.
    for mapping in mappings.iter().filter(|m| m.is_executable() && m.name != "[vsyscall]") {
        let mut bytes = vec![0; (mapping.end - mapping.start) as usize];
        memory.read_exact_at(&mut bytes, mapping.start).map_err(Error::io(format!("{path}, {mapping}")))?;
        code.push((mapping.clone(), bytes));
    }
    Ok(code)
}

/// A line for each run of differing bytes, at most ten.
fn changed_bytes(mapping: &Mapping, before: &[u8], after: &[u8]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut at = 0;
    while let Some(step) = before[at..].iter().zip(&after[at..]).position(|(b, a)| b != a) {
        let start = at + step;
        let end = (start + 8).min(before.len());
        if lines.len() == 10 {
            lines.push(format!("changed  code of {}: and more", mapping.name));
            break;
        }
        lines.push(format!(
            "changed  code at {:#x} ({}+{:#x}): {:02x?} -> {:02x?}",
            mapping.start + start as u64,
            mapping.name,
            mapping.offset + start as u64,
            &before[start..end],
            &after[start..end],
        ));
        at = end;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_libc_that_makes_a_thread_is_told_by_its_mask() {
        let blocked = |mask: &str| makes_a_thread(&BTreeMap::from([("thread 7 SigBlk".into(), mask.into())]));
        assert!(blocked("fffffffffffbfeff"), "glibc's");
        assert!(blocked("fffffffc7ffbfeff"), "musl's");
        assert!(!blocked("fffffffffffbfefe"), "all but one");
        assert!(!blocked("0000000000000000"));
    }
}
