//! A bar for work that takes long, in the last line of a terminal.
//!
//! For:     whoever waits for an analysis: look.rs.
//! State:   whether one is drawn.
//! Context: control.
//! Keeps:   B1 nothing of it is left when the work is over, also by a signal, and none of it stands in a line of talk: talk.rs
//!             clears it first.
//!          B2 it fits one line of the terminal, however narrow: a line that goes on in the next could not be taken away.
//!          B3 it is drawn on a terminal that obeys, and nowhere else; under a live view not at all.
//! Checked: tests below; testkit `progress`.

use crate::args::Format;
use crate::front::ENDING;
use crate::out::is_writable;
use crate::shown::shown;
use crate::talk;
use session::Progress;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Columns of the bar itself, at most and at least.
const WIDTH: usize = 24;
const NARROWEST: usize = 6;
/// From here on it is told how long it may take.
const KNOWN_PERCENT: u64 = 5;
/// Back to the line's start, and away with what stands there.
const CLEAR: &str = "\r\x1b[K";

/// How long taking it away may take.
const PATIENCE: Duration = Duration::from_millis(200);

static IS_DRAWN: AtomicBool = AtomicBool::new(false);

/// Whether stderr is a terminal that can take a line away again.
pub fn can_be_drawn() -> bool {
    let is_dumb = std::env::var("TERM").map_or(true, |term| term.is_empty() || term == "dumb");
    !is_dumb && io::stderr().is_terminal()
}

/// Draws how far the work has come, or takes it away.
pub fn draw(progress: Option<&Progress<'_>>) {
    let Some(progress) = progress.filter(|_| !talk::is_kept()) else { return clear() };
    mind_signals();
    IS_DRAWN.store(true, Relaxed);
    // The last column stays free: some terminals go on to the next line when it is written.
    put(&format!("{CLEAR}{}", line(progress, columns().saturating_sub(1))), Duration::ZERO);
}

/// Has the signals that end this process take the bar away first. Where they have something else to do already, as in the engine,
/// they end the work, and with it the bar.
fn mind_signals() {
    for signal in ENDING {
        // SAFETY: a sigaction of zeros is one.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: it writes one sigaction to `action`.
        let is_known = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) } == 0;
        if is_known && action.sa_sigaction == libc::SIG_DFL {
            action.sa_sigaction = ended as *const () as usize;
            action.sa_flags = libc::SA_RESETHAND;
            // SAFETY: the handler does nothing but what it may wherever the signal arrives.
            unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
        }
    }
}

/// Takes the bar away, and has the signal do what it does by itself.
extern "C" fn ended(signal: i32) {
    if IS_DRAWN.load(Relaxed) && is_writable(libc::STDERR_FILENO, PATIENCE) {
        // SAFETY: it reads these bytes.
        unsafe { libc::write(libc::STDERR_FILENO, CLEAR.as_ptr().cast(), CLEAR.len()) };
    }
    // SAFETY: it takes a number. The signal comes when this returns, and ends us: the action is the usual one again.
    unsafe { libc::raise(signal) };
}

/// Takes it away, if it is there.
pub fn clear() {
    if IS_DRAWN.swap(false, Relaxed) {
        put(CLEAR, PATIENCE);
    }
}

/// A terminal that is held is not waited for to draw: a bar may miss a picture.
fn put(text: &str, patience: Duration) {
    let mut stderr = io::stderr().lock();
    if is_writable(stderr.as_raw_fd(), patience) {
        let _ = stderr.write_all(text.as_bytes());
    }
}

fn columns() -> usize {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the kernel writes one winsize, or nothing.
    unsafe { libc::ioctl(io::stderr().as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    if size.ws_col == 0 { 80 } else { usize::from(size.ws_col) }
}

/// In at most so many columns: first the bar shrinks and goes, then what is behind it, then the beginning of what is done.
fn line(progress: &Progress<'_>, columns: usize) -> String {
    let percent = progress.percent();
    let left = progress.since.as_secs() * (100 - percent) / percent.max(1);
    let left = if percent < KNOWN_PERCENT { String::new() } else { format!(", about {left} s left") };
    let share = format!(" {percent:3} % of {}{left}", progress.all);
    // A file's name is whoever's that made the file.
    let what = shown(progress.what, Format::Text);
    let len = what.chars().count();
    let room = columns.saturating_sub(len + share.len() + " []".len()).min(WIDTH);
    if room >= NARROWEST {
        let full = room * percent as usize / 100;
        return format!("{what} [{}{}]{share}", "#".repeat(full), "-".repeat(room - full));
    }
    if len + share.len() <= columns {
        return format!("{what}{share}");
    }
    let share = format!(" {percent:3} %");
    if len + share.len() <= columns {
        return format!("{what}{share}");
    }
    let from = len.saturating_sub(columns.saturating_sub(share.len() + 3));
    let end: String = what.chars().skip(from).collect();
    format!("...{end}{share}").chars().take(columns).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use session::Amount;

    fn at(what: &str, done: u64, seconds: u64, columns: usize) -> String {
        let (all, since) = (Amount::Code(200 << 20), Duration::from_secs(seconds));
        line(&Progress { what, done: done << 20, all, since }, columns)
    }

    #[test]
    fn a_bar_says_how_far_and_how_long() {
        let half = "placing in /bin/x [############------------]  50 % of 200 MiB of code, about 7 s left";
        assert_eq!(at("placing in /bin/x", 100, 7, 100), half);
        let begun = at("placing in /bin/x", 2, 1, 100);
        assert!(begun.ends_with("[------------------------]   1 % of 200 MiB of code"), "{begun}");
        assert!(at("placing in /bin/x", 100, 7, 73).contains(" [######------]  50 % of"), "it shrinks");
        assert!(at("x", 200, 1, 100).contains("[########################] 100 %"));
    }

    #[test]
    fn a_bar_fits_its_line_however_narrow() {
        let what = "placing in /a/long/way/to/a/file/that/has/a/näme/of/its/own";
        for columns in 0..200 {
            let line = at(what, 60, 9, columns);
            assert!(line.chars().count() <= columns, "{columns}: {line}");
            assert!(columns < 9 || line.contains("30 %"), "{columns}: {line}");
        }
        assert_eq!(at(what, 60, 9, 30), "...has/a/näme/of/its/own  30 %");
    }

    #[test]
    fn a_file_name_commands_no_terminal() {
        let line = at("placing in /tmp/a\u{1b}[2Jb\nc", 60, 9, 200);
        assert!(line.contains("/tmp/a\\x1b[2Jb\\nc"), "{line}");
    }
}
