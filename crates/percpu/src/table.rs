//! Adds to the copy of this CPU, which a table leads to.
//!
//! For:     code that is put into a process: its copies and their number are not known when it is compiled, and a forked
//!          child must not find them.
//! State:   the caller's: a table with an entry for each 16 bits, in memory that a fork wipes; copies that it leads to.
//! Context: hit, signal included: a signal handler that interrupts an add makes it none (restartable), or finds it done or
//!          not begun (locked).
//! Keeps:   T1 an add that returns true has added to the copy of the CPU that it ran on, once; one that returns false has
//!             added nothing; of a run each add that is not among those that are left was done once, the others were not.
//!          T2 an entry is 0 or a copy's address, a multiple of 256, with a low byte that is the owner's: it may change at
//!             any time, and no add looks at it.
//! Checked: tests below; tests/golden.rs; testkit `counting` with `hist` (exact over 8 threads), `bench trig-uprobe-nop`
//!          (hits = calls); text tests/ranks.rs (T2).
//! Source:  rseq(2).

use crate::arch;
use core::sync::atomic::{AtomicU64, Ordering};

/// Adds `n` to the cell `cell` bytes into `copy`, if that is the copy of the calling thread's CPU; false if nothing was
/// done. Of `site`, the word at `AREA` says where the thread's rseq area lies from its pointer, that at `TABLE` where CPU
/// 0's entry is.
///
/// # Safety
/// * `copy` must be 0, and then nothing of the others is used, or what is no entry's copy, or a live copy that holds the
///   cell, aligned and written by such adds alone.
/// * The two words of `site` must be readable and true of the calling thread, as for [`crate::RseqOffset::new`]; the table
///   must have an entry for any 16 bits.
#[inline(always)]
pub unsafe fn try_add<const AREA: usize, const TABLE: usize>(
    site: *const u8,
    copy: u64,
    cell: u64,
    n: u64,
) -> bool {
    // SAFETY: the caller's duties are the same.
    unsafe { arch::table_add::<AREA, TABLE>(site, copy, cell, n) }
}

/// Adds one to the cell that the 32-bit number at `CELL` of `consumer` names, otherwise as [`try_add`].
///
/// # Safety
/// As for [`try_add`]; the number must be readable.
#[inline(always)]
pub unsafe fn try_count<const AREA: usize, const TABLE: usize, const CELL: usize>(
    site: *const u8,
    copy: u64,
    consumer: *const u8,
) -> bool {
    // SAFETY: the caller's duties are the same.
    unsafe { arch::table_count::<AREA, TABLE, CELL>(site, copy, consumer) }
}

/// Adds one to a cell of each of `count` consumers, which stand `STRIDE` bytes apart from `first` on: the one `offset` bytes behind
/// that which the 32-bit number at `CELL` of the consumer names. Otherwise as [`try_add`]. Returns how many, the last ones, were not
/// added: all, or those that were left when the kernel interrupted.
///
/// # Safety
/// As for [`try_add`], with each of these cells; the numbers must be readable. `STRIDE` must be 1 to 128, `count` at least 1.
#[inline(always)]
pub unsafe fn try_count_run<const AREA: usize, const TABLE: usize, const CELL: usize, const STRIDE: usize>(
    site: *const u8,
    copy: u64,
    first: *const u8,
    count: u64,
    offset: u64,
) -> u64 {
    // SAFETY: the caller's duties are the same.
    unsafe { arch::table_count_run::<AREA, TABLE, CELL, STRIDE>(site, copy, first, count, offset) }
}

/// Adds `n` to the cell of the copy of the CPU that the thread was on a moment ago, by a locked add; false if the table
/// leads to none.
///
/// # Safety
/// `table` must be the address of CPU 0's entry of a table for 12 bits at least, whose copies hold the cell, aligned
/// and written by locked adds alone.
#[inline(always)]
pub unsafe fn try_add_locked(table: u64, cell: u64, n: u64) -> bool {
    let entry = (table + arch::cpu_by_segment() * 8) as *const u64;
    // SAFETY: the table has an entry for any such number (contract).
    match unsafe { entry.read() } {
        0 => false,
        entry => {
            // SAFETY: an entry that is not 0 leads to a copy that holds the cell (contract).
            unsafe { add_locked(entry & !0xff, cell, n) };
            true
        }
    }
}

