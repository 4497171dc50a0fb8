//! What a benchmark says.
//!
//! For:     this crate: here `eprintln!` and `print!` are the macros below, and not the standard library's.
//! State:   whether something could not be written to stdout.
//! Context: control.
//! Keeps:   T1 talk that cannot be written is dropped; data that cannot be is an error of the run, and ends nobody.
//! Checked: cli tests/bench.rs.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

static HAS_FAILED: AtomicBool = AtomicBool::new(false);

macro_rules! eprintln {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

macro_rules! print {
    ($($words:tt)*) => { $crate::talk::data(format_args!($($words)*)) };
}

/// Writes data to stdout.
pub fn data(words: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout();
    if out.write_fmt(words).and_then(|()| out.flush()).is_err() {
        HAS_FAILED.store(true, Ordering::Relaxed);
    }
}

/// The exit status, which is no success if data could not be written.
pub fn status(of_run: i32) -> i32 {
    if of_run == 0 && HAS_FAILED.load(Ordering::Relaxed) {
        eprintln!("nanoprobe: cannot write to standard output");
        return 1;
    }
    of_run
}
