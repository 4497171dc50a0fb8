//! The terminal, taken and given back.
//!
//! For:     the live view: the engine draws, the front reads keys, and whoever is left restores.
//! State:   the terminal's settings from before; a pipe that holds one byte as long as the view is on; the pipe of keys.
//! Context: control. Made before the three processes part, so that each has all of it.
//! Keeps:   Y1 as long as one of front, engine and guard lives, the terminal gets its settings and its screen back.
//!          Y2 who does not read the terminal keeps nobody: it is written through a descriptor of ours that does not wait.
//!          Y3 a command that is started inherits none of these descriptors.
//! Checked: testkit `view`.
//!
//! Who gives it back: the engine when it leaves the view, the front's death included; the front when it finds the engine
//! ended with the view on; the guard when both are gone.

use crate::out::is_writable;
use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

/// Another screen, no cursor.
const TAKE: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[2J\x1b[H";
/// No colours, the cursor, the screen from before.
const GIVE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";
/// How long the last bytes may take.
const PATIENCE: Duration = Duration::from_millis(200);

/// The terminal that we were started in.
pub struct Tty {
    file: File,
    before: libc::termios,
    is_on: (PipeReader, PipeWriter),
    keys: (PipeReader, PipeWriter),
}

impl Tty {
    /// `None` if there is none that could show a view.
    pub fn find() -> Option<Tty> {
        let is_dumb = std::env::var("TERM").map_or(true, |term| term.is_empty() || term == "dumb");
        if is_dumb || !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
            return None;
        }
        let open = |path| {
            let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
            OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
        };
        let file = open("/proc/self/fd/1").or_else(|_| open("/dev/tty")).ok()?;
        let before = settings(file.as_raw_fd())?;
        Some(Tty { file, before, is_on: std::io::pipe().ok()?, keys: std::io::pipe().ok()? })
    }

    /// The view comes: keys are read one by one, nothing is echoed.
    pub fn take(&self) {
        if self.is_on() {
            return;
        }
        // First: should we die behind this line, somebody knows.
        let _ = (&self.is_on.1).write_all(&[1]);
        let mut raw = self.before;
        // SAFETY: it changes fields of a structure of ours.
        unsafe { libc::cfmakeraw(&raw mut raw) };
        set(self.file.as_raw_fd(), &raw);
        self.put(TAKE);
    }

    /// The view goes, if it is there. Only one process at a time calls this: who is left.
    pub fn give_back(&self) {
        if !self.is_on() {
            return;
        }
        set(self.file.as_raw_fd(), &self.before);
        self.put(GIVE);
        let _ = (&self.is_on.0).read(&mut [0]);
    }

    /// True while the view is there.
    pub fn is_on(&self) -> bool {
        is_readable(self.is_on.0.as_raw_fd(), 0)
    }

    /// Waits until the view is there.
    pub fn wait_until_on(&self) {
        while !is_readable(self.is_on.0.as_raw_fd(), -1) {}
    }

    /// Columns and rows.
    pub fn size(&self) -> (u16, u16) {
        let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the kernel writes one winsize.
        unsafe { libc::ioctl(self.file.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
        match (size.ws_col, size.ws_row) {
            (0, _) | (_, 0) => (80, 24),
            (columns, rows) => (columns.min(500), rows.min(200)),
        }
    }

    /// Writes as much as the terminal takes now; how much.
    pub fn write(&self, bytes: &[u8]) -> usize {
        (&self.file).write(bytes).unwrap_or_default()
    }

    fn put(&self, mut bytes: &[u8]) {
        while !bytes.is_empty() && is_writable(self.file.as_raw_fd(), PATIENCE) {
            match self.write(bytes) {
                0 => return,
                n => bytes = &bytes[n..],
            }
        }
    }

    /// Readable when a key was pressed that was not taken yet.
    pub fn keys(&self) -> RawFd {
        self.keys.0.as_raw_fd()
    }

    /// Says that a key was pressed.
    pub fn send(&self, word: u32) -> bool {
        (&self.keys.1).write_all(&word.to_le_bytes()).is_ok()
    }

    /// Keys that were pressed meanwhile.
    pub fn take_keys(&self) -> Vec<u32> {
        let mut words = [[0u8; 4]; 64];
        if !is_readable(self.keys(), 0) {
            return Vec::new();
        }
        let got = (&self.keys.0).read(words.as_flattened_mut()).unwrap_or(0);
        words[..got / 4].iter().map(|word| u32::from_le_bytes(*word)).collect()
    }
}

fn settings(fd: RawFd) -> Option<libc::termios> {
    // SAFETY: settings are plain data, for which all zeroes is a value.
    let mut now: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes one structure, which is ours.
    let got = unsafe { libc::tcgetattr(fd, &raw mut now) };
    (got == 0).then_some(now)
}

/// At once: a terminal that takes no output must not keep us. SIGTTOU is blocked in the engine, which may be in the background.
fn set(fd: RawFd, to: &libc::termios) {
    // SAFETY: the call reads one structure, which is alive.
    unsafe { libc::tcsetattr(fd, libc::TCSANOW, to) };
}

fn is_readable(fd: RawFd, millis: i32) -> bool {
    let mut fd = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, alive for the call.
    unsafe { libc::poll(&raw mut fd, 1, millis) > 0 }
}
