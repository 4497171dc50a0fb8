//! Long work that somebody waits for: told while it goes on, and ended when they want no more.
//!
//! For:     reading files, which may be hundreds of megabytes of code.
//! State:   when work began.
//! Context: control.
//! Keeps:   P1 work that takes longer than a second is told, and then once a second at most.
//!          P2 whoever waits is asked at least for each megabyte of code.
//! Checked: insn `a_stretch_without_functions_is_read_in_linear_time` (P2).

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::time::{Duration, Instant};

/// How often work is told of.
const EACH: Duration = Duration::from_secs(1);

/// Whoever waits.
pub struct Pace {
    is_stopped: Box<dyn Fn() -> bool>,
    tell: Box<dyn Fn(&str)>,
}

/// Waits for ever and hears nothing.
impl Default for Pace {
    fn default() -> Pace {
        Pace::new(|| false, |_| ())
    }
}

impl std::fmt::Debug for Pace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pace")
    }
}

impl Pace {
    /// `is_stopped` is asked often whether to end, `tell` gets a line now and then.
    pub fn new(is_stopped: impl Fn() -> bool + 'static, tell: impl Fn(&str) + 'static) -> Pace {
        Pace { is_stopped: Box::new(is_stopped), tell: Box::new(tell) }
    }

    pub(super) fn is_stopped(&self) -> bool {
        (self.is_stopped)()
    }

    pub(super) fn tell(&self, line: &str) {
        (self.tell)(line);
    }

    /// Work on a file with so many bytes of code begins; `what` is done.
    pub(super) fn begin<'p>(&'p self, what: &'static str, path: &'p Path, bytes: u64) -> Work<'p> {
        Work { pace: self, what, path, bytes, done: Cell::new(0), told: RefCell::new(Instant::now()) }
    }
}

/// Work on one file.
pub(super) struct Work<'p> {
    pace: &'p Pace,
    what: &'static str,
    path: &'p Path,
    bytes: u64,
    done: Cell<u64>,
    told: RefCell<Instant>,
}

impl Work<'_> {
    /// So many bytes more were read; false if it is to end.
    pub(super) fn go_on(&self, bytes: u64) -> bool {
        self.done.set(self.done.get() + bytes);
        if self.told.borrow().elapsed() >= EACH {
            self.told.replace(Instant::now());
            let share = 100 * self.done.get() / self.bytes.max(1);
            let (what, path, size) = (self.what, self.path.display(), self.bytes >> 20);
            self.pace.tell(&format!("{what} {path}: {share} % of {size} MiB of code"));
        }
        !self.pace.is_stopped()
    }
}
