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

use crate::handler::PtRegs;
use core::sync::atomic::{AtomicU64, Ordering};
use wire::{SiteDesc, table};

/// A way to add to a cell.
pub trait Adder {
    /// Adds `n` to the cell at byte offset `cell` of this CPU's copy.
    ///
    /// # Safety
    /// `site.table` must be CPU 0's entry of a live table, whose entries are 0 or addresses of copies that hold `cell`;
    /// `regs` must hold the address of the running thread's rseq area, or of nobody's (for [`Rseq`]).
    unsafe fn add(regs: &PtRegs, site: &SiteDesc, cell: u32, n: u64);

    /// The thread pointer leads to a block of the thread's.
    fn is_known(regs: &PtRegs, site: &SiteDesc) -> bool;
}

/// For threads that may have an rseq area; those that have none take the shared copy.
#[derive(Debug)]
pub struct Rseq;

/// For processes without rseq.
#[derive(Debug)]
pub struct Locked;

impl Adder for Rseq {
    #[inline(always)]
    unsafe fn add(regs: &PtRegs, site: &SiteDesc, cell: u32, n: u64) {
        // In: the rseq area, the table, the cell, the number. Clobbers: {c}, flags. Stack: none.
        // The steps: name the section; read the CPU; look up its copy; add, which commits.
        // SAFETY: the area and the table's entries are sound (contract), and the table has an entry for any 16 bits.
        // The kernel sends the thread to `6:` if it is preempted, migrated or signalled before
        // the add, so no other thread's add to this copy is lost. The descriptor's memory lives as
        // long as this code; who unmaps it clears the threads' rseq_cs first (session/leave/detach.rs).
        unsafe {
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
                "lea {c}, [rip + 77b]",
                "mov [{area} + 8], {c}",
                "3:",
                "movzx {c:e}, word ptr [{area} + 4]",
                "mov {c}, [{table} + {c}*8]",
                "test {c}, {c}",
                "jz {slow}",
                "add [{c} + {cell}], {n}",
                "4:",
                area = in(reg) regs.at(wire::SLOT_AREA),
                table = in(reg) site.table,
                cell = in(reg) u64::from(cell),
                n = in(reg) n,
                c = out(reg) _,
                slow = label {
                    // SAFETY: the contract of this function.
                    unsafe { add_shared(site, cell, n) }
                },
                options(nostack),
            );
        }
    }

    #[inline(always)]
    fn is_known(regs: &PtRegs, site: &SiteDesc) -> bool {
        regs.at(wire::SLOT_AREA) != site.table - table::CPU0 as u64 + table::NOBODY as u64
    }
}

impl Adder for Locked {
    #[inline(always)]
    unsafe fn add(_: &PtRegs, site: &SiteDesc, cell: u32, n: u64) {
        let entry = (site.table + cpu() * 8) as *const u64;
        // SAFETY: the table has an entry for any such number (contract).
        let copy = unsafe { entry.read() };
        match copy {
            // SAFETY: the contract of this function.
            0 => unsafe { add_shared(site, cell, n) },
            // SAFETY: a non-zero entry is the address of a copy that holds `cell` (contract).
            copy => unsafe { add_locked(copy, cell, n) },
        }
    }

    #[inline(always)]
    fn is_known(_: &PtRegs, _: &SiteDesc) -> bool {
        true
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
