//! Where data goes: stdout, or the file of `-o`.
//!
//! For:     results and lists.
//! State:   the open file; what could not be written yet; whether writing has failed.
//! Context: control.
//! Keeps:   O1 a file is emptied when there is something to write to it, not before: a run that comes to nothing leaves
//!             it as it was.
//!          O2 who does not read does not keep us from ending: writing is put off when a signal comes or the time is up.
//!          O3 what could not be written is an error of the run; a reader that has gone ends the run.
//!          O4 colours are for a terminal, and come after the text was made harmless.
//! Checked: testkit `output`.

use crate::args::Format;
use crate::paint;
use crate::shown::shown;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A pipe that can be written to takes so much without waiting.
const PIECE: usize = 4096;
/// The exit code that a shell gives a command whose reader has gone: 128 and SIGPIPE.
const READER_GONE: i32 = 141;
/// How often it is looked whether a FIFO has a reader.
const LOOK: Duration = Duration::from_millis(20);

/// A place for data.
pub struct Out {
    format: Format,
    /// Not opened yet.
    late: Option<PathBuf>,
    file: Option<File>,
    name: String,
    /// Readable when the run is to end.
    stop: Option<RawFd>,
    /// No write waits for longer.
    pub until: Option<Instant>,
    /// Written when there is time for it.
    pending: Vec<u8>,
    failed: Option<Failed>,
    has_colours: bool,
}

enum Failed {
    ReaderGone,
    Other(io::Error),
    /// Nobody read, and a second signal came.
    NobodyReads,
}

impl Out {
    /// Stdout, for commands that only print.
    pub fn stdout(format: Format) -> Out {
        let file = io::stdout().as_fd().try_clone_to_owned().map(File::from);
        let (file, failed) = match file {
            Ok(file) => (Some(file), None),
            Err(error) => (None, Some(Failed::Other(error))),
        };
        let name = "standard output".to_owned();
        let has_colours = format == Format::Text && paint::is_wanted(io::stdout().is_terminal());
        Out {
            format,
            late: None,
            file,
            name,
            stop: None,
            until: None,
            pending: Vec::new(),
            failed,
            has_colours,
        }
    }

    /// The file, if one is given, else stdout. What keeps a file from being written is found out as far as that can be
    /// without changing it; a FIFO is waited for until it has a reader, a signal comes or `patience` is over.
    pub fn open(
        path: Option<&Path>,
        format: Format,
        stop: RawFd,
        patience: Option<Duration>,
    ) -> Result<Out, String> {
        let mut out = Out::stdout(format);
        out.stop = Some(stop);
        let Some(path) = path else { return Ok(out) };
        out.name = path.display().to_string();
        (out.file, out.failed, out.has_colours) = (None, None, false);
        if is_fifo(path) {
            out.file = Some(open_fifo(path, stop, patience)?);
        }
        may_write(path)?;
        if out.file.is_none() {
            out.late = Some(path.to_owned());
        }
        Ok(out)
    }

    /// One line.
    pub fn line(&mut self, text: &str) {
        self.put(shown(text, self.format).as_bytes());
        self.put(b"\n");
        self.flush();
    }

    /// Several.
    pub fn lines<T: AsRef<str>>(&mut self, lines: impl IntoIterator<Item = T>) {
        for line in lines {
            self.put(shown(line.as_ref(), self.format).as_bytes());
            self.put(b"\n");
            if self.pending.len() >= PIECE {
                self.flush();
            }
        }
        self.flush();
    }

    /// Lines of calls, in colours where there are some.
    pub fn calls(&mut self, lines: &[String]) {
        if !self.has_colours {
            return self.lines(lines);
        }
        for line in lines {
            self.put(paint::call(&shown(line, self.format)).as_bytes());
            self.put(b"\n");
            if self.pending.len() >= PIECE {
                self.flush();
            }
        }
        self.flush();
    }

    /// Writes what was put off; true if something is left.
    pub fn is_behind(&mut self) -> bool {
        !self.write(false)
    }

    fn put(&mut self, bytes: &[u8]) {
        if self.failed.is_none() {
            self.pending.extend_from_slice(bytes);
        }
    }

    /// Writes what is there, as far as somebody takes it before the run is to end.
    fn flush(&mut self) {
        let _ = self.write(false);
    }

    /// Writes all that was put off: the process is free again, so this may take as long as the reader takes. A signal ends
    /// it. Then the exit code of the run, given what it would be: writing that failed is told, and is no success.
    pub fn finish(&mut self, code: i32) -> i32 {
        if let Some(path) = self.late.take() {
            self.create(&path);
        }
        if !self.write(true) && self.failed.is_none() {
            self.failed = Some(Failed::NobodyReads);
        }
        let name = &self.name;
        let of_failure = match &self.failed {
            None => return code,
            Some(Failed::ReaderGone) => READER_GONE,
            Some(Failed::Other(error)) => {
                eprintln!("nanoprobe: cannot write results to {name}: {error}");
                1
            }
            Some(Failed::NobodyReads) => {
                eprintln!("nanoprobe: results were not all written to {name}: nobody reads them");
                1
            }
        };
        if code == 0 { of_failure } else { code }
    }

    /// True if nothing more can be written: the run has no purpose any more.
    pub fn has_failed(&mut self) -> bool {
        if self.failed.is_none() && self.file.as_ref().is_some_and(has_no_reader) {
            self.failed = Some(Failed::ReaderGone);
        }
        self.failed.is_some()
    }

    fn create(&mut self, path: &Path) {
        match File::create(path) {
            Ok(file) => self.file = Some(file),
            Err(error) => self.failed = Some(Failed::Other(error)),
        }
    }

