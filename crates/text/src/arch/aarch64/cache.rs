//! New code made visible to instruction fetch, for the bytes that were written and no others.
//!
//! For:     slots and patches.
//! State:   none.
//! Context: hit, target; one instruction a cache line, and a system call for [`Flush::Broadcast`].
//! Keeps:   C1 each line that holds a written byte is cleaned to the point of unification, then a fence, then each
//!          line is invalidated, then a fence, then the fetch pipeline of this thread starts anew: in this order.
//!          C2 what CTR_EL0 says is not needed is not done, and the fences remain.
//!          C3 a range touches no line but its own.
//! Checked: tests/model: an abstract machine that runs stale words unless all of this was done, and one mutant for
//!          each step. Nothing else can: qemu has no stale instruction cache, so no run under it proves anything here.
//! Source:  Arm ARM (DDI 0487) B2.7.4.2 and D7.5; kernel-facts 1.10, 1.15, 1.16 for range, page and broadcast.
//!
//! Another thread that comes to the code by a trap has its own context synchronised by the return from it. One that
//! can come there by a branch alone needs [`Flush::Broadcast`].

use core::ops::Range;

/// What CTR_EL0 says of the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheType(pub u64);

impl CacheType {
    /// Length of the smallest data cache line, in bytes.
    pub fn data_line_bytes(self) -> u64 {
        4 << (self.0 >> 16 & 15)
    }

    /// Length of the smallest instruction cache line, in bytes.
    pub fn fetch_line_bytes(self) -> u64 {
        4 << (self.0 & 15)
    }

    /// IDC: instruction fetch sees stores without a clean.
    pub fn is_data_coherent(self) -> bool {
        self.0 >> 28 & 1 == 1
    }

    /// DIC: instruction fetch needs no invalidation.
    pub fn is_fetch_coherent(self) -> bool {
        self.0 >> 29 & 1 == 1
    }
}

/// The instructions that maintenance is made of.
pub trait Maintain {
    /// dc cvau: the line that holds `addr` goes to the point where instruction fetch finds it.
    fn clean_line(&self, addr: u64);
    /// ic ivau: no cache of instructions holds the line of `addr` any more.
    fn invalidate_line(&self, addr: u64);
    /// dsb ish: what was begun before is complete, for every processor.
    fn fence_data(&self);
    /// isb: this thread fetches anew what comes behind.
    fn fence_fetch(&self);
    /// Every thread of the process fetches anew: membarrier(2), SYNC_CORE.
    fn serialise_all(&self);
}

/// How much is maintained, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Flush {
    /// The lines of the range; for this thread, and for those that come by a trap.
    #[default]
    Range,
    /// All lines of its pages; for the same.
    Page,
    /// The lines of the range; for all threads, wherever they are.
    Broadcast,
}

/// Code that was written: where it is run, and where it was written, if the mapping is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Address by which it is fetched. Instruction caches may be indexed by it.
    pub run_at: u64,
    /// Address by which it was stored. The executable mapping may be unreadable, and then a clean by it would fault.
    pub written_at: u64,
    /// Length.
    pub len_bytes: u64,
}

const PAGE_BYTES: u64 = 4096;

/// The starts of all units of `unit_bytes` that hold a byte of `range`.
fn units(range: Range<u64>, unit_bytes: u64) -> impl Iterator<Item = u64> {
    let first = range.start & !(unit_bytes - 1);
    (0..).map(move |index| first + index * unit_bytes).take_while(move |at| *at < range.end)
}

fn span(start: u64, len_bytes: u64, flush: Flush) -> Range<u64> {
    let end = if cfg!(mutant = "flush-short-range") { start + len_bytes / 2 } else { start + len_bytes };
    match flush {
        Flush::Range | Flush::Broadcast => start..end,
        Flush::Page => start & !(PAGE_BYTES - 1)..end.next_multiple_of(PAGE_BYTES),
    }
}

/// From here on the written code may be run: by this thread, by threads that come by a trap, or by all (`flush`).
///
/// # Context
/// Hit, target. No lock, no allocation; a system call for [`Flush::Broadcast`] alone.
pub fn publish(machine: &impl Maintain, cache: CacheType, code: Written, flush: Flush) {
    let data = span(code.written_at, code.len_bytes, flush);
    let fetch = span(code.run_at, code.len_bytes, flush);
    if cfg!(mutant = "flush-invalidate-first") {
        units(fetch.clone(), cache.fetch_line_bytes()).for_each(|at| machine.invalidate_line(at));
    }
    if !cache.is_data_coherent() && !cfg!(mutant = "flush-no-clean") {
        units(data, cache.data_line_bytes()).for_each(|at| machine.clean_line(at));
    }
    // [FETCH-1] The stores, or their cleaning, before the invalidation: else a line could be fetched again between
    // the two, from what was there before. Pairs with [FETCH-3].
    if !cfg!(mutant = "flush-no-first-fence") {
        machine.fence_data();
    }
    if !cache.is_fetch_coherent() {
        if !cfg!(any(mutant = "flush-no-invalidate", mutant = "flush-invalidate-first")) {
            units(fetch, cache.fetch_line_bytes()).for_each(|at| machine.invalidate_line(at));
        }
        // [FETCH-2] The invalidation before the pipeline starts anew. Pairs with [FETCH-3].
        if !cfg!(mutant = "flush-no-second-fence") {
            machine.fence_data();
        }
    }
    // [FETCH-3] What was fetched before is dropped; what is fetched now comes from behind the two fences above. Pairs
    // with [FETCH-1] and [FETCH-2].
    if !cfg!(mutant = "flush-no-fetch-fence") {
        machine.fence_fetch();
    }
    if flush == Flush::Broadcast && !cfg!(mutant = "flush-no-broadcast") {
        machine.serialise_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_type_register_is_read_by_its_fields() {
        // A Neoverse N1: 64-byte lines, IDC and DIC; a Cortex-A72: 64-byte lines, neither.
        let [n1, a72] = [0xb444_c004, 0x8444_c004].map(CacheType);
        assert_eq!((n1.data_line_bytes(), n1.fetch_line_bytes()), (64, 64));
        assert!(n1.is_data_coherent() && n1.is_fetch_coherent());
        assert!(!a72.is_data_coherent() && !a72.is_fetch_coherent());
    }

    #[test]
    fn a_range_has_every_line_that_it_touches_and_no_other() {
        let lines = |range, line| units(range, line).collect::<Vec<_>>();
        assert_eq!(lines(0x1004..0x1008, 64), [0x1000]);
        assert_eq!(lines(0x103c..0x1044, 64), [0x1000, 0x1040]);
        assert_eq!(lines(0x1000..0x1040, 64), [0x1000]);
        assert_eq!(lines(0x1000..0x1000, 64), [0; 0]);
    }
}
