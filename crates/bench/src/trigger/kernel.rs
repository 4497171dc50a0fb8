//! A kernel uprobe on a function of the traced program, with a program that counts.
//!
//! For:     `--vs kernel`.
//! State:   one perf event, one BPF program, one table with a count per CPU.
//! Context: control.
//! Keeps:   K1 all threads of the process are counted, by one consumer: nothing is in the kernel's way twice.
//!          K2 dropped, the uprobe is out.
//! Checked: cli tests/bench.rs (its hits = calls).
//! Source:  what the kernel's own bench measures: kernel-facts 6.2. The event's own count would cost it more:
//!          perf fills a record at each hit, a program that returns 0 spares it that.

use super::error::TriggerError;
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use sys::Errno;
use sys::bpf::{add_one, instruction};

const TYPE: &str = "/sys/bus/event_source/devices/uprobe/type";
const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

/// A uprobe that counts as long as it lives.
#[derive(Debug)]
pub struct Uprobe {
    counts: OwnedFd,
    cpus: usize,
    _event: OwnedFd,
}

impl Uprobe {
    /// Puts a uprobe, or one that is hit when the function returns, at an offset of this executable.
    pub fn open(pid: i32, offset: u64, is_return: bool) -> Result<Uprobe, TriggerError> {
        let pmu = pmu()?;
        let path = CString::new(std::env::current_exe()?.as_os_str().as_bytes());
        let path = path.map_err(|e| TriggerError::Child(e.to_string()))?;
        let counts = owned("a BPF map", sys::bpf::create_percpu_array(1))?;
        let program = sys::bpf::load_kprobe_program(&count_program(counts.as_raw_fd()));
        let program = owned("a BPF program", program)?;
        let event =
            owned("a uprobe by perf_event_open", sys::perf::open_uprobe(pmu, &path, offset, pid, is_return))?;
        let attached = sys::perf::attach_program(event.as_raw_fd(), program.as_raw_fd());
        attached.map_err(|errno| refused("a BPF program at a uprobe", errno))?;
        Ok(Uprobe { counts, cpus: percpu::possible_cpus() as usize, _event: event })
    }

    /// Hits so far.
    pub fn hits(&self) -> Result<u64, TriggerError> {
        let mut values = vec![0u64; self.cpus];
        // SAFETY: the descriptor is of the array that `open` made, and `values` has an element for each CPU
        // that this machine may ever have.
        let read = unsafe { sys::bpf::read_percpu_array(self.counts.as_raw_fd(), 0, &mut values) };
        read.map_err(|errno| refused("to read a BPF map", errno))?;
        Ok(values.iter().sum())
    }
}

/// Adds one to the CPU's value of entry 0 and returns 0, which spares perf its record.
fn count_program(map: i32) -> Vec<u64> {
    let zero = instruction(0xb7, 0, 0, 0, 0); // r0 = 0
    let exit = instruction(0x95, 0, 0, 0, 0);
    [[zero].as_slice(), &add_one(map), &[zero, exit]].concat()
}

fn pmu() -> Result<u32, TriggerError> {
    let wrong = |why: String| TriggerError::NoPmu { path: TYPE, why };
    let text = std::fs::read_to_string(TYPE).map_err(|e| wrong(e.to_string()))?;
    text.trim().parse().map_err(|e: std::num::ParseIntError| wrong(e.to_string()))
}

fn owned(what: &'static str, made: Result<i32, Errno>) -> Result<OwnedFd, TriggerError> {
    let fd = made.map_err(|errno| refused(what, errno))?;
    // SAFETY: all callers pass what a call that makes a descriptor just gave, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn refused(what: &'static str, errno: Errno) -> TriggerError {
    let paranoid = std::fs::read_to_string(PARANOID).unwrap_or_default().trim().to_owned();
    TriggerError::Kernel { what, errno, paranoid }
}
