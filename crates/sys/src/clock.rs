//! Clocks that need the kernel.
//!
//! For:     benches: processor time is steadier than wall time on a shared machine.
//! State:   none.
//! Context: signal, target, control. Cost: one system call.
//! Keeps:   C1 a thread's processor time never goes back.
//! Checked: tests below.

use crate::{check, nr, syscall};

/// The clock that stands in suspend.
pub const MONOTONIC: usize = 1;
/// The one that goes on.
pub const BOOTTIME: usize = 7;
/// Atomic time.
pub const TAI: usize = 11;
const THREAD_CPUTIME_ID: usize = 3;

/// Nanoseconds of processor time that the calling thread has used.
pub fn thread_cpu_ns() -> u64 {
    read(THREAD_CPUTIME_ID)
}

/// Nanoseconds of the clock that a BPF program reads with `bpf_ktime_get_ns`.
#[inline(always)]
pub fn monotonic_ns() -> u64 {
    read(MONOTONIC)
}

/// Nanoseconds of one of the clocks above; 0 where there is no such clock.
#[inline(always)]
pub fn clock_ns(clock: usize) -> u64 {
    read(clock)
}

#[inline(always)]
fn read(clock: usize) -> u64 {
    let mut time = [0u64; 2];
    // SAFETY: the kernel writes one `timespec`, two words, to `time`, which outlives the call.
    let got = check(unsafe { syscall(nr::CLOCK_GETTIME, [clock, time.as_mut_ptr() as usize, 0, 0, 0, 0]) });
    // Linux has had both since 2.6.12.
    got.map_or(0, |_| time[0] * 1_000_000_000 + time[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_processor_time() {
        let before = thread_cpu_ns();
        while thread_cpu_ns() - before < 1_000_000 {
            core::hint::spin_loop();
        }
        assert!(before > 0);
    }
}
