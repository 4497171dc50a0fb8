//! A kernel uprobe on a function of the traced program.
//!
//! For:     `--vs kernel`.
//! State:   one perf event; closing it takes the uprobe out.
//! Context: control.
//! Keeps:   K1 only threads that the process starts after `open` are counted, and all of them.
//! Checked: cli tests/bench.rs (its hits = calls).

use super::error::TriggerError;
use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;

const TYPE: &str = "/sys/bus/event_source/devices/uprobe/type";
const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

/// An open event.
#[derive(Debug)]
pub struct Uprobe {
    event: File,
}

impl Uprobe {
    /// Puts a uprobe at an offset of this executable, for the process and the threads it will start.
    pub fn open(pid: i32, offset: u64) -> Result<Uprobe, TriggerError> {
        let text = std::fs::read_to_string(TYPE);
        let text = text.map_err(|e| TriggerError::NoPmu { path: TYPE, why: e.to_string() })?;
        let pmu = text.trim().parse::<u32>();
        let pmu = pmu.map_err(|e| TriggerError::NoPmu { path: TYPE, why: e.to_string() })?;
        let path = CString::new(std::env::current_exe()?.as_os_str().as_bytes())
            .map_err(|e| TriggerError::Child(e.to_string()))?;
        let fd = sys::perf::open_uprobe(pmu, &path, offset, pid).map_err(|errno| {
            let paranoid = std::fs::read_to_string(PARANOID).unwrap_or_default();
            TriggerError::Perf { errno, paranoid: paranoid.trim().to_owned() }
        })?;
        // SAFETY: the call above gave a new descriptor that nothing else owns.
        Ok(Uprobe { event: unsafe { File::from_raw_fd(fd) } })
    }

    /// Hits so far, those of ended threads included.
    pub fn hits(&self) -> Result<u64, TriggerError> {
        let mut count = [0u8; 8];
        (&self.event).read_exact(&mut count)?;
        Ok(u64::from_le_bytes(count))
    }
}
