//! One hit of the general path.
//!
//! For:     trampolines that call the agent.
//! State:   the site's consumers, in the arena.
//! Context: hit.
//! Keeps:   H1 every consumer on the list runs once.
//!          H2 between `READERS_ENTERED` and `READERS_LEFT` a consumer that was on the list stays valid.
//! Checked: testkit `counted` with `hist`, `bench trig-uprobe-nop` (hits = calls).
//! Source:  kernel handler_chain(), kernel-facts 1.8; reader as srcu_read_lock_fast.

use crate::cell::Adder;
use core::sync::atomic::Ordering;
use core::sync::atomic::compiler_fence;
use wire::{ConsumerDesc, SiteDesc, cell};

/// The saved registers, in the layout of the kernel's `struct pt_regs`.
#[repr(C)]
#[derive(Debug)]
pub struct PtRegs {
    words: [u64; 21],
}

impl PtRegs {
    /// The register at this byte offset of the layout, 0 beyond its end.
    #[inline(always)]
    pub fn at(&self, offset: u32) -> u64 {
        self.words.get((offset / 8) as usize).copied().unwrap_or(0)
    }
}

type Handler = unsafe extern "C" fn(&PtRegs, &SiteDesc, &ConsumerDesc);

/// Runs every consumer of `site`.
///
/// # Safety
/// `site` and what its list leads to must be valid until the count of left readers equals that of
/// entered ones; each consumer's `handler` must be one of this crate's, of the same [`Adder`]; and the
/// duties of [`Adder::add_one`].
#[inline(always)]
pub unsafe fn hit<A: Adder>(regs: &PtRegs, site: &SiteDesc) {
    // SAFETY: passed on from the caller.
    unsafe { A::add_one(site, cell::READERS_ENTERED) };
    // The lite reader: ordering against the updater is its membarrier's affair, here only the compiler
    // must keep the loads of the section behind the count.
    compiler_fence(Ordering::SeqCst);
    let mut next = site.first.load(Ordering::Acquire);
    while next != 0 {
        // SAFETY: a non-zero word of the list is the address of a complete consumer (contract, S1).
        let consumer = unsafe { &*(next as *const ConsumerDesc) };
        // SAFETY: the controller writes addresses of `Handler`s only (contract).
        let handler = unsafe { core::mem::transmute::<u64, Handler>(consumer.handler) };
        // SAFETY: passed on from the caller.
        unsafe { handler(regs, site, consumer) };
        next = consumer.next.load(Ordering::Acquire);
    }
    compiler_fence(Ordering::SeqCst);
    // SAFETY: passed on from the caller.
    unsafe { A::add_one(site, cell::READERS_LEFT) };
}

/// Handler: adds one to the consumer's cell.
///
/// # Safety
/// As for [`Adder::add_one`].
pub unsafe extern "C" fn count<A: Adder>(_: &PtRegs, site: &SiteDesc, consumer: &ConsumerDesc) {
    // SAFETY: passed on from the caller.
    unsafe { A::add_one(site, consumer.cell) };
}

/// Handler: adds one to the cell of the argument's power of two.
///
/// # Safety
/// As for [`Adder::add_one`]; the consumer must own 65 cells.
pub unsafe extern "C" fn log2_histogram<A: Adder>(regs: &PtRegs, site: &SiteDesc, consumer: &ConsumerDesc) {
    let bucket = u64::BITS - regs.at(consumer.arg).leading_zeros();
    // SAFETY: passed on from the caller; `bucket` is at most 64.
    unsafe { A::add_one(site, consumer.cell + 8 * bucket) };
}
