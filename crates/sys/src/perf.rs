//! Kernel uprobes, hardware breakpoints and samples through perf_event_open(2).
//!
//! For:     watchpoints, probes of scripts that samples run, and benches that put the kernel beside us.
//! State:   none; the caller owns the descriptor.
//! Context: control.
//! Keeps:   P1 the attribute has the size that it says (the kernel's fourth version).
//! Checked: tests below; `bench --vs kernel` compares the count with the calls made.

use crate::{Errno, check, nr, syscall};
use core::ffi::CStr;

/// `struct perf_event_attr` as far as `clockid`.
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
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
}

const ATTR_BYTES: u32 = 96;
const _: () = assert!(size_of::<Attr>() == ATTR_BYTES as usize);
/// The descriptor does not outlive an exec.
const FD_CLOEXEC: usize = 1 << 3;
const ANY_CPU: usize = usize::MAX;
const NO_GROUP: usize = usize::MAX;
/// ioctl: run this program at each hit.
const SET_BPF: usize = 0x4004_2408;

/// perf_event_attr.type of a hardware breakpoint.
const TYPE_BREAKPOINT: u32 = 5;
/// ioctls: let it count, let it not.
const ENABLE: usize = 0x2400;
const DISABLE: usize = 0x2401;
/// ioctl: samples go to this event's ring.
const SET_OUTPUT: usize = 0x2405;
/// Bits of the attribute.
const DISABLED: u64 = 1;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HV: u64 = 1 << 6;
const COMM: u64 = 1 << 9;
const TASK: u64 = 1 << 13;
const SAMPLE_ID_ALL: u64 = 1 << 18;
const EXCLUDE_CALLCHAIN_KERNEL: u64 = 1 << 21;
const USE_CLOCKID: u64 = 1 << 25;
/// What is in a sample: thread, time, CPU, callers, registers. In this order.
const SAMPLE: u64 = 1 << 1 | 1 << 2 | 1 << 7 | CALLERS | 1 << 12;
const CALLERS: u64 = 1 << 5;
const INHERIT_THREAD: u64 = 1 << 35;
const REMOVE_ON_EXEC: u64 = 1 << 36;
const SIGTRAP: u64 = 1 << 37;

/// What a hardware breakpoint waits for, in the kernel's bits.
pub mod access {
    /// Writes.
    pub const WRITE: u32 = 2;
    /// Reads and writes: x86 has no breakpoint for reads alone.
    pub const READ_WRITE: u32 = 3;
}

/// A hardware breakpoint that counts accesses from user mode.
#[derive(Clone, Copy, Debug)]
pub struct Breakpoint {
    /// Where; aligned to the length.
    pub addr: u64,
    /// How many bytes: 1, 2, 4 or 8.
    pub len: u32,
    /// See [`access`].
    pub access: u32,
    /// Counts nothing until [`enable`].
    pub starts_disabled: bool,
    /// What the thread starts has it too: threads, and processes if `is_for_children`.
    pub is_inherited: bool,
    /// With `is_inherited`: forked processes too.
    pub is_for_children: bool,
    /// The thread gets SIGTRAP with si_code 6 (TRAP_PERF) after each access, before its next instruction.
    pub raises_sigtrap: bool,
    /// A program that is attached with [`attach_program`] runs at each access, in the thread that made it and before
    /// its next instruction.
    pub runs_program: bool,
}

/// A descriptor of a hardware breakpoint of thread `tid` (0: the caller), on all CPUs.
///
/// # Errors
/// `ENOSPC` all debug registers are taken, `EACCES` or `EPERM` not allowed, `EINVAL` no such length or not
/// aligned, `ENODEV`, `ENOENT` or `EOPNOTSUPP` this machine has none, `ESRCH` no such thread.
pub fn open_breakpoint(b: &Breakpoint, tid: i32) -> Result<i32, Errno> {
    let bit = |is_set: bool, bits: u64| if is_set { bits } else { 0 };
    let attr = Attr {
        kind: TYPE_BREAKPOINT,
        size: ATTR_BYTES,
        sample_period: u64::from(b.raises_sigtrap || b.runs_program),
        flags: EXCLUDE_KERNEL
            | EXCLUDE_HV
            | REMOVE_ON_EXEC
            | bit(b.starts_disabled, DISABLED)
            | bit(b.is_inherited, INHERIT)
            | bit(b.is_inherited && !b.is_for_children, INHERIT_THREAD)
            | bit(b.raises_sigtrap, SIGTRAP),
        bp_type: b.access,
        config1: b.addr,
        config2: u64::from(b.len),
        ..Attr::default()
    };
    let args = [(&raw const attr) as usize, tid as usize, ANY_CPU, NO_GROUP, FD_CLOEXEC, 0];
    // SAFETY: the kernel reads `attr`, whose size is in it, during the call, and keeps nothing of it.
    check(unsafe { syscall(nr::PERF_EVENT_OPEN, args) }).map(|fd| fd as i32)
}

