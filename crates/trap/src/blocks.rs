//! Memory for gates, near the modules that they belong to.
//!
//! For:     jumps; handlers, which ask whose code a thread is in.
//! State:   runs of pages, each with a table of what begins where. Nothing is ever given back: a thread may stand in a
//!          gate for as long as it likes.
//! Context: `jump_at`: any. The rest: target, one thread at a time.
//! Keeps:   B1 blocks do not overlap, and no two begin in one granule.
//!          B2 no page is writable: bytes are written through /proc/self/mem.
//! Checked: `tests/jumps.rs`.

use crate::jump::Jump;
use std::ops::Range;
use std::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use sys::mapping as mm;
use text::Landing;
use text::ground::space::{PAGE, rooms, within_reach};

/// The length of a run.
const RUN: u64 = 64 << 10;
/// A block takes at least so many bytes.
const GRANULE: u64 = 32;
/// No block is longer.
pub(crate) const LONGEST: u64 = 512;
/// The most runs: 32 MiB of gates.
const RUNS: usize = 512;
/// Runs that were made last and are looked through for room.
const LOOKED_AT: usize = 8;

struct Run {
    range: Range<u64>,
    /// For each granule, what begins there.
    begins: Box<[AtomicPtr<Jump>]>,
}

/// The runs.
pub(crate) struct Blocks {
    runs: [AtomicPtr<Run>; RUNS],
}

/// What is given out of one run, for who has the lock.
#[derive(Default)]
pub(crate) struct Used {
    /// Start and end of blocks.
    blocks: std::collections::BTreeMap<u64, u64>,
}

impl Blocks {
    pub const fn new() -> Blocks {
        Blocks { runs: [const { AtomicPtr::new(std::ptr::null_mut()) }; RUNS] }
    }

    fn runs(&self) -> impl DoubleEndedIterator<Item = &'static Run> + '_ {
        let all = self.runs.iter().map_while(|run| {
            // [TRAP-12] Orders the pointer before the run. Pairs with [TRAP-13].
            // SAFETY: null, or leaked by `map`.
            unsafe { run.load(Acquire).as_ref() }
        });
        // Few, and read backwards by who looks for room.
        all.collect::<Vec<_>>().into_iter()
    }

    /// The jump in whose gate an address is. Any context.
    pub fn jump_at(&self, pc: u64) -> Option<&'static Jump> {
        for run in &self.runs {
            // [TRAP-18] As [TRAP-12], without memory of its own. Pairs with [TRAP-13].
            // SAFETY: as in `runs`.
            let run = unsafe { run.load(Acquire).as_ref() }?;
            if !run.range.contains(&pc) {
                continue;
            }
            let last = ((pc - run.range.start) / GRANULE) as usize;
            let first = last.saturating_sub((LONGEST / GRANULE) as usize);
            // Another block may begin in the granule in which this one ends.
            return run.begins[first..=last].iter().rev().find_map(|begin| {
                // [TRAP-14] Orders the pointer before the jump. Pairs with [TRAP-15].
                // SAFETY: null, or leaked by who made it.
                let jump = unsafe { begin.load(Acquire).as_ref() };
                jump.filter(|jump| jump.gate.place_of(pc).is_some())
            });
        }
        None
    }

    /// Addresses for a block of `len` bytes that is entered `before` bytes behind its start, where a jump may lead.
    pub fn find(
        &self,
        used: &mut Used,
        landing: &Landing,
        before: u64,
        len: u64,
        reach: Range<u64>,
    ) -> Option<u64> {
        let len = len.max(GRANULE);
        if len > LONGEST {
            return None;
        }
        let wanted = Wanted { landing, before, len };
        let lately = self.runs().rev().take(LOOKED_AT);
        let at = lately.into_iter().find_map(|run| wanted.find(used, run.range.clone())).or_else(|| {
            let run = self.map_for(&wanted, reach)?;
            wanted.find(used, run)
        })?;
        used.blocks.insert(at, at + len);
        Some(at)
    }

    /// Gives back what nobody was told of.
    pub fn forget(used: &mut Used, at: u64) {
        used.blocks.remove(&at);
    }

    /// Says what begins at its gate's block.
    pub fn publish(&self, jump: &'static Jump) {
        if let Some(run) = self.runs().find(|run| run.range.contains(&jump.gate.at)) {
            let granule = ((jump.gate.at - run.range.start) / GRANULE) as usize;
            // [TRAP-15] Orders the jump before the pointer to it. Pairs with [TRAP-14].
            run.begins[granule].store(std::ptr::from_ref(jump).cast_mut(), Release);
        }
    }

    /// Maps a run that has room for the block.
    fn map_for(&self, wanted: &Wanted<'_>, reach: Range<u64>) -> Option<Range<u64>> {
        let mappings = image::maps::read_maps(sys::getpid()).ok()?;
        // The best places first, where the jump may choose; then wherever it can lead.
        let near = rooms(&mappings, reach.clone(), RUN).into_iter().map(|at| at..at + RUN);
        let anywhere = within_reach(&mappings, reach, wanted.len).into_iter().filter_map(|free| {
            let start = wanted.entry(free.start)?.checked_sub(wanted.before)? / PAGE * PAGE;
            let end = (start + RUN).min(free.end / PAGE * PAGE);
            (free.start <= start && start < end).then_some(start..end)
        });
        let fits = |run: &Range<u64>| wanted.find(&Used::default(), run.clone()).is_some();
        near.chain(anywhere).filter(fits).take(64).find_map(|run| self.map(run))
    }

    fn map(&self, range: Range<u64>) -> Option<Range<u64>> {
        let place = self.runs.iter().find(|run| run.load(Relaxed).is_null())?;
        let len = (range.end - range.start) as usize;
        let flags = mm::MAP_PRIVATE | mm::MAP_ANONYMOUS | mm::MAP_FIXED_NOREPLACE;
        // SAFETY: MAP_FIXED_NOREPLACE replaces nothing.
        let at = unsafe { mm::map(range.start, len, mm::PROT_READ | mm::PROT_EXEC, flags, -1) }.ok()?;
        if at != range.start {
            // SAFETY: just mapped, by a kernel that does not know the flag, and used by nobody.
            let _ = unsafe { mm::unmap(at, len) };
            return None;
        }
        let granules = len / GRANULE as usize;
        let begins = (0..granules).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect();
        let run = Box::leak(Box::new(Run { range: range.clone(), begins }));
        // [TRAP-13] Orders the run before the pointer to it. Pairs with [TRAP-12], [TRAP-18].
        place.store(run, Release);
        Some(range)
    }
}

/// A block that is looked for.
struct Wanted<'a> {
    landing: &'a Landing,
    before: u64,
    len: u64,
}

impl Wanted<'_> {
    /// The first entry for which the block does not begin before `from`.
    fn entry(&self, from: u64) -> Option<u64> {
        self.landing.at_or_after(from.checked_add(self.before)?)
    }

    /// Where in a run there is room.
    fn find(&self, used: &Used, run: Range<u64>) -> Option<u64> {
        let mut from = run.start;
        loop {
            let at = self.entry(from)? - self.before;
            if at + self.len > run.end {
                return None;
            }
            let overlaps = used.blocks.range(..at + self.len).next_back().filter(|(_, end)| **end > at);
            match overlaps {
                None => return Some(at),
                Some((_, end)) => from = (*end).max(at + 1),
            }
        }
    }
}
