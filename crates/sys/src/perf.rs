//! Kernel uprobes through perf_event_open(2).
//!
//! For:     benches that put the kernel beside us.
//! State:   none; the caller owns the descriptor.
//! Context: control.
//! Keeps:   P1 the attribute has the size that it says (the kernel's second version).
//! Checked: tests below; `bench --vs kernel` compares the count with the calls made.

use crate::{Errno, check, nr, syscall};
use core::ffi::CStr;

/// `struct perf_event_attr` as far as `config2`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
}

const ATTR_BYTES: u32 = 72;
const _: () = assert!(size_of::<Attr>() == ATTR_BYTES as usize);
/// The descriptor does not outlive an exec.
const FD_CLOEXEC: usize = 1 << 3;
const ANY_CPU: usize = usize::MAX;
const NO_GROUP: usize = usize::MAX;
/// ioctl: run this program at each hit.
const SET_BPF: usize = 0x4004_2408;

/// A descriptor of a uprobe at a place in a file, in the process of thread `pid`.
///
/// `pmu`: the number in /sys/bus/event_source/devices/uprobe/type. The event itself counts the hits of this
/// one thread; a program attached to it runs at the hits of all threads that share its memory. Threads cannot
/// inherit it: the kernel (6.18) then reads `path` in the memory of who clones, and clone fails with `EFAULT`.
///
/// # Errors
/// `EACCES` or `EPERM` not allowed (it takes CAP_PERFMON), `EINVAL` no instruction of the file begins there.
pub fn open_uprobe(pmu: u32, path: &CStr, offset: u64, pid: i32, is_return: bool) -> Result<i32, Errno> {
    let attr = Attr {
        kind: pmu,
        size: ATTR_BYTES,
        // Bit 0 of /sys/bus/event_source/devices/uprobe/format/retprobe.
        config: u64::from(is_return),
        config1: path.as_ptr() as u64,
        config2: offset,
        ..Attr::default()
    };
    let args = [(&raw const attr) as usize, pid as usize, ANY_CPU, NO_GROUP, FD_CLOEXEC, 0];
    // SAFETY: the kernel reads `attr`, whose size is in it, and the string at `path`; both are borrowed for
    // the call, and it keeps neither.
    check(unsafe { syscall(nr::PERF_EVENT_OPEN, args) }).map(|fd| fd as i32)
}

/// Runs a program of type kprobe at each hit of the event.
///
/// # Errors
/// `EEXIST` it has one already, `EINVAL` the program is of another type.
pub fn attach_program(event: i32, program: i32) -> Result<(), Errno> {
    // SAFETY: this ioctl takes two descriptors and touches no memory of ours.
    check(unsafe { syscall(nr::IOCTL, [event as usize, SET_BPF, program as usize, 0, 0, 0]) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_that_no_unit_has_is_refused() {
        let got = open_uprobe(u32::MAX, c"/proc/self/exe", 0, 0, false);
        assert!(matches!(got, Err(Errno::ENOENT | Errno::EINVAL | Errno::EACCES | Errno::EPERM)), "{got:?}");
    }
}
