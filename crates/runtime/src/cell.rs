//! Adding to a cell of the copy of the CPU that we run on.
//!
//! For:     handlers and the reader's counts.
//! State:   cells in the arena; the table page leads to the copy.
//! Context: hit, signal included: a signal handler that interrupts an add makes it a locked one (rseq) or finds it
//!          done or not begun (locked).
//! Keeps:   C1 every add is counted exactly once, on whichever CPU.
//!          C2 plain and locked adds never meet in one copy.
//! Checked: testkit `counting` with `hist` (exact over 8 threads), `bench trig-uprobe-nop` (hits = calls).
//! Source:  rseq(2).

use core::sync::atomic::{AtomicU64, Ordering};
use wire::{ConsumerDesc, SiteDesc, table};

/// A way to add to a cell.
pub trait Adder {
    /// Adds `n` to the cell at byte offset `cell` of this CPU's copy.
    ///
    /// # Safety
    /// `site.table` must be CPU 0's entry of a live table, whose entries are 0 or addresses of copies that hold `cell`;
    /// `copy` must be what the running thread's trampoline passed to the handler, and `site.rseq_offset` where that
    /// thread's rseq area lies (for [`Rseq`]).
    unsafe fn add(copy: u64, site: &SiteDesc, cell: u32, n: u64);

    /// Adds one to the consumer's cell.
    ///
    /// # Safety
    /// As for [`add`](Self::add), with the consumer's cell.
    unsafe fn count(copy: u64, site: &SiteDesc, consumer: &ConsumerDesc);

    /// The thread pointer leads to a block of the thread's.
    fn is_known(copy: u64, site: &SiteDesc) -> bool;
}

/// For threads that may have an rseq area; those that have none take the shared copy.
#[derive(Debug)]
pub struct Rseq;

/// For processes without rseq.
#[derive(Debug)]
pub struct Locked;

/// The section, around what commits, which may use `{copy}`, `{o}` and its own operands; `{slow}` for who has no copy.
///
/// In: the copy that the trampoline found, the site. Clobbers: {c}, {o}, flags. Stack: none.
/// The steps: name the section; read the CPU; see that the copy is still that of this CPU, and that no fork has wiped the
/// table; commit. The copy's address waits for no load, and few registers are used: what no handler of a site
/// writes is not saved there.
macro_rules! section {
    ($copy:expr, $site:expr, [$($commit:literal),*], $slow:block, $($operands:tt)*) => {
        core::arch::asm!(
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "77:",
            ".long 0, 0",
            ".quad 3f, 4f - 3f, 6f",
            ".popsection",
            // Not to the start: a thread that is single-stepped would be interrupted again, for ever.
            ".pushsection .text.rseq_abort, \"ax\"",
            ".long 0x53053053",
            "6:",
            "jmp {slow}",
            ".popsection",
            "test {copy}, {copy}",
            "jz {slow}",
            "mov {o}, [{site} + {rseq_offset}]",
            "lea {c}, [rip + 77b]",
            "mov fs:[{o} + 8], {c}",
            "3:",
            "movzx {c:e}, word ptr fs:[{o} + 4]",
            "mov {o}, [{site} + {table}]",
            "mov {c}, [{o} + {c}*8]",
            "mov {c:l}, 0", // the rank of readers, which may have changed since
            "cmp {c}, {copy}",
            "jne {slow}",
            $($commit,)*
            "4:",
            copy = in(reg) $copy,
            site = in(reg) $site,
            rseq_offset = const core::mem::offset_of!(SiteDesc, rseq_offset),
            table = const core::mem::offset_of!(SiteDesc, table),
            c = out(reg) _,
            o = out(reg) _,
            slow = label $slow,
            $($operands)*
            options(nostack),
        )
    };
}

impl Adder for Rseq {
    #[inline(always)]
    unsafe fn add(copy: u64, site: &SiteDesc, cell: u32, n: u64) {
        // SAFETY: a copy that is none is an entry of no CPU, and a thread in doubt touches no area. Else the area and the
        // table's entries are sound (contract), and the table has an entry for any 16 bits.
        // The kernel sends the thread to `6:` if it is preempted, migrated or signalled before
        // the add, so no other thread's add to this copy is lost. The descriptor's memory lives as
        // long as this code; who unmaps it clears the threads' rseq_cs first (session/detach.rs).
        unsafe {
            section!(
                copy,
                site,
                ["add [{copy} + {cell}], {n}"],
                {
                    // SAFETY: the contract of this function.
                    unsafe { add_shared(site, cell, n) }
                },
                cell = in(reg) u64::from(cell),
                n = in(reg) n,
            );
        }
    }

