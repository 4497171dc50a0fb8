//! Where a command's input and output go while a live view has the terminal.
//!
//! For:     `top -- COMMAND`.
//! State:   our own three streams, put aside while the command is started; the file that it writes to.
//! Context: control.
//! Keeps:   S1 only streams that are the terminal are replaced; a file or a pipe is the command's as ever.
//!          S2 the command never waits for us, and gets no signal when we are gone: it writes to a file.
//! Checked: testkit `view`.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// So much of the output is shown at the end.
const SHOWN: u64 = 64 << 10;

/// Our streams while others are in their place.
pub struct Aside {
    /// Number, and the stream that was there.
    streams: Vec<(i32, OwnedFd)>,
    output: File,
}

/// What the command has written.
pub struct Output(File);

impl Aside {
    /// `None` if there is no room for a file: then the command writes to the terminal.
    pub fn begin() -> Option<Aside> {
        let nowhere = OpenOptions::new().read(true).open("/dev/null").ok()?;
        let mut options = OpenOptions::new();
        let output =
            options.read(true).append(true).custom_flags(libc::O_TMPFILE).open(std::env::temp_dir()).ok()?;
        let mut streams = Vec::new();
        for (number, is_terminal, to) in [
            (0, io::stdin().is_terminal(), &nowhere),
            (1, io::stdout().is_terminal(), &output),
            (2, io::stderr().is_terminal(), &output),
        ] {
            if is_terminal && let Some(own) = copy_of(number) {
                // SAFETY: both are open descriptors of this process, and one thread runs here.
                unsafe { libc::dup2(to.as_raw_fd(), number) };
                streams.push((number, own));
            }
        }
        Some(Aside { streams, output })
    }

    /// Our own streams again.
    pub fn end(self) -> Output {
        for (number, own) in &self.streams {
            // SAFETY: both are open descriptors of this process, and one thread runs here.
            unsafe { libc::dup2(own.as_raw_fd(), *number) };
        }
        Output(self.output)
    }
}

/// A stream once more, which no command inherits.
fn copy_of(number: i32) -> Option<OwnedFd> {
    // SAFETY: the call makes a descriptor and touches no memory.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    // SAFETY: it is new, and nobody else's.
    (copy >= 0).then(|| unsafe { OwnedFd::from_raw_fd(copy) })
}

impl Output {
    /// Prints the end of it, as the command wrote it.
    pub fn tell(mut self) {
        let len = self.0.metadata().map_or(0, |m| m.len());
        let from = len.saturating_sub(SHOWN);
        if len == 0 || self.0.seek(SeekFrom::Start(from)).is_err() {
            return;
        }
        if from > 0 {
            eprintln!("nanoprobe: the last {SHOWN} bytes of the {len} that the command has printed:");
        }
        let mut text = Vec::new();
        // It may go on writing: no more than was there.
        let _ = self.0.take(SHOWN).read_to_end(&mut text);
        let _ = io::stderr().lock().write_all(&text);
    }
}
