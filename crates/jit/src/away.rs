//! A run in another process: what has to lie where before the code is called.
//!
//! For:     the engine `target`: who calls it can write code and data there, and call.
//! State:   the bytes of one run.
//! Context: control.
//! Keeps:   A1 the program finds what it would find in this process: memory, its stack, its run.
//! Checked: testkit `bpf`; `torture bpf --engines target`.

use crate::{Bounds, Run, STACK_LEN};
use bpf::Faulted;

/// Where in the data things are.
const STACK_AT: usize = 1024;
const MEMORY_AT: usize = STACK_AT + STACK_LEN;

/// A run's data for an address.
#[derive(Clone, Debug)]
pub struct Away {
    /// The data: to be written at its address before the call, and read back after it.
    pub data: Vec<u8>,
    /// What the code is called with.
    pub args: [u64; 6],
    run: Run,
}

impl Away {
    /// A run of a program on one piece of memory, of which r1 has the address and r2 the length (0 and 0 for none); the
    /// data will be at this address, a multiple of 8.
    pub fn new(at: u64, memory: &[u8], fuel: u64) -> Away {
        let (addr, len) = match memory.len() as u64 {
            0 => (0, 0),
            len => (at + MEMORY_AT as u64, len),
        };
        let run = Run::new(fuel, at + STACK_AT as u64, &[Bounds::new(addr, len, true)]);
        let mut data = run.to_bytes();
        data.resize(MEMORY_AT, 0);
        data.extend(memory);
        Away { data, args: [addr, len, 0, 0, 0, at], run }
    }

    /// What came of it, once the data are read back, if the code returned `r0`; the memory is filled in.
    ///
    /// # Errors
    /// What the program did that it may not.
    pub fn outcome(mut self, r0: u64, memory: &mut [u8]) -> Result<u64, Faulted> {
        self.run.take_back(&self.data);
        memory.copy_from_slice(&self.data[MEMORY_AT..]);
        self.run.outcome(r0)
    }
}
