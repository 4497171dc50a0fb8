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
/// Threads and processes that the traced one starts later are traced too.
const INHERIT: u64 = 1 << 1;
/// The descriptor does not outlive an exec.
const FD_CLOEXEC: usize = 1 << 3;
const ANY_CPU: usize = usize::MAX;
const NO_GROUP: usize = usize::MAX;

/// A descriptor that counts how often `pid`, and what it starts from now on, runs the instruction at a
/// place in a file.
///
/// `pmu`: the number in /sys/bus/event_source/devices/uprobe/type. Reading eight bytes gives the count.
///
/// # Errors
/// `EACCES` or `EPERM` not allowed (it takes CAP_PERFMON), `EINVAL` no instruction of the file begins there.
pub fn open_uprobe(pmu: u32, path: &CStr, offset: u64, pid: i32) -> Result<i32, Errno> {
    let attr = Attr {
        kind: pmu,
        size: ATTR_BYTES,
        flags: INHERIT,
        config1: path.as_ptr() as u64,
        config2: offset,
        ..Attr::default()
    };
    let args = [(&raw const attr) as usize, pid as usize, ANY_CPU, NO_GROUP, FD_CLOEXEC, 0];
    // SAFETY: the kernel reads `attr`, whose size is in it, and the string at `path`; both are borrowed for
    // the call, and it keeps neither.
    check(unsafe { syscall(nr::PERF_EVENT_OPEN, args) }).map(|fd| fd as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_that_no_unit_has_is_refused() {
        let got = open_uprobe(u32::MAX, c"/proc/self/exe", 0, 0);
        assert!(matches!(got, Err(Errno::ENOENT | Errno::EINVAL | Errno::EACCES | Errno::EPERM)), "{got:?}");
    }
}
