//! Restartable sequences on data with one copy per CPU.
//!
//! For:     reader counters, per-CPU caches and maps: an update without a lock prefix.
//! State:   none here; `rseq_cs` of the calling thread is left pointing at a descriptor (README).
//! Context: hit, signal, target. Never blocks, and no sequence begins again.
//! Keeps:   P1 a sequence that returns true has updated the copy of the CPU it ran on, once.
//!          P2 one that returns false has updated nothing.
//!          P3 on a thread without rseq it always returns false; on one that is single-stepped it does.
//! Checked: tests below, tests/stepped.rs; `torture rcu` runs it for hours.

use crate::arch;

/// The word in front of each abort handler, as glibc registers it.
pub const SIGNATURE: u32 = if cfg!(target_arch = "aarch64") { SIGNATURE_A64 } else { 0x5305_3053 };
/// The same in A64 code, which is built on any host: `brk #0x45e0`.
pub const SIGNATURE_A64: u32 = 0xd428_bc00;

/// Where a thread's rseq area lies, in bytes from its thread pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(transparent)]
pub struct RseqOffset(isize);

impl RseqOffset {
    /// No thread of the process may use restartable sequences.
    pub const NONE: RseqOffset = RseqOffset(0);

    /// Takes an offset that somebody else found.
    ///
    /// # Safety
    /// Every thread that uses the value must have at `fs:[offset]` either its own registered area
    /// (signature [`SIGNATURE`]) or at least 16 writable bytes that the kernel and libc treat as an
    /// unregistered area: `cpu_id`, 4 bytes in, is negative.
    pub const unsafe fn new(offset: isize) -> RseqOffset {
        RseqOffset(offset)
    }

    /// Asks the C library; [`NONE`](Self::NONE) where it is not glibc 2.35 or later, or has rseq off.
    #[cfg(feature = "std")]
    pub fn detect() -> RseqOffset {
        match arch::libc_rseq() {
            // A size of zero says that the registration failed or was turned off.
            Some((offset, size)) if size >= 16 => RseqOffset(offset),
            _ => Self::NONE,
        }
    }

    /// The offset as a number; zero for [`NONE`](Self::NONE).
    pub const fn get(self) -> isize {
        self.0
    }

    /// True if threads may have an area at all.
    #[inline(always)]
    pub const fn is_some(self) -> bool {
        self.0 != 0
    }
}

/// Adds one to the calling CPU's copy of a cell; false if nothing was done.
///
/// The cell of CPU `c` is `DISP + (c << SHIFT)` bytes from `base`. Nothing is done on a thread without
/// rseq.
///
/// # Safety
/// * `offset` must fit the calling thread (contract of [`RseqOffset::new`]).
/// * Each CPU that the system can have must have its cell, writable and aligned.
/// * The cells must be written by such sequences alone.
#[inline(always)]
pub unsafe fn try_inc<const SHIFT: u32, const DISP: usize>(offset: RseqOffset, base: *mut u64) -> bool {
    if !offset.is_some() {
        return false;
    }
    // SAFETY: the caller's duties are the same.
    unsafe { arch::rseq_inc::<SHIFT, DISP>(offset.get(), base) }
}

/// Adds `n` to the calling CPU's copy of a cell, `cpu << SHIFT` bytes from `base`; false if nothing was done.
///
/// # Safety
/// As [`try_inc`], but only the CPUs below `copies` need a cell; on others nothing is done.
#[inline(always)]
pub unsafe fn try_add<const SHIFT: u32>(offset: RseqOffset, base: *mut u64, copies: u32, n: u64) -> bool {
    if !offset.is_some() {
        return false;
    }
    // SAFETY: the caller's duties are the same.
    unsafe { arch::rseq_add::<SHIFT>(offset.get(), base, copies, n) }
}

/// Stores `new` if the thread is still on `cpu` and the cell holds `expect`; false if nothing was done.
///
/// # Safety
/// * `offset` must fit the calling thread (contract of [`RseqOffset::new`]).
/// * `cell` must be writable and aligned, and written only by sequences on `cpu`.
#[inline(always)]
pub unsafe fn store_if(offset: RseqOffset, cpu: u32, cell: *mut u64, expect: u64, new: u64) -> bool {
    if !offset.is_some() {
        return false;
    }
    // SAFETY: the caller's duties are the same.
    unsafe { arch::rseq_store_if(offset.get(), cpu, cell, expect, new) }
}

/// Adds `n` to the cell if the thread is still on `cpu`; false if nothing was done.
///
/// # Safety
/// As for [`store_if`].
#[inline(always)]
pub unsafe fn add_if(offset: RseqOffset, cpu: u32, cell: *mut u64, n: u64) -> bool {
    if !offset.is_some() {
        return false;
    }
    // SAFETY: the caller's duties are the same.
    unsafe { arch::rseq_add_if(offset.get(), cpu, cell, n) }
}

/// The CPU that the thread was on a moment ago, as its area has it: no CPU's number where there is no area, or none that is
/// registered.
///
/// # Safety
/// `offset` must fit the calling thread (contract of [`RseqOffset::new`]).
#[inline(always)]
pub unsafe fn own_cpu(offset: RseqOffset) -> u32 {
    if !offset.is_some() {
        return u32::MAX;
    }
    // SAFETY: the caller's duties are the same.
    unsafe { arch::rseq_cpu(offset.get()) }
}
