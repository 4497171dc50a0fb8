//! Size classes and watermarks.
//!
//! For:     `SizedCaches` (classes) and every cache (watermarks).
//! State:   tables.
//! Context: anywhere.
//! Keeps:   S1 the class of a size is the smallest that holds it.
//! Checked: tests below, against the kernel's published table.
//! Source:  kernel `kernel/bpf/memalloc.c`, which counts its 8-byte header as part of the unit, as this does.

/// Bytes in front of each object: its link while it is free, its mark while it is live.
pub const HEADER: u32 = 8;

/// The largest unit of a size class, header included.
pub const MAX_UNIT: u32 = 4096;

/// The units of the eleven classes, header included, in the kernel's order.
pub const CLASSES: [u32; 11] = [96, 192, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];

/// By (unit - 1) / 8: the index of the class for units up to 192.
const SMALL: [u8; 24] = [2, 2, 3, 3, 4, 4, 4, 4, 0, 0, 0, 0, 5, 5, 5, 5, 1, 1, 1, 1, 1, 1, 1, 1];

/// The index in [`CLASSES`] for objects of `size` bytes; `None` for 0 and for more than 4088.
pub const fn class_of(size: usize) -> Option<usize> {
    if size == 0 || size > (MAX_UNIT - HEADER) as usize {
        return None;
    }
    let unit = size + HEADER as usize;
    if unit <= 192 {
        return Some(SMALL[(unit - 1) / 8] as usize);
    }
    // 193..=256 has its top bit of (unit - 1) at 7 and is class 6.
    Some((unit - 1).ilog2() as usize - 1)
}

/// How many free objects a CPU keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watermarks {
    /// Below this the worker adds.
    pub low: u32,
    /// Above this the worker takes away.
    pub high: u32,
    /// How many move at once.
    pub batch: u32,
}

impl Watermarks {
    /// The kernel's watermarks for a unit of so many bytes, header included.
    pub const fn of_unit(unit: u32) -> Watermarks {
        // Small units share one line of the table.
        let unit = if unit < 256 { 256 } else { unit };
        let low = if 8192 / unit > 1 { 8192 / unit } else { 1 };
        let high = if 24576 / unit > 3 { 24576 / unit } else { 3 };
        let batch = (high - low) / 4 * 3;
        Watermarks { low, high, batch: if batch > 1 { batch } else { 1 } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watermarks_are_the_published_ones() {
        let table = [
            (16, 32, 96, 48),
            (256, 32, 96, 48),
            (512, 16, 48, 24),
            (1024, 8, 24, 12),
            (2048, 4, 12, 6),
            (4096, 2, 6, 3),
            (8192, 1, 3, 1),
            (65536, 1, 3, 1),
        ];
        for (unit, low, high, batch) in table {
            assert_eq!(Watermarks::of_unit(unit), Watermarks { low, high, batch }, "unit {unit}");
        }
    }

    #[test]
    fn the_class_of_a_size_is_the_smallest_that_holds_it() {
        for size in 1..=4088usize {
            let class = CLASSES[class_of(size).unwrap()];
            assert!(class as usize >= size + 8, "size {size} in class {class}");
            let smaller = CLASSES.iter().filter(|c| **c < class).max().copied().unwrap_or(0);
            assert!((smaller as usize) < size + 8, "size {size} also fits {smaller}, not only {class}");
        }
        assert_eq!((class_of(0), class_of(4089)), (None, None));
    }
}