    #[inline(always)]
    unsafe fn count(copy: u64, site: &SiteDesc, consumer: &ConsumerDesc) {
        // SAFETY: as for `add`, with the consumer's cell.
        unsafe {
            section!(
                copy,
                site,
                ["mov {o:e}, [{consumer} + {cell}]", "inc qword ptr [{copy} + {o}]"],
                {
                    // SAFETY: the contract of this function.
                    unsafe { add_shared(site, consumer.cell, 1) }
                },
                consumer = in(reg) consumer,
                cell = const core::mem::offset_of!(ConsumerDesc, cell),
            );
        }
    }

    #[inline(always)]
    fn is_known(copy: u64, _: &SiteDesc) -> bool {
        copy != wire::COPY_UNKNOWN
    }
}

impl Adder for Locked {
    #[inline(always)]
    unsafe fn add(_: u64, site: &SiteDesc, cell: u32, n: u64) {
        let entry = (site.table + cpu() * 8) as *const u64;
        // SAFETY: the table has an entry for any such number (contract).
        let copy = unsafe { entry.read() };
        match copy {
            // SAFETY: the contract of this function.
            0 => unsafe { add_shared(site, cell, n) },
            // SAFETY: a non-zero entry is the address of a copy that holds `cell`, and a rank (contract).
            entry => unsafe { add_locked(entry & !(table::COPY_ALIGN - 1), cell, n) },
        }
    }

    #[inline(always)]
    unsafe fn count(copy: u64, site: &SiteDesc, consumer: &ConsumerDesc) {
        // SAFETY: passed on from the caller.
        unsafe { Self::add(copy, site, consumer.cell, 1) };
    }

    #[inline(always)]
    fn is_known(_: u64, site: &SiteDesc) -> bool {
        // A thread that a program made by itself may have no thread pointer.
        let mut pointer = 1u64;
        if site.has_fsgsbase != 0 {
            // SAFETY: the processor and Linux have the instruction (wire::SiteDesc), which writes the named register only.
            unsafe {
                core::arch::asm!("rdfsbase {p}", p = out(reg) pointer, options(nomem, nostack, preserves_flags));
            }
        }
        pointer != 0
    }
}

/// The CPU that the thread was on a moment ago, below 4096.
#[inline(always)]
fn cpu() -> u64 {
    /// Selector of the segment whose limit is the node and the CPU: GDT_ENTRY_CPUNODE, privilege 3.
    const CPU_SEGMENT: u64 = 15 << 3 | 3;
    let mut number = CPU_SEGMENT;
    // In: the selector. Out: the limit, or the selector if there is no such segment. Clobbers: flags.
    // SAFETY: lsl reads a descriptor and touches no memory of ours. `rdpid` would be faster, but not every processor that
    // Linux runs on has it; `rdtscp` traps where a program had the time stamp counter taken away.
    unsafe {
        core::arch::asm!("lsl {n:e}, {n:e}", n = inout(reg) number, options(nomem, nostack));
    }
    number & 0xfff
}

/// Adds to the shared copy, or to the children's if a fork wiped the table page.
///
/// # Safety
/// As for [`Adder::add`].
#[cold]
unsafe fn add_shared(site: &SiteDesc, cell: u32, n: u64) {
    // SAFETY: passed on from the caller.
    let copy = unsafe { shared_copy(site) }.unwrap_or(site.children);
    // SAFETY: both are addresses of copies that hold `cell` (contract).
    unsafe { add_locked(copy, cell, n) }
}

/// Address of the copy that threads without a CPU share; `None` in a forked child, whose table page was wiped.
///
/// # Safety
/// `site.table` must be CPU 0's entry of a live table.
#[inline(always)]
pub(crate) unsafe fn shared_copy(site: &SiteDesc) -> Option<u64> {
    let alive = (site.table - table::CPU0 as u64 + table::ALIVE as u64) as *const u64;
    // SAFETY: the word stands in the same page as the table (wire::table).
    match unsafe { alive.read() } {
        0 => None,
        copy => Some(copy),
    }
}

/// # Safety
/// `copy` must be the address of a copy that holds `cell`.
#[inline(always)]
unsafe fn add_locked(copy: u64, cell: u32, n: u64) {
    let cell = (copy + u64::from(cell)) as *const AtomicU64;
    // SAFETY: the cell is an aligned u64 in the arena, only ever accessed atomically (contract).
    let cell = unsafe { &*cell };
    // A statistics counter: the reader sums after the threads were stopped.
    cell.fetch_add(n, Ordering::Relaxed);
}
