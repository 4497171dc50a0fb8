//! What is said to people, on stderr.
//!
//! For:     every line of talk of this crate: here `eprintln!` is the macro below, and not the standard library's.
//! State:   what was said while a live view has the terminal.
//! Context: control.
//! Keeps:   T1 talk that cannot be written is dropped: it ends no run, and leaves no process with probes in it.
//!          T2 talk that nobody reads does not keep us: `PATIENCE` a line.
//!          T3 a line is printed as one line, without a character that a terminal would obey: shown.rs.
//! Checked: testkit `output`.

use crate::args::Format;
use crate::bar;
use crate::out::is_writable;
use crate::shown::shown;
use std::fmt::Arguments;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a full pipe may take to be read.
const PATIENCE: Duration = Duration::from_millis(200);
/// A pipe that can be written to takes so much at once.
const PIECE: usize = 4096;

/// Says one line. The standard library's macro would end us when stderr is full, and print what a target wrote as it is.
macro_rules! eprintln {
    ($($words:tt)*) => { $crate::talk::say(format_args!($($words)*)) };
}

/// What is said while a live view has the terminal, kept until that is gone; the first lines of it.
static KEPT: Mutex<Option<Vec<String>>> = Mutex::new(None);
const KEPT_MAX: usize = 200;

fn kept() -> MutexGuard<'static, Option<Vec<String>>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on what is said is kept.
pub fn keep() {
    kept().get_or_insert_default();
}

/// True while what is said is kept.
pub fn is_kept() -> bool {
    kept().is_some()
}

/// The last line that was kept.
pub fn last_kept() -> Option<String> {
    kept().as_ref()?.last().cloned()
}

/// Says what was kept; from now on what is said is said.
pub fn tell_kept() {
    let lines = kept().take();
    lines.into_iter().flatten().for_each(|line| say(format_args!("{line}")));
}

pub fn say(words: Arguments<'_>) {
    let line = words.to_string();
    if let Some(lines) = kept().as_mut() {
        if lines.len() < KEPT_MAX {
            lines.push(shown(&line, Format::Text).into_owned());
        }
        return;
    }
    bar::clear();
    let line = format!("{}\n", shown(&line, Format::Text));
    let mut stderr = io::stderr().lock();
    for piece in line.as_bytes().chunks(PIECE) {
        if !is_writable(stderr.as_raw_fd(), PATIENCE) || stderr.write_all(piece).is_err() {
            return;
        }
    }
}
