//! CPU numbers.
//!
//! For:     choosing a copy where no restartable sequence chooses it.
//! State:   none here.
//! Context: `current` in a hit or signal; `possible` in set-up only (it reads a file).
//! Keeps:   C1 the number may be out of date when it is used, so an update by it must be atomic.
//! Checked: tests below.

use crate::arch;

/// The CPU that the thread was on a moment ago.
pub fn current() -> u32 {
    arch::cpu()
}

/// The same by one instruction that every processor has and that traps nowhere, for code that keeps no state.
pub fn by_segment() -> u32 {
    arch::cpu_by_segment() as u32
}

/// The NUMA node that the thread was on a moment ago, in the same way.
pub fn node_by_segment() -> u32 {
    (arch::node_and_cpu() >> 12) as u32
}

/// One more than the highest CPU number that this system can ever have.
///
/// # Context
/// Set-up. Reads `/sys/devices/system/cpu/possible`; without it, 8192: as many as Linux can be built for.
#[cfg(feature = "std")]
pub fn possible() -> u32 {
    use std::sync::OnceLock;
    static COUNT: OnceLock<u32> = OnceLock::new();
    *COUNT.get_or_init(|| {
        // Miri has no such file, and one copy would hide mistakes in addressing.
        if cfg!(miri) {
            return 2;
        }
        std::fs::read_to_string("/sys/devices/system/cpu/possible")
            .ok()
            .and_then(|list| highest(&list))
            .map_or(8192, |last| last + 1)
    })
}

/// The highest number in a list like `0-3,8-11`.
#[cfg(feature = "std")]
fn highest(list: &str) -> Option<u32> {
    list.trim().rsplit([',', '-']).next()?.parse().ok()
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;

    #[test]
    fn the_highest_cpu_is_the_last_number_of_the_list() {
        assert_eq!(highest("0\n"), Some(0));
        assert_eq!(highest("0-7\n"), Some(7));
        assert_eq!(highest("0-3,8-11\n"), Some(11));
        assert_eq!(highest(""), None);
    }

    #[test]
    fn the_current_cpu_is_a_possible_one() {
        assert!(current() < possible());
    }
}
