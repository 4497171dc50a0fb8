//! How fast the time stamp counter runs.
//!
//! For:     durations in nanoseconds from two readings of the counter in the target.
//! State:   none.
//! Context: control; takes `BASE`.
//! Keeps:   C0 nobody who would die of reading it is made to.
//!          C1 the figure is within a part in ten thousand of CLOCK_MONOTONIC's.
//! Checked: tests below; testkit `exact` (C0).

use crate::arch::ticks;
use crate::facts::error::Broken;
use crate::find::counter;
use crate::find::memory::Memory;
use crate::hold::remote::Remote;
use std::time::{Duration, Instant};
use sys::{Errno, nr};

/// How long the counter is watched. A reading is off by some 50 ns at either end: 10^-5 of this.
const BASE: Duration = Duration::from_millis(10);

/// Nanoseconds for each tick, times 2^32.
pub(crate) fn ns_per_tick() -> u64 {
    let (from, began) = (ticks(), Instant::now());
    std::thread::sleep(BASE);
    let (to, took) = (ticks(), began.elapsed());
    ((took.as_nanos() << 32) / u128::from(to.wrapping_sub(from).max(1))) as u64
}

/// Whether reading the counter raises a signal in the thread that makes calls for us: it asked for that by prctl, or
/// inherited it. The kernel's answer goes into the word at `scratch`, which is 0 before and after.
pub(crate) fn is_trapped(remote: &mut Remote<'_>, memory: &Memory, scratch: u64) -> Result<bool, Broken> {
    const PR_GET_TSC: u64 = 25;
    const PR_TSC_SIGSEGV: u32 = 2;
    match remote.call("prctl", nr::PRCTL, [PR_GET_TSC, scratch, 0, 0, 0, 0]) {
        // Before Linux 6.12 nobody can ask for that on AArch64.
        Err(Broken::Remote { errno: Errno::EINVAL, .. }) if cfg!(target_arch = "aarch64") => {
            return Ok(false);
        }
        asked => drop(asked?),
    }
    let mut answer = [0; 4];
    memory.read(scratch, &mut answer)?;
    memory.write(scratch, &[0; 4])?;
    Ok(u32::from_le_bytes(answer) == PR_TSC_SIGSEGV)
}

/// True if programs in this process may read the counter as a clock: the kernel's clocks go by it, the process has ours, and no module
/// may take it away. Whether its threads get a signal there is asked of itself ([`is_trapped`]).
pub(crate) fn is_clock_of(pid: i32) -> Result<bool, Broken> {
    let namespace = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/time")).ok();
    let is_ours = namespace(&pid.to_string()) == namespace("self");
    Ok(is_ours && map::is_clock_by_counter() && counter::may_be_taken_away(pid)?.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_measurements_agree() {
        // The least of several differences: another task may run between the two readings of one.
        let differences = (0..5).map(|_| ns_per_tick().abs_diff(ns_per_tick()) as f64 / ns_per_tick() as f64);
        let least = differences.fold(f64::MAX, f64::min);
        assert!(least < 1e-3, "{least}");
    }
}
