//! What handlers do.
//!
//! For:     the walk over a site's consumers, which stands in each trampoline (text/trampoline/hit.rs).
//! State:   the consumer's cells, in the arena.
//! Context: hit, between the reader's two counts.
//! Keeps:   H1 a handler adds once a hit, for each consumer of the run that it is called for.
//! Checked: testkit `counting` with `hist`, `bench trig-uprobe-nop trig-uprobe-multi8` (hits = calls).

use crate::arch::REGISTERS;
use crate::cell::Adder;
use wire::{ConsumerDesc, SiteDesc};

/// The saved registers, in the layout of the kernel's `struct pt_regs`, of AArch64 `user_pt_regs`.
#[repr(C)]
#[derive(Debug)]
pub struct PtRegs {
    words: [u64; REGISTERS],
}

impl Default for PtRegs {
    fn default() -> PtRegs {
        PtRegs { words: [0; REGISTERS] }
    }
}

impl PtRegs {
    /// The stack pointer of the program: the trampoline's frame lies just below, or below the red zone.
    #[inline(always)]
    pub fn stack_pointer(&self, site: &SiteDesc) -> u64 {
        core::ptr::from_ref(self) as u64 + size_of::<PtRegs>() as u64 + site.red_zone
    }

    /// The register at this byte offset of the layout, 0 beyond its end.
    #[inline(always)]
    pub fn at(&self, offset: u32) -> u64 {
        self.words.get((offset / 8) as usize).copied().unwrap_or(0)
    }

    /// Writes the register at this byte offset of the layout.
    #[inline(always)]
    pub(crate) fn set(&mut self, offset: usize, value: u64) {
        if let Some(word) = self.words.get_mut(offset / 8) {
            *word = value;
        }
    }
}

/// Handler: adds one to the consumer's cell.
///
/// # Safety
/// As for [`Adder::add`].
pub unsafe extern "C" fn count<A: Adder>(_: &PtRegs, site: &SiteDesc, consumer: &ConsumerDesc, copy: u64) {
    // SAFETY: passed on from the caller.
    unsafe { A::count(copy, site, consumer) };
}

/// Handler: the same for each consumer of the run.
///
/// # Safety
/// As for [`Adder::count_run`].
pub unsafe extern "C" fn counts<A: Adder>(_: &PtRegs, site: &SiteDesc, consumer: &ConsumerDesc, copy: u64) {
    // SAFETY: passed on from the caller.
    unsafe { A::count_run(copy, site, consumer, consumer.run, 0) };
}

/// Handler: adds one to the cell of the argument's power of two.
///
/// # Safety
/// As for [`Adder::add`]; the consumer must own 65 cells.
pub unsafe extern "C" fn log2_histogram<A: Adder>(
    regs: &PtRegs,
    site: &SiteDesc,
    consumer: &ConsumerDesc,
    copy: u64,
) {
    // SAFETY: passed on from the caller; a bucket is at most 64.
    unsafe { A::add(copy, site, consumer.cell + 8 * bucket_of(regs, consumer), 1) };
}

/// Handler: the same for each consumer of the run, whose argument is one. By itself: one that stands alone has no time for it.
///
/// # Safety
/// As for [`log2_histogram`] and [`Adder::count_run`].
pub unsafe extern "C" fn log2_histograms<A: Adder>(
    regs: &PtRegs,
    site: &SiteDesc,
    consumer: &ConsumerDesc,
    copy: u64,
) {
    // SAFETY: passed on from the caller; a bucket is at most 64.
    unsafe { A::count_run(copy, site, consumer, consumer.run, 8 * bucket_of(regs, consumer)) };
}

/// Which of a histogram's cells a hit belongs to.
#[inline(always)]
fn bucket_of(regs: &PtRegs, consumer: &ConsumerDesc) -> u32 {
    let arg = consumer.arg;
    map::Buckets::Log2.of(regs.at(arg & wire::ARG_OFFSET) & u64::MAX >> (arg >> wire::ARG_SHIFT))
}
