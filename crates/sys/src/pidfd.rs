//! A process by a descriptor, which never comes to mean another one.
//!
//! For:     signalling and reaping a child that may have been reaped by then.
//! State:   the descriptor, closed on drop.
//! Context: control.
//! Keeps:   P1 a signal reaches the process that was opened, or nobody.
//! Checked: tests below; testkit `launching`.

use crate::wait::{self, Status};
use crate::{Errno, check, close, nr, syscall};

const BY_PIDFD: usize = 3;

/// An open process.
#[derive(Debug)]
pub struct PidFd {
    fd: i32,
}

impl PidFd {
    /// The process that has this number now; of a child that was not reaped, it is that child.
    ///
    /// # Errors
    /// `ESRCH` no such process, `EMFILE` no descriptor is free.
    pub fn open(pid: i32) -> Result<PidFd, Errno> {
        // SAFETY: pidfd_open takes numbers only.
        let fd = check(unsafe { syscall(nr::PIDFD_OPEN, [pid as usize, 0, 0, 0, 0, 0]) })?;
        Ok(PidFd { fd: fd as i32 })
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// `ESRCH` it has ended, `EPERM` not allowed.
    pub fn signal(&self, signal: i32) -> Result<(), Errno> {
        let args = [self.fd as usize, signal as usize, 0, 0, 0, 0];
        // SAFETY: numbers, and no siginfo.
        check(unsafe { syscall(nr::PIDFD_SEND_SIGNAL, args) }).map(drop)
    }

    /// One of its descriptors, as one of ours; an exec closes it.
    ///
    /// # Errors
    /// `EBADF` it has none of this number, `EPERM` it may not be traced.
    pub fn take(&self, fd: i32) -> Result<i32, Errno> {
        let args = [self.fd as usize, fd as usize, 0, 0, 0, 0];
        // SAFETY: pidfd_getfd takes numbers only.
        check(unsafe { syscall(nr::PIDFD_GETFD, args) }).map(|fd| fd as i32)
    }

    /// How the child ended, and reaps it; `None` if it has not. A stop of it is left to whoever traces it.
    ///
    /// # Errors
    /// `ECHILD` it is not our child, or was reaped.
    pub fn reap(&self) -> Result<Option<Status>, Errno> {
        wait::reap_ended([BY_PIDFD, self.fd as usize], 0)
    }
}

impl Drop for PidFd {
    fn drop(&mut self) {
        close(self.fd);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    extern crate std;
    use super::*;
    use std::process::Command;

    #[allow(clippy::zombie_processes, reason = "it is reaped by its descriptor")]
    fn end_of(script: &str, signal: Option<i32>) -> (PidFd, Status) {
        let child = Command::new("/bin/sh").args(["-c", script]).spawn().unwrap();
        let process = PidFd::open(child.id() as i32).unwrap();
        if let Some(signal) = signal {
            assert_eq!(process.reap(), Ok(None));
            process.signal(signal).unwrap();
        }
        loop {
            if let Some(status) = process.reap().unwrap() {
                return (process, status);
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_child_is_reaped_once_and_never_signalled_again() {
        for (script, signal, wanted) in
            [("exit 7", None, Status::Exited(7)), ("sleep 60", Some(9), Status::Killed(9))]
        {
            let (process, status) = end_of(script, signal);
            assert_eq!(status, wanted);
            assert_eq!(process.reap(), Err(Errno::ECHILD));
            assert_eq!(process.signal(15), Err(Errno::ESRCH));
        }
    }
}