/// Adds `n` to a copy's cell by a locked add.
///
/// # Safety
/// `copy` must be the address of a copy that holds the cell, aligned and written by locked adds alone.
#[inline(always)]
pub unsafe fn add_locked(copy: u64, cell: u64, n: u64) {
    let cell = (copy + cell) as *const AtomicU64;
    // SAFETY: an aligned u64, only ever accessed atomically (contract).
    let cell = unsafe { &*cell };
    // A statistics counter: nothing is ordered by it.
    cell.fetch_add(n, Ordering::Relaxed);
}

#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests {
    use super::*;
    use crate::{RseqOffset, current_cpu, possible_cpus};
    use core::mem::offset_of;
    use core::sync::atomic::AtomicBool;
    use core::sync::atomic::Ordering::Relaxed;
    use std::thread;

    const ADDS: u64 = 1_000_000;
    const CELL: u64 = 24;

    #[repr(align(256))]
    struct Copy([AtomicU64; 32]);

    struct Consumer {
        cell: u32,
    }

    struct Site {
        area: u64,
        table: u64,
    }

    const AREA: usize = offset_of!(Site, area);
    const TABLE: usize = offset_of!(Site, table);
    const NUMBER: usize = offset_of!(Consumer, cell);

    struct World {
        copies: Vec<Copy>,
        table: Vec<AtomicU64>,
        /// What found no copy.
        others: AtomicU64,
    }

    impl World {
        fn new() -> World {
            let cpus = possible_cpus() as usize;
            let copies: Vec<Copy> = (0..cpus).map(|_| Copy([const { AtomicU64::new(0) }; 32])).collect();
            let table: Vec<AtomicU64> = (0..1 << 16).map(|_| AtomicU64::new(0)).collect();
            let world = World { copies, table, others: AtomicU64::new(0) };
            world.set_low_byte(0);
            world
        }

        fn set_low_byte(&self, byte: u64) {
            for (copy, entry) in self.copies.iter().zip(&self.table) {
                entry.store(core::ptr::from_ref(copy) as u64 + byte, Relaxed);
            }
        }

        fn site(&self) -> Site {
            let area = RseqOffset::detect().get().cast_unsigned() as u64;
            Site { area, table: self.table.as_ptr() as u64 }
        }

        fn copy(&self) -> u64 {
            self.table[current_cpu() as usize].load(Relaxed) & !0xff
        }

        fn sum(&self) -> u64 {
            let of = |copy: &Copy| copy.0[CELL as usize / 8].load(Relaxed);
            self.copies.iter().map(of).sum::<u64>() + self.others.load(Relaxed)
        }
    }

    #[test]
    fn adds_are_exact_while_threads_move_and_low_bytes_change() {
        let (world, is_over) = (World::new(), AtomicBool::new(false));
        let (world, is_over) = (&world, &is_over);
        let threads = 4;
        thread::scope(|scope| {
            let changes = scope.spawn(move || {
                while !is_over.load(Relaxed) {
                    (0..2).for_each(|rank| world.set_low_byte(16 * rank));
                    thread::yield_now();
                }
            });
            let adders: Vec<_> = (0..threads)
                .map(|_| {
                    scope.spawn(move || {
                        let (site, consumer) = (world.site(), Consumer { cell: CELL as u32 });
                        let site = core::ptr::from_ref(&site).cast();
                        let it = core::ptr::from_ref(&consumer).cast();
                        for i in 0..ADDS {
                            let copy = if RseqOffset::detect().is_some() { world.copy() } else { 0 };
                            let is_done = if i % 2 == 0 {
                                // SAFETY: the table and the copies outlive the threads; the area is the C library's.
                                unsafe { try_add::<AREA, TABLE>(site, copy, CELL, 1) }
                            } else {
                                // SAFETY: as above.
                                unsafe { try_count::<AREA, TABLE, NUMBER>(site, copy, it) }
                            };
                            if !is_done {
                                world.others.fetch_add(1, Relaxed);
                            }
                        }
                    })
                })
                .collect();
            adders.into_iter().for_each(|t| t.join().unwrap());
            is_over.store(true, Relaxed);
            changes.join().unwrap();
        });
        assert_eq!(world.sum(), threads * ADDS);
        let others = world.others.load(Relaxed);
        assert!(others < threads * ADDS || !RseqOffset::detect().is_some(), "copies are found");
    }

    /// A run that is so long that most interruptions come in the middle of it, over so many cells.
    const RUN: u64 = 700;
    const CELLS: usize = 7;
    const OFFSET: u64 = 16;

    fn run() -> Vec<Consumer> {
        (0..RUN as usize).map(|i| Consumer { cell: 8 + 24 * (i % CELLS) as u32 }).collect()
    }

    /// Adds one for each of the run; returns how many, the last ones, an interruption has left.
    fn count_run(world: &World, site: &Site, run: &[Consumer]) -> u64 {
        const STRIDE: usize = size_of::<Consumer>();
        let (site, first) = (core::ptr::from_ref(site).cast(), run.as_ptr().cast());
        let len = run.len() as u64;
        // SAFETY: the table, the copies and the run outlive the call; the area is the C library's.
        unsafe { try_count_run::<AREA, TABLE, NUMBER, STRIDE>(site, world.copy(), first, len, OFFSET) }
    }

    extern "C" fn nothing(_: i32) {}

    unsafe extern "C" {
        fn signal(number: i32, handler: usize) -> usize;
    }

    #[test]
    fn a_run_is_exact_wherever_a_signal_interrupts_it() {
        const SIGUSR1: i32 = 10;
        /// So many in the middle have met each instruction.
        const WANTED: u64 = 1_000;
        if !RseqOffset::detect().is_some() {
            return;
        }
        // SAFETY: the handler does nothing.
        unsafe { signal(SIGUSR1, nothing as *const () as usize) };
        let (world, tid, in_the_middle) = (&World::new(), &AtomicU64::new(0), &AtomicU64::new(0));
        let is_over = &AtomicBool::new(false);
        let (rounds, left) = thread::scope(|scope| {
            let adder = scope.spawn(move || {
                let (site, run) = (world.site(), run());
                let (mut rounds, mut left) = (0u64, [0u64; CELLS]);
                tid.store(u64::from(sys::gettid()), Relaxed);
                while !is_over.load(Relaxed) {
                    let undone = count_run(world, &site, &run);
                    (RUN - undone..RUN).for_each(|i| left[i as usize % CELLS] += 1);
                    rounds += 1;
                    in_the_middle.fetch_add(u64::from(undone > 0 && undone < RUN), Relaxed);
                }
                (rounds, left)
            });
            while tid.load(Relaxed) == 0 {
                thread::yield_now();
            }
            let args = [sys::getpid() as usize, tid.load(Relaxed) as usize, SIGUSR1 as usize, 0, 0, 0];
            let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while in_the_middle.load(Relaxed) < WANTED && std::time::Instant::now() < end {
                // SAFETY: tgkill takes numbers, and the thread lives: it waits for `is_over`.
                let _ = unsafe { sys::syscall(sys::nr::TGKILL, args) };
            }
            is_over.store(true, Relaxed);
            adder.join().unwrap()
        });
        assert!(in_the_middle.load(Relaxed) >= WANTED, "only {}", in_the_middle.load(Relaxed));
        for (consumer, left) in run().iter().zip(&left) {
            let of = |copy: &Copy| copy.0[(u64::from(consumer.cell) + OFFSET) as usize / 8].load(Relaxed);
            let added = world.copies.iter().map(of).sum::<u64>();
            assert_eq!(added + left, rounds * RUN / CELLS as u64, "of the cell at {}", consumer.cell);
        }
        let all: u64 = world.copies.iter().flat_map(|copy| &copy.0).map(|cell| cell.load(Relaxed)).sum();
        assert_eq!(all + left.iter().sum::<u64>(), rounds * RUN, "nothing was added elsewhere");
    }

    #[test]
    fn without_a_copy_nothing_is_added_and_nothing_touched() {
        // Neither the site nor what it leads to is there.
        let nowhere = core::ptr::null();
        // SAFETY: with copy 0 nothing of the others is used.
        assert!(!unsafe { try_add::<AREA, TABLE>(nowhere, 0, CELL, 1) });
        // SAFETY: as above.
        assert!(!unsafe { try_count::<AREA, TABLE, 0>(nowhere, 0, nowhere) });
        // SAFETY: as above.
        assert_eq!(unsafe { try_count_run::<AREA, TABLE, 0, 4>(nowhere, 0, nowhere, 9, 0) }, 9);
        let world = World::new();
        world.table.iter().for_each(|entry| entry.store(0, Relaxed));
        // SAFETY: a table for any number, without a copy.
        assert!(!unsafe { try_add_locked(world.table.as_ptr() as u64, CELL, 1) });
        assert_eq!(world.sum(), 0);
    }

    #[test]
    fn locked_adds_are_exact_and_leave_the_low_byte_out() {
        let world = World::new();
        world.set_low_byte(16);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..ADDS / 10 {
                        // SAFETY: a table for any number, whose copies live as long as it.
                        assert!(unsafe { try_add_locked(world.table.as_ptr() as u64, CELL, 3) });
                    }
                });
            }
        });
        assert_eq!(world.sum(), 4 * 3 * (ADDS / 10));
    }
}
