//! The process-wide fence and what there is without it.
//!
//! For:     grace periods of fenceless readers.
//! State:   whether this process is registered; once per process image.
//! Context: target, control. `heavy` takes 10 us where another thread runs.
//! Keeps:   H1 after `heavy`, every thread of this process has executed a full fence since its start.
//! Checked: `tests/no_membarrier.rs` under a seccomp filter; `torture rcu --broken lite-without-membarrier`.
//! Source:  membarrier(2).

use sys::membarrier_cmd as cmd;

/// Where a domain's readers and grace periods get their order from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fences {
    /// Grace periods fence the whole process by membarrier(2).
    Membarrier,
    /// membarrier is not to be had here, for the reason given: readers fence themselves.
    Readers(sys::Errno),
}

impl core::fmt::Display for Fences {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Membarrier => f.write_str("membarrier"),
            Self::Readers(why) => write!(f, "readers fence themselves: membarrier gave {why}"),
        }
    }
}

/// Registers this process for the process-wide fence, and tries it once.
pub fn register() -> Fences {
    let tried = sys::membarrier(cmd::REGISTER_PRIVATE_EXPEDITED)
        .and_then(|_| sys::membarrier(cmd::PRIVATE_EXPEDITED));
    match tried {
        Ok(_) => Fences::Membarrier,
        Err(why) => Fences::Readers(why),
    }
}

/// Makes every thread of this process execute a full fence; false if the kernel refused.
pub fn heavy() -> bool {
    #[cfg(miri)]
    {
        crate::prim::full();
        return true;
    }
    #[cfg(not(miri))]
    sys::membarrier(cmd::PRIVATE_EXPEDITED).is_ok()
}
