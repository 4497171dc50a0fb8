//! Free address space near a module.
//!
//! For:     placing a region where jumps and distances (2 GiB; on AArch64 128 MiB) reach its sites and what they refer to.
//! State:   none; looks at a snapshot of the mappings.
//! Context: control.
//! Keeps:   R1 every byte of the answer is within that of every byte of `reach`.
//!          R2 room for the heap and for growing stacks is left alone.
//! Checked: tests below; the kernel refuses an address that was taken meanwhile (MAP_FIXED_NOREPLACE).

use image::Mapping;
use std::ops::Range;
use std::path::Path;

/// Mappings begin and end at multiples of it.
pub const PAGE: u64 = 4096;
/// Lowest address that we use; the kernel's own limit is 64 KiB by default.
const LOWEST: u64 = 0x1_0000;
/// What a 32-bit distance spans, or on AArch64 a branch, less a margin for the code itself.
const SPAN: u64 = if cfg!(target_arch = "aarch64") { (128 << 20) - (4 << 20) } else { (1 << 31) - (1 << 20) };
/// Addresses of programs end here.
const USER_END: u64 = if cfg!(target_arch = "aarch64") { 1 << 48 } else { 1 << 47 };
/// Left free above a heap.
const HEAP_ROOM: u64 = 1 << 30;
/// Left free below a stack.
const STACK_ROOM: u64 = 1 << 30;
/// Distances kept from neighbours, the first that fits.
const GAPS: [u64; 3] = [16 << 20, 64 << 10, 0];

/// The free ranges in which `len` bytes are within reach, ascending.
pub fn within_reach(mappings: &[Mapping], reach: Range<u64>, len: u64) -> Vec<Range<u64>> {
    let lowest = reach.end.saturating_sub(SPAN).max(LOWEST);
    let highest = reach.start.saturating_add(SPAN).saturating_sub(len);
    let clipped = free(mappings).map(|f| f.start.max(lowest)..f.end.min(highest.saturating_add(len)));
    clipped.filter(|f| f.start.saturating_add(len) <= f.end).collect()
}

/// Addresses for `len` bytes, the best first.
pub fn rooms(mappings: &[Mapping], reach: Range<u64>, len: u64) -> Vec<u64> {
    let lowest = reach.end.saturating_sub(SPAN).max(LOWEST);
    let highest = reach.start.saturating_add(SPAN).saturating_sub(len);
    let mut found: Vec<(u64, u64)> = Vec::new();
    for Range { start, end } in free(mappings) {
        for gap in GAPS {
            let low = (start + gap).max(lowest).next_multiple_of(PAGE);
            let high = (end.saturating_sub(gap + len)).min(highest) / PAGE * PAGE;
            if low <= high && low < end {
                // As close to the module as the gap allows, from the side where it lies.
                let at = if end <= reach.start { high } else { low };
                found.push((at.abs_diff(reach.start), at));
                break;
            }
        }
    }
    found.sort_unstable();
    found.into_iter().map(|(_, at)| at).collect()
}

/// Free address space, but for what others will grow into; a range may be empty, its end before its start.
fn free(mappings: &[Mapping]) -> impl Iterator<Item = Range<u64>> {
    gaps(mappings).map(|(below, above)| {
        let start = below.map_or(LOWEST, |m| m.range.end.0 + room_above(m, mappings));
        let end = above.map_or(USER_END, |m| m.range.start.0.saturating_sub(room_below(m)));
        start..end
    })
}

/// Neighbouring mappings, with the space below the first and above the last.
fn gaps(mappings: &[Mapping]) -> impl Iterator<Item = (Option<&Mapping>, Option<&Mapping>)> {
    let user = || mappings.iter().filter(|m| m.range.start.0 < USER_END);
    let below = std::iter::once(None).chain(user().map(Some));
    let above = user().map(Some).chain(std::iter::once(None));
    below.zip(above)
}

fn room_above(mapping: &Mapping, all: &[Mapping]) -> u64 {
    // The heap begins behind the program's data, also before it has a mapping of its own.
    let is_heap = mapping.path == Path::new("[heap]");
    let program = all.iter().find(|m| m.file.is_some());
    let is_data = mapping.permissions.is_writable && program.is_some_and(|p| p.path == mapping.path);
    if is_heap || is_data { HEAP_ROOM } else { 0 }
}

fn room_below(mapping: &Mapping) -> u64 {
    if mapping.path == Path::new("[stack]") { STACK_ROOM } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
555555554000-555555556000 r-xp 00000000 08:01 10 /bin/prog
555555556000-555555558000 rw-p 00002000 08:01 10 /bin/prog
555555558000-555555579000 rw-p 00000000 00:00 0 [heap]
7ffff7c00000-7ffff7e00000 r-xp 00000000 08:01 11 /lib/libc.so.6
7ffff7fc0000-7ffff7fc4000 rw-p 00000000 00:00 0 
7ffffffde000-7ffffffff000 rw-p 00000000 00:00 0 [stack]
";

    fn first(reach: Range<u64>, len: u64) -> u64 {
        let maps = image::maps::parse_maps(MAPS.as_bytes()).unwrap();
        let at = rooms(&maps, reach.clone(), len)[0];
        assert!(maps.iter().all(|m| at + len <= m.range.start.0 || at >= m.range.end.0), "{at:#x}");
        assert!(reach.end.abs_diff(at) < 1 << 31 && (at + len).abs_diff(reach.start) < 1 << 31);
        at
    }

    #[test]
    fn room_for_a_program_is_below_it_and_not_in_the_way_of_the_heap() {
        assert!(first(0x5555_5555_4000..0x5555_5555_6000, 0x10_0000) < 0x5555_5555_4000);
    }

    #[test]
    fn room_for_a_library_is_close_and_not_in_the_way_of_the_stack() {
        let at = first(0x7fff_f7c0_0000..0x7fff_f7e0_0000, 0x20_0000);
        assert!(at < 0x7fff_f7c0_0000, "{at:#x}");
    }

    #[test]
    fn a_program_at_fixed_low_addresses_gets_room_too() {
        let maps = image::maps::parse_maps(
            b"400000-500000 r-xp 0 08:01 9 /bin/fixed\n500000-600000 rw-p 0 08:01 9 /bin/fixed\n",
        );
        let at = rooms(&maps.unwrap(), 0x40_0000..0x50_0000, 0x100_0000)[0];
        assert!(at >= 0x60_0000 + HEAP_ROOM, "{at:#x}");
    }
}
