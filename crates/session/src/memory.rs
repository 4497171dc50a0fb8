//! The target's memory, from outside.
//!
//! For:     comparing and writing text, reading tables and stacks.
//! State:   /proc/PID/mem, opened once: it stays with the address space, also over an exec of the pid.
//! Context: control.
//! Keeps:   W1 a write is complete or an error.
//!          W2 an address space that is not the process's any more is never taken for one in which nothing is mapped.
//! Checked: testkit; `session` compares text after every write.

use crate::error::Broken;
use crate::identity::Identity;
use crate::inject;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use sys::Errno;

/// An open /proc/PID/mem.
#[derive(Debug)]
pub(crate) struct Memory {
    pub pid: i32,
    file: File,
    identity: Identity,
}

impl Memory {
    pub fn open(pid: i32) -> Result<Memory, Broken> {
        let path = format!("/proc/{pid}/mem");
        let injected = inject::step().map_err(|errno| std::io::Error::from_raw_os_error(errno.0));
        match injected.and_then(|()| OpenOptions::new().read(true).write(true).open(path)) {
            Ok(file) => Ok(Memory { pid, file, identity: Identity::of(pid) }),
            Err(e) => Err(crate::process::why_not(pid, Errno(e.raw_os_error().unwrap_or(0)))),
        }
    }

    pub fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), Broken> {
        let read = self.file.read_exact_at(into, addr);
        read.map_err(|e| self.failed("read of the target's memory", &e))
    }

    pub fn read_vec(&self, addr: u64, len: usize) -> Result<Vec<u8>, Broken> {
        let mut bytes = vec![0; len];
        self.read(addr, &mut bytes)?;
        Ok(bytes)
    }

    pub fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), Broken> {
        let injected = inject::step().map_err(|errno| std::io::Error::from_raw_os_error(errno.0));
        let written = injected.and_then(|()| self.file.write_all_at(bytes, addr));
        written.map_err(|e| self.failed("write to the target's memory", &e))
    }

    /// Asked in a stop, before anything is done: is it still the memory of the process that it was opened for, with the
    /// program that ran then?
    ///
    /// # Errors
    /// [`Broken::Replaced`], [`Broken::Gone`].
    pub fn check(&self) -> Result<(), Broken> {
        // Whether or not something is mapped there: an address space that nobody runs in reads as empty.
        match self.file.read_at(&mut [0], 0) {
            Ok(0) => Err(self.identity.fate()),
            _ => self.identity.check(),
        }
    }

    fn failed(&self, what: &'static str, error: &std::io::Error) -> Broken {
        match error.raw_os_error() {
            Some(errno) => Broken::Call { what, errno: Errno(errno) },
            // Nothing was read: nobody runs in it any more.
            None => self.identity.fate(),
        }
    }
}
