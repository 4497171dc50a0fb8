//! Threads that stay on one CPU, and start together.
//!
//! For:     benchmarks that measure under load.
//! State:   none.
//! Context: control.
//! Keeps:   N1 a gate opens when all have come, and for all of them.
//! Checked: tests below.

use std::sync::atomic::{AtomicU32, Ordering::AcqRel, Ordering::Acquire};

/// Binds the calling thread to a CPU; a refusal is ignored, since it costs precision alone.
pub fn pin_to(cpu: usize) {
    let mut mask = [0u64; 16];
    mask[cpu / 64 % 16] |= 1 << (cpu % 64);
    let args = [0, size_of_val(&mask), mask.as_ptr() as usize, 0, 0, 0];
    // SAFETY: the kernel reads the mask, which outlives the call.
    let _ = unsafe { sys::syscall(sys::nr::SCHED_SETAFFINITY, args) };
}

/// The CPUs that this process may use.
pub fn online() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// A point that no thread passes before all are there. Spins, so that all leave at the same time.
pub struct Gate {
    come: AtomicU32,
    all: u32,
}

impl Gate {
    /// A gate for `all` threads, to be passed once.
    pub fn new(all: usize) -> Gate {
        Gate { come: AtomicU32::new(0), all: all as u32 }
    }

    /// Waits for the others.
    pub fn pass(&self) {
        self.come.fetch_add(1, AcqRel);
        while !self.is_open() {
            std::thread::yield_now();
        }
    }

    /// Says that this thread has come, without waiting.
    pub fn arrive(&self) {
        self.come.fetch_add(1, AcqRel);
    }

    /// True once all have come.
    pub fn is_open(&self) -> bool {
        self.come.load(Acquire) >= self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_opens_for_the_last_to_come() {
        let gate = Gate::new(2);
        gate.arrive();
        assert!(!gate.is_open());
        gate.pass();
        assert!(gate.is_open());
    }
}