/// What samples are taken of.
#[derive(Clone, Copy, Debug)]
pub enum Occasion {
    /// Nanoseconds of a CPU, busy or not.
    Clock,
    /// An event of the kernel's, by its number (`PERF_COUNT_SW_*`).
    Software(u64),
    /// An event of the processor's, by its number (`PERF_COUNT_HW_*`).
    Hardware(u64),
    /// Accesses to bytes.
    Access {
        /// Where; aligned to the length.
        addr: u64,
        /// How many bytes.
        len: u32,
        /// See [`access`].
        access: u32,
    },
}

/// An event that leaves a sample after each `period` occasions. It starts disabled.
#[derive(Clone, Copy, Debug)]
pub struct Sampled {
    /// Of what.
    pub of: Occasion,
    /// How many occasions are between two samples.
    pub period: u64,
    /// Which registers of user mode are in a sample, by the kernel's bits.
    pub registers: u64,
    /// What the thread starts has it too: threads, and processes if `is_for_children`.
    pub is_inherited: bool,
    /// With `is_inherited`: forked processes too.
    pub is_for_children: bool,
    /// Only what happens in user mode.
    pub only_user: bool,
    /// There are no callers in a sample, no records of names and births, and another program has no such event.
    pub is_bare: bool,
}

/// A descriptor of samples of thread `tid` (-1: all of them) on one CPU. See [`Samples`](crate::Samples).
///
/// # Errors
/// `EACCES` or `EPERM` not allowed, `ENODEV` no such CPU, `ENOENT` or `EOPNOTSUPP` no such event here, `ENOSPC` all debug registers
/// are taken, `ESRCH` no such thread.
pub fn open_sampled(s: &Sampled, tid: i32, cpu: u32) -> Result<i32, Errno> {
    let bit = |is_set: bool, bits: u64| if is_set { bits } else { 0 };
    let (kind, config) = match s.of {
        Occasion::Clock => (1, 0),
        Occasion::Software(number) => (1, number),
        Occasion::Hardware(number) => (0, number),
        Occasion::Access { .. } => (TYPE_BREAKPOINT, 0),
    };
    let (addr, len, access) = match s.of {
        Occasion::Access { addr, len, access } => (addr, u64::from(len), access),
        _ => (0, 0, 0),
    };
    let attr = Attr {
        kind,
        size: ATTR_BYTES,
        config,
        sample_period: s.period,
        sample_type: if s.is_bare { SAMPLE & !CALLERS } else { SAMPLE },
        flags: DISABLED
            | EXCLUDE_HV
            | EXCLUDE_CALLCHAIN_KERNEL
            | USE_CLOCKID
            | if s.is_bare { REMOVE_ON_EXEC } else { COMM | TASK | SAMPLE_ID_ALL }
            | bit(s.is_inherited, INHERIT)
            | bit(s.is_inherited && !s.is_for_children, INHERIT_THREAD)
            | bit(s.only_user, EXCLUDE_KERNEL),
        wakeup_events: 1,
        bp_type: access,
        config1: addr,
        config2: len,
        sample_regs_user: s.registers,
        // CLOCK_MONOTONIC.
        clockid: 1,
        ..Attr::default()
    };
    let args = [(&raw const attr) as usize, tid as usize, cpu as usize, NO_GROUP, FD_CLOEXEC, 0];
    // SAFETY: the kernel reads `attr`, whose size is in it, during the call, and keeps nothing of it.
    check(unsafe { syscall(nr::PERF_EVENT_OPEN, args) }).map(|fd| fd as i32)
}

/// Has the samples of an event go to the ring of another one, which is of the same CPU.
///
/// # Errors
/// `EINVAL` it is not of the same CPU.
pub fn redirect(event: i32, to: i32) -> Result<(), Errno> {
    // SAFETY: this ioctl takes two descriptors and touches no memory of ours.
    check(unsafe { syscall(nr::IOCTL, [event as usize, SET_OUTPUT, to as usize, 0, 0, 0]) }).map(drop)
}

/// Lets an event and those inherited from it count.
pub fn enable(event: i32) -> Result<(), Errno> {
    // SAFETY: this ioctl takes a number and touches no memory of ours.
    check(unsafe { syscall(nr::IOCTL, [event as usize, ENABLE, 0, 0, 0, 0]) }).map(drop)
}

/// Lets an event and those inherited from it not count.
pub fn disable(event: i32) -> Result<(), Errno> {
    // SAFETY: as in `enable`.
    check(unsafe { syscall(nr::IOCTL, [event as usize, DISABLE, 0, 0, 0, 0]) }).map(drop)
}

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

/// Runs a program at each hit of the event, and of those that will be inherited from it.
///
/// # Errors
/// `EEXIST` it has one already, `EINVAL` the program is of another type than the event takes.
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
