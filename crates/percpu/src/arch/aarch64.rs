//! Adds by a table, and changes of a CPU's own words, in A64 instructions.
//!
//! For:     `table`, `rseq`.
//! State:   none.
//! Context: hit, signal. No stack use.
//! Keeps:   X1 a sequence has one committing instruction, its last one.
//!          X2 a sequence that did not commit has changed nothing that counts but `rseq_cs`.
//!          X3 descriptors lie in data with relative relocations, so a static-pie blob can load them.
//! Checked: the machine's test (docs/aarch64.md): exact sums under migration.
//! Source:  rseq(2); the area's layout as in the x86-64 file.

use core::arch::asm;

/// The sequence around what commits, which may use `{copy}`, `{t}`, `{off}` and its own operands.
///
/// In: the copy, the site. Clobbers: {t}, {off}, flags. Where the kernel has interrupted it, it leaves through `{slow}` too:
/// a thread that is single-stepped is interrupted in every try. The numbers that are no copy are 0 and 1.
macro_rules! by_table {
    ($copy:expr, $site:expr, [$($commit:expr),*], $($operands:tt)*) => {
        asm!(
            "cmp {copy}, #1",
            "b.ls {slow}",
            "ldr {off}, [{site}, #{area}]",
            "mrs {t}, tpidr_el0",
            "add {off}, {off}, {t}",
            ".pushsection .data.rel.ro.nanoprobe_rseq, \"aw\", @progbits",
            ".balign 32",
            "2:",
            ".long 0, 0",
            ".quad 3f, 4f - 3f, 5f",
            ".popsection",
            "adrp {t}, 2b",
            "add {t}, {t}, :lo12:2b",
            "str {t}, [{off}, #8]",
            "3:",
            "ldrh {t:w}, [{off}, #4]",
            "ldr {off}, [{site}, #{table}]",
            "ldr {t}, [{off}, {t}, lsl #3]",
            "and {t}, {t}, #~0xff",
            "cmp {t}, {copy}",
            "b.ne {slow}",
            $($commit,)*
            "4:",
            ".pushsection .text.unlikely.nanoprobe_rseq, \"ax\", @progbits",
            ".inst 0xd428bc00",
            "5:",
            "b {slow}",
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
    // migrated or signalled before the store, so no other thread's add to this copy is lost.
    unsafe {
        by_table!(
            copy,
            site,
            ["ldr {t}, [{copy}, {cell}]", "add {t}, {t}, {n}", "str {t}, [{copy}, {cell}]"],
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
            [
                "ldr {off:w}, [{consumer}, #{at}]",
                "ldr {t}, [{copy}, {off}]",
                "add {t}, {t}, #1",
                "str {t}, [{copy}, {off}]"
            ],
            consumer = in(reg) consumer,
            at = const CELL,
        );
    }
    true
}

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
    // A store and what tells that it was done are two instructions here: each add has a section of its own.
    for done in 0..count {
        let number = first.wrapping_add(done as usize * STRIDE + CELL).cast::<u32>();
        // SAFETY: the numbers are readable (contract).
        let cell = u64::from(unsafe { number.read() });
        // SAFETY: the contract of this function.
        if !unsafe { table_add::<AREA, TABLE>(site, copy, cell + offset, 1) } {
            return count - done;
        }
    }
    0
}

/// The sequence around what commits on the CPU that the caller chose its word by; it may use `{t}`, `{area}` and its own operands.
///
/// In: the area's offset, the CPU, the word. Clobbers: {t}, {area}, flags. Not restarted: an abort is a refusal, because the caller
/// must choose its word again.
macro_rules! on_cpu {
    ($off:expr, $cpu:expr, $cell:expr, [$($commit:expr),*], $($operands:tt)*) => {
        asm!(
            "mrs {t}, tpidr_el0",
            "add {area}, {t}, {off}",
            ".pushsection .data.rel.ro.nanoprobe_rseq, \"aw\", @progbits",
            ".balign 32",
            "2:",
            ".long 0, 0",
            ".quad 3f, 4f - 3f, 5f",
            ".popsection",
            "adrp {t}, 2b",
            "add {t}, {t}, :lo12:2b",
            "str {t}, [{area}, #8]",
            "3:",
            "ldr {t:w}, [{area}, #4]",
            "cmp {t:w}, {cpu:w}",
            "b.ne {refused}",
            $($commit,)*
            "4:",
            ".pushsection .text.unlikely.nanoprobe_rseq, \"ax\", @progbits",
            ".inst 0xd428bc00",
            "5:",
            "b {refused}",
            ".popsection",
            off = in(reg) $off,
            cpu = in(reg) $cpu,
            cell = in(reg) $cell,
            t = out(reg) _,
            area = out(reg) _,
            refused = label { return false },
            $($operands)*
            options(nostack),
        )
    };
}

/// What was stored in the word before is seen with all that led to it, as on x86-64.
///
/// # Safety
/// As [`crate::store_if`].
#[inline(always)]
pub unsafe fn rseq_store_if(off: isize, cpu: u32, cell: *mut u64, expect: u64, new: u64) -> bool {
    // SAFETY: the area is writable and so is `cell` (contract of this function). Only the last instruction writes to it.
    unsafe {
        on_cpu!(
            off,
            cpu,
            cell,
            ["ldar {t}, [{cell}]", "cmp {t}, {expect}", "b.ne {refused}", "str {new}, [{cell}]"],
            expect = in(reg) expect,
            new = in(reg) new,
        );
    }
    true
}

/// # Safety
/// As [`crate::add_if`].
#[inline(always)]
pub unsafe fn rseq_add_if(off: isize, cpu: u32, cell: *mut u64, n: u64) -> bool {
    // SAFETY: as in `rseq_store_if`.
    unsafe {
        on_cpu!(
            off,
            cpu,
            cell,
            ["ldr {t}, [{cell}]", "add {t}, {t}, {n}", "str {t}, [{cell}]"],
            n = in(reg) n,
        );
    }
    true
}

/// # Safety
/// As [`crate::own_cpu`].
#[inline(always)]
pub unsafe fn rseq_cpu(off: isize) -> u32 {
    let cpu: u64;
    // SAFETY: the area is readable (contract of this function).
    unsafe {
        asm!(
            "mrs {t}, tpidr_el0",
            "add {t}, {t}, {off}",
            "ldr {t:w}, [{t}, #4]",
            t = out(reg) cpu,
            off = in(reg) off,
            options(nostack, readonly, preserves_flags),
        );
    }
    cpu as u32
}
