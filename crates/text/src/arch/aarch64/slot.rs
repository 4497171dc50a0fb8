//! Slots for A64 instructions: what stands in one, and an area of them.
//!
//! For:     sites that trap and whose instruction is not emulated.
//! State:   [`Area`]: numbers of slots, and for each whose instruction is in it.
//! Context: hit, in the trap handler, with all signals blocked; may sleep when all slots are taken.
//! Keeps:   A1 a slot is written, published, then entered, each time that its words change.
//!          A2 a slot that holds the words already is neither written nor published.
//!          A3 a thread leaves a slot by one trap at its end, and no other way.
//! Checked: tests/model on an abstract machine (A1, A2), tests/aarch64_hits.rs under qemu (A3, 10^7 hits by hand).
//! Source:  kernel-facts 1.10, 1.15. Departs: a trap word ends the slot, where the kernel steps by hardware.

use super::cache::{CacheType, Flush, Maintain, Written, publish};
use super::patch::TRAP_EXIT;
use crate::slots::{Binding, Bound, Free};
use core::fmt;
use insn::aarch64::{NotMoved, Origin, Verdict, decode, relocate, verdict};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Words of a slot: a literal load without a register of its own, and the trap.
pub const SLOT_WORDS: usize = 8;
/// Bytes of a slot.
pub const SLOT_BYTES: u64 = 4 * SLOT_WORDS as u64;

/// Stores to code, beside its maintenance.
pub trait Port: Maintain {
    /// Whether these words stand there.
    fn holds(&self, run_at: u64, words: &[u32]) -> bool;
    /// Writes words to the code that is run at `run_at`; by which address.
    fn write(&self, run_at: u64, words: &[u32]) -> u64;
}

/// Why an instruction has no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotSlotted {
    /// It is emulated, and would be wrong in a slot that ends in a trap.
    Emulated,
    /// It leaves without passing the end of the slot: an authenticating branch. A copy that is never taken back does.
    Leaves,
    /// It may not be moved.
    NotMoved(NotMoved),
}

impl fmt::Display for NotSlotted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotSlotted::Emulated => write!(f, "an instruction that is emulated"),
            NotSlotted::Leaves => write!(f, "a branch that would not come back to the end of its slot"),
            NotSlotted::NotMoved(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for NotSlotted {}

/// What stands in one slot.
#[derive(Clone, Copy, Debug)]
pub struct SlotCode {
    words: [u32; SLOT_WORDS],
    origins: [Option<Origin>; SLOT_WORDS],
    len: usize,
}

impl SlotCode {
    /// The instruction `word` of `from`, for the slot at `at`, and the trap behind it.
    ///
    /// # Errors
    /// It has no place in a slot.
    pub fn new(word: u32, from: u64, at: u64) -> Result<SlotCode, NotSlotted> {
        if verdict(word) == Verdict::Emulated {
            return Err(NotSlotted::Emulated);
        }
        if decode(word, from).is_some_and(|relative| relative.ends()) {
            return Err(NotSlotted::Leaves);
        }
        // The way back is the trap's, so any gate will do for the part that is cut off.
        let copied = relocate(word, from, at, &mut |_| Some(at)).map_err(NotSlotted::NotMoved)?;
        let len = copied.resume_offset().unwrap_or(0) / 4;
        let mut code = SlotCode { words: [TRAP_EXIT; SLOT_WORDS], origins: [None; SLOT_WORDS], len: len + 1 };
        code.words[..len].copy_from_slice(&copied.words()[..len]);
        (0..len).for_each(|index| code.origins[index] = copied.origin_of(4 * index));
        code.origins[len] =
            copied.origin_of(4 * len).map(|origin| Origin { leads_to: Some(from + 4), ..origin });
        Ok(code)
    }

    /// The words, the trap last.
    pub fn words(&self) -> &[u32] {
        &self.words[..self.len]
    }

    /// What a program counter `offset` bytes into the slot stands for.
    pub fn origin_of(&self, offset: usize) -> Option<Origin> {
        self.origins.get(offset / 4).copied().flatten().filter(|_| offset & 3 == 0)
    }
}

/// How slots are given to instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Scheme {
    /// A slot belongs to a probe, is written once, and goes to another probe when slots run out.
    #[default]
    Cached,
    /// A slot is taken for each hit, and written unless it holds the instruction already.
    Dynamic,
}

/// How an area is to be.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Address of the first slot, as it is run.
    pub run_at: u64,
    /// How many.
    pub slots: usize,
    /// The scheme.
    pub scheme: Scheme,
    /// How much is maintained after a write.
    pub flush: Flush,
    /// The processor's caches.
    pub cache: CacheType,
}

#[derive(Debug)]
enum Slots {
    Cached(Bound),
    Dynamic(Free),
}

/// Slots of one process, written through `P`.
#[derive(Debug)]
pub struct Area<P> {
    options: Options,
    slots: Slots,
    /// For each slot, the site of the instruction in it, and the instruction.
    sites: Vec<(AtomicU64, AtomicU32)>,
    port: P,
    written: AtomicU64,
}

/// A slot that the thread may go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    /// Where it goes on.
    pub addr: u64,
    /// The number, for [`Area::leave`].
    pub slot: usize,
}

