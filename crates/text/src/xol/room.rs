//! Where in this process there is room near an address.
//!
//! For:     areas.
//! State:   none.
//! Context: target. Reads /proc.
//! Keeps:   nothing: a place that was free may be taken a moment later.
//! Checked: `tests::an_area_lies_near_and_is_never_writable_and_executable`.

use std::ops::Range;

/// The lowest address that is asked for.
const LOWEST: u64 = 0x10_0000;
/// Stays free on both sides.
const GUARD: u64 = 0x1_0000;

/// Starts of free ranges of `len` bytes, the nearest to `near` first.
pub(super) fn rooms(near: u64, len: u64) -> Vec<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut last = LOWEST;
    let mut found = Vec::new();
    for range in maps.lines().filter_map(range) {
        let gap = last + GUARD..range.start.saturating_sub(GUARD);
        last = last.max(range.end);
        if gap.start + len > gap.end {
            continue;
        }
        let at = near.clamp(gap.start, gap.end - len) & !0xfff;
        found.push(at.max(gap.start.next_multiple_of(0x1000)));
    }
    found.sort_by_key(|at| at.abs_diff(near));
    found
}

fn range(line: &str) -> Option<Range<u64>> {
    let (start, rest) = line.split_once('-')?;
    let end = rest.split_whitespace().next()?;
    Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
}
