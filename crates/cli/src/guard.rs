//! A process that only waits for the other two to die.
//!
//! For:     a target whose front and engine were killed at one moment: by a cgroup's end, by a name that fits both.
//! State:   a pipe whose writing ends the front and the engine hold; on it the targets' pids, and 0 once all is well.
//! Context: control.
//! Keeps:   G1 it does nothing while one of the two lives, and nothing after a proper end.
//!          G2 it holds none of the run's descriptors: nobody waits for it. Only with a live view it holds the terminal, to
//!             give it back.
//! Checked: testkit `traces`; `view`.

use crate::top::Tty;
use std::fs::OpenOptions;
use std::io::{PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::process::exit;

/// Its name in /proc and ps.
const NAME: &str = "np-guard";

/// The writing end.
pub struct Guard {
    pipe: Option<PipeWriter>,
    child: i32,
}

impl Guard {
    /// Starts it, named after `pid` if that is known already; without one if that fails, which takes nothing from the
    /// run.
    ///
    /// The calling process must have one thread.
    pub fn start(pid: Option<i32>, tty: Option<&Tty>) -> Guard {
        let Ok((reader, writer)) = std::io::pipe() else { return Guard { pipe: None, child: 0 } };
        // SAFETY: this process has one thread (contract), so the child may use all of std.
        match unsafe { libc::fork() } {
            0 => {
                drop(writer);
                leave_family(pid);
                watch(reader, tty);
                exit(0)
            }
            -1 => Guard { pipe: None, child: 0 },
            child => Guard { pipe: Some(writer), child },
        }
    }

    /// Ends it; called by the front when the engine is gone.
    pub fn end(mut self) {
        self.tell(0);
        self.take_over();
    }

    /// Lets it do its work, and waits for that; called by the front when the engine was killed.
    pub fn take_over(mut self) {
        if self.pipe.take().is_some() {
            let mut status = 0;
            // SAFETY: waitpid writes one int to `status`.
            unsafe { libc::waitpid(self.child, &raw mut status, 0) };
        }
    }

    /// Says whom to free too, or with 0 that nobody needs it any more.
    pub fn tell(&mut self, pid: i32) {
        if let Some(pipe) = &mut self.pipe {
            let _ = pipe.write_all(&pid.to_le_bytes());
        }
    }
}

/// Becomes a process that no terminal and no process group of the run reaches.
fn leave_family(pid: Option<i32>) {
    crate::front::leave_session();
    if let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        for stream in 0..3 {
            // SAFETY: both are open descriptors of this process, and nobody else uses the three streams here.
            unsafe { libc::dup2(null.as_raw_fd(), stream) };
        }
    }
    let _ = std::env::set_current_dir("/");
    crate::front::rename(&pid.map_or(NAME.into(), |pid| format!("{NAME} {pid}")));
}

fn watch(mut pipe: impl Read, tty: Option<&Tty>) {
    let mut pids = Vec::new();
    let mut word = [0u8; 4];
    while pipe.read_exact(&mut word).is_ok() {
        match i32::from_le_bytes(word) {
            0 => pids.clear(),
            pid => pids.push(pid),
        }
    }
    if let Some(tty) = tty {
        tty.give_back();
    }
    // The two may not be quite gone yet; `recover` leaves alone what a living one owns.
    for _ in 0..20 {
        pids.retain(|pid| session::recover(*pid).is_ok_and(|found| found.is_empty()));
        if pids.is_empty() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}
