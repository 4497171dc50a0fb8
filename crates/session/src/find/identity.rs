//! Is this still the process, and the memory, that we think?
//!
//! For:     whoever has stopped a process, before anything is done to it; and whoever failed, to say why.
//! State:   what a process was when its memory was opened.
//! Context: control.
//! Keeps:   I1 after `Memory::check` in a stop, the memory that we read and write is the one that the stopped process runs
//!             in, and the program in it is the one that it ran when the memory was opened.
//!          I2 a process that lives is not said to have ended.
//!          I3 what is read of the process after its memory was opened is of a whole program: one that the kernel has half
//!             mapped is waited for.
//! Checked: testkit `entered`; tests below.
//!
//! An open /proc/PID/mem stays with its address space. Once nobody runs in that, it reads as empty. It may live on in a
//! vfork child; then the auxiliary vector of the process tells: each exec writes a new one.

use crate::facts::error::Broken;
use crate::facts::site::SitePlan;
use crate::find::process;
use image::Mapping;
use std::fs;
use std::time::{Duration, Instant};
use sys::Errno;

/// So long we wait for an exec that is under way. A process may have cleared its vector by prctl(2): then that is all.
const LOADING_MAX: Duration = Duration::from_secs(1);

/// A process, and which of its programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pid: i32,
    /// In clock ticks since boot.
    start_time: Option<u64>,
    auxv: Vec<u8>,
}

impl Identity {
    /// What it is now, or when the exec that is under way has mapped all of its program.
    pub fn of(pid: i32) -> Identity {
        let end = Instant::now() + LOADING_MAX;
        let mut auxv = read_auxv(pid).unwrap_or_default();
        while is_being_loaded(&auxv) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
            auxv = read_auxv(pid).unwrap_or_default();
        }
        Identity { pid, start_time: process::start_time(pid), auxv }
    }

    /// Whether it is that still.
    ///
    /// # Errors
    /// [`Broken::Replaced`], [`Broken::Gone`]; [`Broken::Proc`] if that cannot be told.
    pub fn check(&self) -> Result<(), Broken> {
        match read_auxv(self.pid) {
            Ok(auxv) if auxv == self.auxv && process::start_time(self.pid) == self.start_time => Ok(()),
            Ok(_) => Err(self.fate()),
            Err(e) if is_absent(&e) => Err(self.fate()),
            Err(e) => Err(Broken::unreadable(format!("/proc/{}/auxv", self.pid), &e)),
        }
    }

    /// Why its memory is not there any more.
    pub fn fate(&self) -> Broken {
        let pid = self.pid;
        let stat = format!("/proc/{pid}/stat");
        // That there is no such file is proof; that it cannot be opened is none.
        if let Some(e) = fs::File::open(&stat).err().filter(|e| !is_absent(e)) {
            return Broken::unreadable(stat, &e);
        }
        let is_other = process::start_time(pid).is_some_and(|time| Some(time) != self.start_time);
        match is_other || process::is_over(pid) {
            true => Broken::Gone { pid },
            false => Broken::Replaced { pid, name: process::name(pid) },
        }
    }
}

fn read_auxv(pid: i32) -> std::io::Result<Vec<u8>> {
    // Of a thread that lives: a first thread that has ended has none.
    process::by_living(pid, |tid| fs::read(format!("/proc/{tid}/auxv")))
}

/// The kernel writes the vector last, when program, loader and vDSO are mapped; before, it has an end and nothing else.
fn is_being_loaded(auxv: &[u8]) -> bool {
    !auxv.is_empty() && auxv.iter().all(|byte| *byte == 0)
}

/// The process was not there.
fn is_absent(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ESRCH.0)
}

/// Whether a module is mapped where it was planned for.
pub(crate) fn is_mapped(mappings: &[Mapping], site: &SitePlan) -> bool {
    let (start, path) = (site.module_range.start, std::path::Path::new(&site.module));
    mappings.iter().any(|m| m.range.start.0 == start && m.path == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_being_loaded_is_known_by_its_vector() {
        let own = read_auxv(sys::getpid().cast_signed()).unwrap();
        assert!(!is_being_loaded(&own), "{own:?}");
        // A kernel's thread, or a process that is gone, has none at all.
        assert!(is_being_loaded(&[0; 16]) && !is_being_loaded(&[]));
    }
}
