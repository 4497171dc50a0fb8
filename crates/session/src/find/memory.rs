//! The target's memory, from outside.
//!
//! For:     comparing and writing text, reading tables and stacks.
//! State:   /proc/PID/mem, opened once: it stays with the address space, also over an exec of the pid.
//! Context: control.
//! Keeps:   W1 a write is complete or an error.
//!          W2 an address space that is not the process's any more is never taken for one in which nothing is mapped.
//!          W3 "gone" is the kernel's answer that no process has this memory, never a guess from another failure.
//! Checked: testkit; `session` compares text after every write.

use crate::facts::error::Broken;
use crate::facts::inject;
use crate::find::identity::Identity;
use crate::find::process;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use sys::Errno;

/// Any address will do: nothing is read there.
const PROBE: u64 = 0x1000;

/// An open /proc/PID/mem.
#[derive(Debug)]
pub(crate) struct Memory {
    pub pid: i32,
    file: File,
    identity: Identity,
}

impl Memory {
    pub fn open(pid: i32) -> Result<Memory, Broken> {
        /// The thread by which we open it may end at this moment.
        const TRIES: usize = 8;
        let mut errno = Errno::ESRCH;
        for _ in 0..TRIES {
            let path = format!("/proc/{}/mem", process::living(pid));
            let injected = inject::step().map_err(|errno| std::io::Error::from_raw_os_error(errno.0));
            match injected.and_then(|()| OpenOptions::new().read(true).write(true).open(path)) {
                Ok(file) => return Ok(Memory { pid, file, identity: Identity::of(pid) }),
                Err(e) => errno = Errno(e.raw_os_error().unwrap_or(5)),
            }
            if !matches!(errno, Errno::ENOENT | Errno::ESRCH) || process::is_over(pid) {
                break;
            }
        }
        Err(process::why_not(pid, errno))
    }

    /// Whether nobody runs in this memory any more, for certain: whoever did has ended, or runs another program.
    pub fn is_over(&self) -> bool {
        // The kernel answers with an end of file where no process has the memory, and with an error where nothing is
        // mapped.
        matches!(self.file.read_at(&mut [0], PROBE), Ok(0))
    }

    pub fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), Broken> {
        let read = self.file.read_exact_at(into, addr);
        read.map_err(|e| self.failed("read of the target's memory", &e))
    }

    /// The word at an address, if it can be read.
    pub fn word(&self, addr: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, addr).ok().map(|()| u64::from_le_bytes(bytes))
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
        if self.is_over() { Err(self.identity.fate()) } else { self.identity.check() }
    }

    fn failed(&self, what: &'static str, error: &std::io::Error) -> Broken {
        if self.is_over() {
            return self.identity.fate();
        }
        Broken::Call { what, errno: Errno(error.raw_os_error().unwrap_or(5)) }
    }
}
