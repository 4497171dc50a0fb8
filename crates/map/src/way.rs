//! How a thread adds to what its CPU has of a map.
//!
//! For:     tables of aggregates.
//! State:   none; where the thread's rseq area lies.
//! Context: hit, signal, target, control.
//! Keeps:   W1 what returned true was done once; what returned false was not done.
//!          W2 in one map the CPUs' copies are written by one way alone: by sequences of their CPU, or by locked instructions. The
//!             copy for all is written by locked ones.
//! Checked: tests/programs/table.rs (exact sums over threads, both ways).

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use percpu::RseqOffset;

/// A way to change a CPU's word.
pub trait Way: Copy {
    /// The thread's CPU a moment ago; a number that no CPU has sends it to the copy for all.
    fn cpu(self) -> u32;

    /// Adds to a word of that CPU's copy.
    fn add(self, cpu: u32, word: &AtomicU64, n: u64) -> bool;

    /// Stores in a word of that CPU's copy if it holds `old`.
    fn store_if(self, cpu: u32, word: &AtomicU64, old: u64, new: u64) -> bool;
}

/// By restartable sequences.
#[derive(Clone, Copy, Debug)]
pub struct Restartable(RseqOffset);

impl Restartable {
    /// For threads whose area lies there.
    ///
    /// # Safety
    /// The offset must fit every thread that uses the value (contract of [`RseqOffset::new`]).
    pub const unsafe fn new(offset: RseqOffset) -> Restartable {
        Restartable(offset)
    }
}

impl Way for Restartable {
    #[inline(always)]
    fn cpu(self) -> u32 {
        // SAFETY: it fits this thread (contract of `new`).
        unsafe { percpu::own_cpu(self.0) }
    }

    #[inline(always)]
    fn add(self, cpu: u32, word: &AtomicU64, n: u64) -> bool {
        // SAFETY: as above; the word is writable and of this CPU's copy, which sequences alone write (W2).
        unsafe { percpu::add_if(self.0, cpu, word.as_ptr(), n) }
    }

    #[inline(always)]
    fn store_if(self, cpu: u32, word: &AtomicU64, old: u64, new: u64) -> bool {
        // SAFETY: as in `add`.
        unsafe { percpu::store_if(self.0, cpu, word.as_ptr(), old, new) }
    }
}

/// By locked instructions, in processes without rseq.
#[derive(Clone, Copy, Debug)]
pub struct Locked {
    is_alone: bool,
}

impl Locked {
    /// In a map that no sequence adds to.
    pub const ALONE: Locked = Locked { is_alone: true };
    /// In a map that other processes may add to by sequences: in the copy for all.
    pub const AMONG_OTHERS: Locked = Locked { is_alone: false };
}

impl Way for Locked {
    #[inline(always)]
    fn cpu(self) -> u32 {
        if self.is_alone { percpu::cpu_by_segment() } else { u32::MAX }
    }

    #[inline(always)]
    fn add(self, _: u32, word: &AtomicU64, n: u64) -> bool {
        word.fetch_add(n, Relaxed);
        true
    }

    #[inline(always)]
    fn store_if(self, _: u32, word: &AtomicU64, old: u64, new: u64) -> bool {
        word.compare_exchange(old, new, Relaxed, Relaxed).is_ok()
    }
}

/// By locked instructions in the copy for all: whoever is none of the map's threads.
#[derive(Clone, Copy, Debug)]
pub struct Outside;

impl Way for Outside {
    #[inline(always)]
    fn cpu(self) -> u32 {
        u32::MAX
    }

    #[inline(always)]
    fn add(self, _: u32, _: &AtomicU64, _: u64) -> bool {
        false
    }

    #[inline(always)]
    fn store_if(self, _: u32, _: &AtomicU64, _: u64, _: u64) -> bool {
        false
    }
}
