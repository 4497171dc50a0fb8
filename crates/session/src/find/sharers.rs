//! Which processes run in one memory.
//!
//! For:     stopping all of them: what is changed for one is changed for all. A vfork child is one until its exec, a child
//!          of clone(2) with CLONE_VM for ever.
//! State:   the number that was given to a process or thread last, when we looked last.
//! Context: control.
//! Keeps:   M1 [`Sharers::newcomers`], called while all that are known stand, is empty only if there is no other.
//! Checked: testkit `endings`.
//! Source:  kcmp(2). Without it, or where it is forbidden, none is found.

use crate::facts::error::Broken;
use crate::find::process::{self, Status};
use std::collections::BTreeSet;
use std::fs;

/// With more new numbers than this it is quicker to look at all processes.
const SPAN: i32 = 2048;

/// The processes in one memory.
#[derive(Debug)]
pub(crate) struct Sharers {
    pids: BTreeSet<i32>,
    /// All numbers up to this were looked at.
    newest: Option<i32>,
}

impl Sharers {
    /// Those that are there now; they run on, and may make more.
    pub fn of(pid: i32) -> Result<Sharers, Broken> {
        let mut sharers = Sharers { pids: BTreeSet::from([pid]), newest: newest() };
        sharers.pids.extend(among(process::living(pid), process::all()?, |other| other != pid));
        Ok(sharers)
    }

    /// The processes, the one that was asked for included.
    pub fn pids(&self) -> impl Iterator<Item = i32> {
        self.pids.iter().copied()
    }

    /// Those that came since, which are known from now on. `thread` is one that runs in the memory.
    pub fn newcomers(&mut self, thread: i32) -> Result<bool, Broken> {
        let now = newest();
        let numbers = match (self.newest, now) {
            (Some(before), Some(now)) if (before..before.saturating_add(SPAN)).contains(&now) => {
                (before + 1..=now).collect()
            }
            _ => process::all()?,
        };
        let found = among(thread, numbers, |other| other != thread);
        self.newest = now;
        let before = self.pids.len();
        self.pids.extend(found);
        Ok(self.pids.len() > before)
    }
}

/// The processes of these threads that run in the memory of `thread`.
fn among(thread: i32, numbers: Vec<i32>, is_other: impl Fn(i32) -> bool) -> Vec<i32> {
    let shares = |other: &i32| is_other(*other) && process::share_memory(thread, *other);
    let process_of = |id: i32| Status::of_any(id).ok().flatten().map(|status| status.tgid);
    numbers.into_iter().filter(shares).filter_map(process_of).collect()
}

/// The number that was given last, in our pid namespace.
fn newest() -> Option<i32> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_shares_its_memory_with_nobody_whatever_threads_it_starts() {
        let pid = sys::getpid().cast_signed();
        let mut sharers = Sharers::of(pid).unwrap();
        assert_eq!(sharers.pids().collect::<Vec<_>>(), [pid]);
        std::thread::spawn(|| ()).join().unwrap();
        assert!(!sharers.newcomers(pid).unwrap());
    }
}
