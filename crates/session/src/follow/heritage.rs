//! What a program that we start takes over from whoever started us.
//!
//! For:     `Launched`: the command shall be as it would be without us.
//! State:   taken once, before we change anything of our own.
//! Context: control; `pass_on` runs in a forked child, and allocates nothing.
//! Keeps:   H1 process group, blocked and ignored signals of the command are those that we were started with.
//! Checked: testkit `launching`.

use sys::signal::{self, SIG_IGN, bit, sig};
use sys::{Errno, process_group, set_process_group};

const SIGPIPE: i32 = 13;

/// Process group, blocked signals, ignored signals.
#[derive(Clone, Copy, Debug)]
pub struct Heritage {
    group: i32,
    mask: u64,
    ignored: u64,
}

impl Heritage {
    /// That of this process, as long as it has changed nothing.
    pub fn of_this_process() -> Heritage {
        // SAFETY: an action is only read.
        let is_ignored = |n: &i32| unsafe { signal::action(*n, None) }.is_ok_and(|a| a.handler == SIG_IGN);
        // Rust's start-up ignores SIGPIPE, and its `Command` gives children the default.
        let ignored = (1..=sig::MAX).filter(|n| *n != SIGPIPE && is_ignored(n));
        let ignored = ignored.fold(0, |set, n| set | bit(n));
        Heritage { group: process_group(), mask: signal::mask(), ignored }
    }

    /// True if whoever started us has this signal ignored.
    pub fn ignores(&self, signal: i32) -> bool {
        self.ignored & bit(signal) != 0
    }

    /// In the forked child, before its exec.
    pub(crate) fn pass_on(&self) -> Result<(), Errno> {
        for n in (1..=sig::MAX).filter(|n| self.ignores(*n)) {
            // SAFETY: no function is set.
            unsafe { signal::action(n, Some(signal::Action::new(SIG_IGN, 0, 0))) }?;
        }
        // The group may be without a process by now, or be ours already.
        let _ = set_process_group(self.group);
        signal::set_mask(self.mask);
        Ok(())
    }
}
