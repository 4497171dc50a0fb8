//! Code mapped into this process, and called.
//!
//! For:     the engine `jit` of `bpf exec`, tests, and programs that run in the controller.
//! State:   one mapping, unmapped on drop.
//! Context: control.
//! Keeps:   L1 the mapping is written while it cannot be executed, and never after that.
//!          L2 what is called has passed the gate.
//! Checked: tests/engines.rs (also with /proc/self/maps).

use crate::{Bounds, Compiled, Run, STACK_LEN, Unplaced, arch};
use bpf::Faulted;
use sys::{Errno, mapping};

/// Code in this process.
#[derive(Debug)]
pub struct Loaded {
    base: u64,
    len: usize,
}

/// Why code is not in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotLoaded {
    /// A helper has no address.
    Unplaced(Unplaced),
    /// The system refuses the mapping.
    Refused(Errno),
}

impl std::fmt::Display for NotLoaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NotLoaded::Unplaced(unplaced) => unplaced.fmt(f),
            NotLoaded::Refused(errno) => write!(f, "the code cannot be mapped: {errno}"),
        }
    }
}

impl std::error::Error for NotLoaded {}

impl Loaded {
    /// Maps the code, with helpers where `address_of` says. Each is called as a C function with r1 to r5 and a pointer to
    /// the [`Run`], and returns r0.
    ///
    /// # Errors
    /// A helper without an address; the system has no memory, or forbids code that is made at run time.
    pub fn new(code: &Compiled, address_of: impl Fn(u32) -> Option<u64>) -> Result<Loaded, NotLoaded> {
        let len = code.placed_len().next_multiple_of(4096);
        let flags = mapping::MAP_PRIVATE | mapping::MAP_ANONYMOUS;
        let prot = mapping::PROT_READ | mapping::PROT_WRITE;
        // SAFETY: without MAP_FIXED nothing is replaced.
        let base = unsafe { mapping::map(0, len, prot, flags, -1) }.map_err(NotLoaded::Refused)?;
        let loaded = Loaded { base, len };
        let bytes = code.at(base, address_of).map_err(NotLoaded::Unplaced)?;
        debug_assert!(bytes.len() <= len);
        // SAFETY: the mapping is ours alone, writable, and at least as long (`placed_len`).
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), base as *mut u8, bytes.len()) };
        let prot = mapping::PROT_READ | mapping::PROT_EXEC;
        // Caches are the kernel's affair: it cleans a page that becomes executable for the first time (arm64's `__sync_icache_dcache`).
        // SAFETY: nobody reads or writes the mapping but the code that is called, which needs no more.
        unsafe { mapping::protect(base, len, prot) }.map_err(NotLoaded::Refused)?;
        Ok(loaded)
    }

    /// Where the code begins.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Runs it with r1 to r5 as given, and the arena at this address; r0 at its end.
    ///
    /// # Safety
    /// The memory in the run's bounds must be there, and the caller's to have read and written, while it runs, as must the
    /// stack, if the program is checked; helpers must be what they are called as. A program at level
    /// [`Own`](crate::Level::Own) does what its writer wrote: every access must be sound.
    ///
    /// # Errors
    /// What the program did that it may not, or no more fuel.
    pub unsafe fn run(&self, args: [u64; 5], arena: u64, run: &mut Run) -> Result<u64, Faulted> {
        // SAFETY: the caller's duties are the same.
        let r0 = unsafe { arch::enter(self.base, args, arena, run) };
        run.outcome(r0)
    }
}

impl Loaded {
    /// Runs it on one piece of memory, of which r1 has the address and r2 the length (0 and 0 for none).
    ///
    /// # Safety
    /// As for [`Loaded::run`]; of a checked program that calls no helper nothing else is asked.
    ///
    /// # Errors
    /// As for [`Loaded::run`].
    pub unsafe fn run_on(&self, memory: &mut [u8], fuel: u64) -> Result<u64, Faulted> {
        let mut stack = [0u64; STACK_LEN / 8];
        // Aligned, as atomics need it.
        let mut words: Vec<u64> = vec![0; memory.len().div_ceil(8)];
        let bytes = words.iter_mut().zip(memory.chunks(8));
        bytes.for_each(|(word, chunk)| {
            *word = u64::from_ne_bytes(std::array::from_fn(|i| chunk.get(i).copied().unwrap_or(0)))
        });
        let (addr, len) = match memory.len() as u64 {
            0 => (0, 0),
            len => (words.as_mut_ptr() as u64, len),
        };
        let mut run = Run::new(fuel, stack.as_mut_ptr() as u64, &[Bounds::new(addr, len, true)]);
        // SAFETY: the memory and the stack outlive the call, and are used by nobody else; the rest is the caller's duty.
        let ran = unsafe { self.run([addr, len, 0, 0, 0], 0, &mut run) };
        let back = memory.iter_mut().zip(words.iter().flat_map(|word| word.to_ne_bytes()));
        back.for_each(|(to, from)| *to = from);
        ran
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new`, and the code is called through `&self` only.
        let _ = unsafe { mapping::unmap(self.base, self.len) };
    }
}