impl<P: Port> Area<P> {
    /// An area of slots that nobody has used.
    pub fn new(options: Options, port: P) -> Area<P> {
        let slots = match options.scheme {
            Scheme::Cached => Slots::Cached(Bound::new(options.slots)),
            Scheme::Dynamic => Slots::Dynamic(Free::new(options.slots)),
        };
        let sites = (0..options.slots).map(|_| Default::default()).collect();
        Area { options, slots, sites, port, written: AtomicU64::new(0) }
    }

    fn addr(&self, slot: usize) -> u64 {
        self.options.run_at + slot as u64 * SLOT_BYTES
    }

    /// A slot with the instruction `word` of the site `from`, ready to be run by this thread, which must go there.
    /// Sleeps while all are taken.
    ///
    /// # Errors
    /// The instruction has no place in a slot, whichever it is; nothing was taken.
    pub fn enter(&self, word: u32, from: u64, binding: &Binding) -> Result<Entered, NotSlotted> {
        // Whether it fits does not depend on the slot: what is out of reach is loaded through a register.
        SlotCode::new(word, from, self.options.run_at)?;
        let (slot, must_fill) = match &self.slots {
            Slots::Dynamic(free) => (free.take_wait(), true),
            Slots::Cached(bound) => {
                let taken = bound.enter_wait(from, binding);
                (taken.slot, taken.must_fill)
            }
        };
        let addr = self.addr(slot);
        if must_fill {
            let code = SlotCode::new(word, from, addr)?;
            self.sites[slot].0.store(from, Relaxed);
            self.sites[slot].1.store(word, Relaxed);
            self.fill(slot, &code);
        }
        Ok(Entered { addr, slot })
    }

    fn fill(&self, slot: usize, code: &SlotCode) {
        let run_at = self.addr(slot);
        if !self.port.holds(run_at, code.words()) {
            let written_at = self.port.write(run_at, code.words());
            let len_bytes = 4 * code.words().len() as u64;
            let code = Written { run_at, written_at, len_bytes };
            publish(&self.port, self.options.cache, code, self.options.flush);
            self.written.fetch_add(1, Relaxed);
        }
        if let Slots::Cached(bound) = &self.slots {
            bound.filled(slot);
        }
    }

    /// The slot that holds `addr`.
    pub fn slot_of(&self, addr: u64) -> Option<usize> {
        let slot = addr.checked_sub(self.options.run_at)? / SLOT_BYTES;
        (slot < self.options.slots as u64).then_some(slot as usize)
    }

    /// For a thread that was interrupted or has faulted at `pc` in the slot that it has entered: the site, and what of
    /// its instruction has happened. The thread is to be shown the site, and must leave the slot.
    pub fn origin_of(&self, pc: u64) -> Option<(u64, Origin)> {
        let slot = self.slot_of(pc)?;
        let (from, word) = (self.sites[slot].0.load(Relaxed), self.sites[slot].1.load(Relaxed));
        let code = SlotCode::new(word, from, self.addr(slot)).ok()?;
        Some((from, code.origin_of((pc - self.addr(slot)) as usize)?))
    }

    /// The thread, which had entered `slot`, stands on the trap at its end: gives the slot back and says where the
    /// thread goes on.
    pub fn leave(&self, slot: usize) -> u64 {
        let behind = self.sites[slot].0.load(Relaxed) + 4;
        match &self.slots {
            Slots::Cached(bound) => bound.leave(slot),
            Slots::Dynamic(free) => free.give(slot),
        }
        behind
    }

    /// How often a slot was written.
    pub fn times_written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    /// How often a thread waited for a slot.
    pub fn times_slept(&self) -> u64 {
        match &self.slots {
            Slots::Cached(bound) => bound.times_slept(),
            Slots::Dynamic(free) => free.times_slept(),
        }
    }

    /// What writes and maintains.
    pub fn port(&self) -> &P {
        &self.port
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use insn::aarch64::Saved;

    #[test]
    fn a_slot_holds_the_instruction_and_a_trap() {
        let add = 0x9100_0400;
        let code = SlotCode::new(add, 0x1000, 0x7fff_0000_0000).unwrap();
        assert_eq!(code.words(), [add, TRAP_EXIT]);
        assert!(code.origin_of(0).unwrap().is_at_start);
        assert_eq!(code.origin_of(4).unwrap().leads_to, Some(0x1004));
        assert_eq!(code.origin_of(8), None);
    }

    #[test]
    fn the_longest_instruction_fits_and_every_word_knows_its_origin() {
        // ldr q0, literal and ldr xzr, literal, with addresses of four halves
        for word in [0x9c00_0040, 0x5800_005f] {
            let code = SlotCode::new(word, 0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4320).unwrap();
            assert_eq!(code.words().len(), SLOT_WORDS);
            assert_eq!(*code.words().last().unwrap(), TRAP_EXIT);
            assert_eq!(code.origin_of(4).unwrap().saved, Saved::Scratch);
            assert_eq!(code.origin_of(28).unwrap().saved, Saved::None);
        }
    }

    #[test]
    fn what_would_not_come_to_the_trap_has_no_slot() {
        let why = |word| SlotCode::new(word, 0x1000, 0x2000).unwrap_err();
        assert_eq!(why(0x1400_0001), NotSlotted::Emulated);
        assert_eq!(why(0xd503_201f), NotSlotted::Emulated);
        assert_eq!(why(0xd65f_0bff), NotSlotted::Leaves); // retaa
        assert!(matches!(why(0xd400_0001), NotSlotted::NotMoved(_)));
    }
}
