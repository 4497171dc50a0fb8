//! Adds by a table, in x86-64 instructions.
//!
//! For:     `table`.
//! State:   none; the form of a sequence is that of the file above.
//! Context: hit, signal. No stack use, and as few registers as can be: what no handler of a site writes is not saved there.
//! Keeps:   X1 and X2 of the file above.
//! Checked: tests of `table`, tests/golden.rs.

use core::arch::asm;

/// The sequence around what commits, which may use `{copy}`, `{off}` and its own operands.
///
/// In: the copy, the site. Clobbers: {t}, {off}, flags. Where the kernel has interrupted it, it leaves through `{slow}` too:
/// a thread that is single-stepped is interrupted in every try. The copy's address waits for no load.
macro_rules! by_table {
    ($copy:expr, $site:expr, [$($commit:expr),*], $($operands:tt)*) => {
        asm!(
            "test {copy}, {copy}",
            "jz {slow}",
            "mov {off}, [{site} + {area}]",
            begin!(),
            crate::step_cpu!("{t:e}", "{off}"),
            "mov {off}, [{site} + {table}]",
            crate::step_entry!("{t}", "{off}", "{t}"),
            crate::step_copy!("{t:l}"),
            "cmp {t}, {copy}",
            "jne {slow}",
            $($commit,)*
            commit!(),
            "jmp {slow}",
            ".popsection",
            copy = in(reg) $copy,
            site = in(reg) $site,
            area = const AREA,
            table = const TABLE,
            t = out(reg) _,
            off = out(reg) _,
            slow = label { return false },
            $($operands)*
            options(nostack),
        )
    };
}

/// # Safety
/// As [`crate::table::try_add`].
#[inline(always)]
pub unsafe fn table_add<const AREA: usize, const TABLE: usize>(
    site: *const u8,
    copy: u64,
    cell: u64,
    n: u64,
) -> bool {
    // SAFETY: a copy that is none is no entry's, and without one no area is touched; else area and table are sound, and
    // the table has an entry for any 16 bits (contract). The kernel sends the thread to the abort handler if it is preempted,
    // migrated or signalled before the add, so no other thread's add to this copy is lost.
    unsafe {
        by_table!(
            copy,
            site,
            ["add qword ptr [{copy} + {cell}], {n}"],
            cell = in(reg) cell,
            n = in(reg) n,
        );
    }
    true
}

/// # Safety
/// As [`crate::table::try_count`].
#[inline(always)]
pub unsafe fn table_count<const AREA: usize, const TABLE: usize, const CELL: usize>(
    site: *const u8,
    copy: u64,
    consumer: *const u8,
) -> bool {
    // SAFETY: as in `table_add`, and the cell's number is readable.
    unsafe {
        by_table!(
            copy,
            site,
            ["mov {off:e}, [{consumer} + {at}]", crate::step_inc!("{copy}", "{off}")],
            consumer = in(reg) consumer,
            at = const CELL,
        );
    }
    true
}

// In: the copy, the site, how far behind each cell. `at`: before the first consumer; then the one that the adds have come to; at the end
// the first that is not done. `count`: those that are left. Clobbers: {t}, {off}, flags.
//
// One section for all adds, so that the CPU is asked for once. It commits with each of them, and whoever was interrupted must know whether the
// last add was done. The carry tells: the step to the next consumer sets it, and the add to its cell clears it, since no cell is
// that full. Nothing in between writes it, and a carry from before the loop stands beside a step that was not made.
/// # Safety
/// As [`crate::table::try_count_run`].
#[inline(always)]
pub unsafe fn table_count_run<
    const AREA: usize,
    const TABLE: usize,
    const CELL: usize,
    const STRIDE: usize,
>(
    site: *const u8,
    copy: u64,
    first: *const u8,
    count: u64,
    offset: u64,
) -> u64 {
    let before = first.wrapping_sub(STRIDE);
    let (mut at, mut left) = (before, count);
    // SAFETY: as in `table_add`, for the cells that the numbers of `count` consumers lead to.
    unsafe {
        asm!(
            "test {copy}, {copy}",
            "jz 7f",
            "mov {off}, [{site} + {area}]",
            begin!(),
            crate::step_cpu!("{t:e}", "{off}"),
            "mov {off}, [{site} + {table}]",
            crate::step_entry!("{t}", "{off}", "{t}"),
            crate::step_copy!("{t:l}"),
            "cmp {t}, {copy}",
            "jne 7f",
            "lea {t}, [{t} + {offset}]",
            "6:",
            "sub {at}, -{stride}",
            "mov {off:e}, [{at} + {cell}]",
            "add qword ptr [{t} + {off}], 1",
            "dec {left}",
            "jnz 6b",
            commit!(),
            "jc 6f",
            "sub {at}, -{stride}",
            "6:",
            "jmp 7f",
            ".popsection",
            "7:",
            copy = in(reg) copy,
            site = in(reg) site,
            offset = in(reg) offset,
            at = inout(reg) at,
            left = inout(reg) left,
            t = out(reg) _,
            off = out(reg) _,
            area = const AREA,
            table = const TABLE,
            cell = const CELL,
            stride = const STRIDE,
            options(nostack),
        );
    }
    // The last add and the count of it are two instructions: 0 is all of them.
    let done = at.addr().wrapping_sub(first.addr()).cast_signed().max(0) as usize / STRIDE;
    if left == 0 { 0 } else { count - done as u64 }
}

/// The CPU that the thread was on a moment ago, below 4096.
///
/// `rdpid` would be faster, but not every processor that Linux runs on has it; `rdtscp` traps where a program had the time
/// stamp counter taken away.
#[inline(always)]
pub fn cpu_by_segment() -> u64 {
    node_and_cpu() & 0xfff
}

/// The node above twelve bits of the CPU.
#[inline(always)]
pub fn node_and_cpu() -> u64 {
    /// Selector of the segment whose limit is the node and the CPU: GDT_ENTRY_CPUNODE, privilege 3.
    const CPU_SEGMENT: u64 = 15 << 3 | 3;
    let mut number = CPU_SEGMENT;
    // In: the selector. Out: the limit, or the selector if there is no such segment. Clobbers: flags.
    // SAFETY: lsl reads a descriptor and touches no memory of ours.
    unsafe {
        asm!("lsl {n:e}, {n:e}", n = inout(reg) number, options(nomem, nostack));
    }
    number
}
