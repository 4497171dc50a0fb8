//! By which of its threads a process is to be looked at.
//!
//! For:     everything that reads /proc/PID: a first thread that has ended (`pthread_exit`) shows no memory there, while
//!          the process goes on.
//! State:   none; each call reads anew.
//! Context: control.
//! Keeps:   T1 a process is over only if every thread of it is seen to be; what cannot be read is not over.
//!          T2 what is read by [`by_living`] was read by a thread that had its memory before and afterwards, if one had.
//! Checked: tests below; testkit `endings`.

use std::path::{Path, PathBuf};

/// The /proc directory of the process, by a thread that has its memory still.
pub(crate) fn proc_dir(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{}", living(pid)))
}

/// A thread of the process that has its memory still: the first one if it can be, or if none has.
pub fn living(pid: u32) -> u32 {
    if has_memory(pid, pid) {
        return pid;
    }
    tasks(pid).into_iter().flatten().find(|tid| has_memory(pid, *tid)).unwrap_or(pid)
}

/// What is read by a thread of the process that has its memory, which may lose it meanwhile: then it is read by another.
pub fn by_living<T>(pid: u32, read: impl Fn(u32) -> T) -> T {
    /// As many threads may end one after the other.
    const TRIES: usize = 64;
    let mut tid = living(pid);
    for _ in 1..TRIES {
        let got = read(tid);
        let now = living(pid);
        if now == tid {
            return got;
        }
        tid = now;
    }
    read(tid)
}

/// A thread that is about to end has lost its memory before its state says so.
fn has_memory(pid: u32, tid: u32) -> bool {
    let sizes = std::fs::read(format!("/proc/{pid}/task/{tid}/statm"));
    sizes.is_ok_and(|sizes| !sizes.is_empty() && !sizes.starts_with(b"0 "))
}

/// Whether every thread of the process is seen to have ended.
pub fn is_over(pid: u32) -> bool {
    if !Path::new("/proc/self/stat").exists() {
        return false;
    }
    /// A thread that is no longer there may have taken another's number, as one does that executes a program.
    const TRIES: usize = 64;
    for _ in 0..TRIES {
        let tids = match tasks(pid) {
            Ok(tids) => tids,
            Err(error) => return is_absence(&error),
        };
        let seen: Vec<_> =
            tids.iter().map(|tid| std::fs::read(format!("/proc/{pid}/task/{tid}/stat"))).collect();
        let has_ended = |stat: &[u8]| matches!(state(stat), Some(b'Z' | b'X'));
        if seen.iter().any(|stat| stat.as_ref().map_or_else(|e| !is_absence(e), |stat| !has_ended(stat))) {
            return false;
        }
        if seen.iter().all(Result::is_ok) {
            return true;
        }
    }
    false
}

fn tasks(pid: u32) -> std::io::Result<Vec<u32>> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task"))?.collect::<Result<Vec<_>, _>>()?;
    Ok(entries.iter().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect())
}

/// ENOENT or ESRCH: the kernel knows no such thread.
fn is_absence(error: &std::io::Error) -> bool {
    const ESRCH: i32 = 3;
    error.kind() == std::io::ErrorKind::NotFound || error.raw_os_error() == Some(ESRCH)
}

/// The letter behind the name, which may hold anything, brackets and bytes that are no text included.
fn state(stat: &[u8]) -> Option<u8> {
    let end = stat.iter().rposition(|b| *b == b')')?;
    stat.get(end + 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_stands_behind_a_name_of_any_bytes() {
        assert_eq!(state(b"7 (a) Z (\xff\xc3) S 1 1"), Some(b'S'));
        assert_eq!(state(b"7 (x) Z 1"), Some(b'Z'));
        assert_eq!(state(b"7"), None);
    }

    #[test]
    fn this_process_lives_and_one_that_never_was_is_over() {
        let pid = std::process::id();
        assert_eq!((living(pid), by_living(pid, |tid| tid), is_over(pid)), (pid, pid, false));
        assert!(is_over(u32::MAX - 1));
    }
}
