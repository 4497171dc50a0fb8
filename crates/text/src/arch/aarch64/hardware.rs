//! The processor that this runs on: its cache instructions, and stores to code.
//!
//! For:     [`super::aarch64::Area`] in an AArch64 process.
//! State:   two views of one range of code.
//! Context: hit, target; `serialise_all` makes a system call.
//! Keeps:   M1 a store is to the writable view alone; each word is stored whole.
//! Checked: tests/aarch64_hits.rs runs it under qemu, which shows that the instructions are accepted and no more: see
//!          cache.rs.

use super::aarch64::{CacheType, Maintain, Port};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use sys::{membarrier, membarrier_cmd as cmd};

/// Code of this process, seen by an executable and by a writable mapping, which may be one.
#[derive(Debug)]
pub struct Hardware {
    run_at: u64,
    written_at: u64,
    len_bytes: u64,
}

impl Hardware {
    /// The machine's own caches over `len_bytes` of code.
    ///
    /// # Errors
    /// The kernel has no core-serialising membarrier.
    ///
    /// # Safety
    /// For as long as the value lives, `written_at` must be mapped readable and writable, and `run_at` must be mapped
    /// and show the same bytes. Nothing but this value may write them, and Rust code may not have references to them.
    pub unsafe fn new(run_at: u64, written_at: u64, len_bytes: u64) -> Result<Hardware, sys::Errno> {
        membarrier(cmd::REGISTER_PRIVATE_EXPEDITED_SYNC_CORE)?;
        Ok(Hardware { run_at, written_at, len_bytes })
    }

    /// What the processor says of its caches.
    pub fn cache_type() -> CacheType {
        let value: u64;
        // SAFETY: reads a register that Linux lets user space read, or answers for.
        unsafe {
            core::arch::asm!("mrs {}, ctr_el0", out(reg) value, options(nomem, nostack, preserves_flags))
        };
        CacheType(value)
    }

    fn view(&self, run_at: u64) -> u64 {
        run_at - self.run_at + self.written_at
    }

    fn word(&self, run_at: u64, index: usize) -> &AtomicU32 {
        let at = self.view(run_at) + 4 * index as u64;
        assert!(at & 3 == 0 && at >= self.written_at && at + 4 <= self.written_at + self.len_bytes);
        // SAFETY: the word is inside the writable view (checked above), which is mapped as long as self lives and
        // is touched by atomic accesses alone (contract of `new`).
        unsafe { AtomicU32::from_ptr(at as *mut u32) }
    }
}

impl Maintain for Hardware {
    fn clean_line(&self, addr: u64) {
        // SAFETY: changes no value; the line is of the writable view, so the address does not fault: `publish` is
        // given addresses that `write` returned, and their pages.
        unsafe { core::arch::asm!("dc cvau, {}", in(reg) addr, options(nostack, preserves_flags)) };
    }

    fn invalidate_line(&self, addr: u64) {
        // SAFETY: as above, of the executable view.
        unsafe { core::arch::asm!("ic ivau, {}", in(reg) addr, options(nostack, preserves_flags)) };
    }

    fn fence_data(&self) {
        // SAFETY: a fence; it is no `nomem`, so the compiler keeps stores before it.
        unsafe { core::arch::asm!("dsb ish", options(nostack, preserves_flags)) };
    }

    fn fence_fetch(&self) {
        // SAFETY: as above.
        unsafe { core::arch::asm!("isb", options(nostack, preserves_flags)) };
    }

    fn serialise_all(&self) {
        // Registered in `new`, so that it cannot fail.
        let done = membarrier(cmd::PRIVATE_EXPEDITED_SYNC_CORE);
        debug_assert!(done.is_ok(), "{done:?}");
    }
}

impl Port for Hardware {
    fn holds(&self, run_at: u64, words: &[u32]) -> bool {
        words.iter().enumerate().all(|(index, word)| self.word(run_at, index).load(Relaxed) == *word)
    }

    fn write(&self, run_at: u64, words: &[u32]) -> u64 {
        // The order is `publish`'s affair: nobody runs the words before it.
        words.iter().enumerate().for_each(|(index, word)| self.word(run_at, index).store(*word, Relaxed));
        self.view(run_at)
    }
}