    /// True if nothing is left to be written.
    fn write(&mut self, is_last: bool) -> bool {
        if !self.pending.is_empty()
            && let Some(path) = self.late.take()
        {
            self.create(&path);
        }
        let Some(file) = &mut self.file else { return self.pending.is_empty() };
        let mut done = 0;
        while done < self.pending.len() && self.failed.is_none() {
            let until = self.until.filter(|_| !is_last);
            if !wait_writable(file.as_raw_fd(), self.stop, until) {
                break;
            }
            let piece = &self.pending[done..];
            match file.write(&piece[..piece.len().min(PIECE)]) {
                Ok(0) => self.failed = Some(Failed::Other(io::ErrorKind::WriteZero.into())),
                Ok(n) => done += n,
                Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => self.failed = Some(Failed::ReaderGone),
                Err(e) => self.failed = Some(Failed::Other(e)),
            }
        }
        self.pending.drain(..done);
        if self.failed.is_some() {
            self.pending = Vec::new();
        }
        self.pending.is_empty()
    }
}

fn is_fifo(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.file_type().is_fifo())
}

/// What keeps a file from being written, as far as that can be found out without changing it.
///
/// # Errors
/// Why it cannot be written, with its name.
pub fn may_write(path: &Path) -> Result<(), String> {
    let why = |e: io::Error| format!("{}: {e}", path.display());
    match std::fs::metadata(path) {
        Ok(m) if m.is_dir() => Err(why(io::Error::from_raw_os_error(libc::EISDIR))),
        // To open one waits for a reader.
        Ok(m) if m.file_type().is_fifo() => Ok(()),
        Ok(_) => OpenOptions::new().write(true).open(path).map(drop).map_err(why),
        Err(e) if e.kind() == io::ErrorKind::NotFound => may_create(path).map_err(why),
        Err(e) => Err(why(e)),
    }
}

/// Writes a file whole or not at all: what was there before stays until all of the new one is on the disk's side.
///
/// # Errors
/// Why it cannot be written, with its name.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let why = |e: io::Error| format!("{} cannot be written: {e}", path.display());
    let there = std::fs::metadata(path).ok();
    let is_alone = path.parent().is_some_and(|dir| may_create(&dir.join("x")).is_err());
    if there.as_ref().is_some_and(|m| !m.is_file() || is_alone) {
        return std::fs::write(path, bytes).map_err(why);
    }
    // Behind a link stands the file that is meant.
    let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut new = path.clone().into_os_string();
    new.push(format!(".new-{}", std::process::id()));
    let new = PathBuf::from(new);
    let written = std::fs::write(&new, bytes)
        .and_then(|()| there.map_or(Ok(()), |m| std::fs::set_permissions(&new, m.permissions())))
        .and_then(|()| std::fs::rename(&new, path));
    written.map_err(|e| {
        let _ = std::fs::remove_file(&new);
        why(e)
    })
}

/// Whether the directory takes a new file.
fn may_create(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = std::ffi::CString::new(parent.as_os_str().as_bytes())?;
    // SAFETY: the kernel reads a string that lives for the call.
    let got =
        unsafe { libc::faccessat(libc::AT_FDCWD, name.as_ptr(), libc::W_OK | libc::X_OK, libc::AT_EACCESS) };
    if got == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn open_fifo(path: &Path, stop: RawFd, patience: Option<Duration>) -> Result<File, String> {
    let end = patience.map(|p| Instant::now() + p);
    let mut is_told = false;
    loop {
        let open = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path);
        match open {
            Err(e) if e.raw_os_error() == Some(libc::ENXIO) => {}
            other => return other.map_err(|e| format!("{}: {e}", path.display())),
        }
        if !std::mem::replace(&mut is_told, true) {
            eprintln!("nanoprobe: waiting for a reader of {}. Ctrl-C to end.", path.display());
        }
        if is_stopped(stop, LOOK) || end.is_some_and(|end| Instant::now() >= end) {
            return Err(format!("{}: nobody has opened it to read; nothing was touched", path.display()));
        }
    }
}

/// Waits until a descriptor can be written to, as long as nothing comes on `stop`.
fn wait_writable(fd: RawFd, stop: Option<RawFd>, until: Option<Instant>) -> bool {
    loop {
        let mut fds = [(fd, libc::POLLOUT), (stop.unwrap_or(-1), libc::POLLIN)];
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let [out, stop] = poll(&mut fds, left);
        if out != 0 {
            return true;
        }
        if stop != 0 || left == Some(Duration::ZERO) {
            return false;
        }
    }
}

/// Whether a descriptor can be written to, waited for as long as that.
pub fn is_writable(fd: RawFd, patience: Duration) -> bool {
    poll(&mut [(fd, libc::POLLOUT)], Some(patience)) != [0]
}

fn is_stopped(stop: RawFd, patience: Duration) -> bool {
    poll(&mut [(stop, libc::POLLIN)], Some(patience)) != [0]
}

/// A pipe or socket whose other end is closed.
fn has_no_reader(file: &File) -> bool {
    let [seen] = poll(&mut [(file.as_raw_fd(), 0)], Some(Duration::ZERO));
    seen & libc::POLLERR != 0
}

/// What poll(2) says of each; nothing if it was interrupted.
fn poll<const N: usize>(of: &mut [(RawFd, i16); N], patience: Option<Duration>) -> [i16; N] {
    let mut fds = of.map(|(fd, events)| libc::pollfd { fd, events, revents: 0 });
    let millis = patience.map_or(-1, |p| p.as_millis().min(1 << 20) as i32 + i32::from(p > Duration::ZERO));
    // SAFETY: `fds` is an array of `N`, alive for the call.
    let got = unsafe { libc::poll(fds.as_mut_ptr(), N as libc::nfds_t, millis) };
    if got < 0 { [0; N] } else { fds.map(|fd| fd.revents) }
}
