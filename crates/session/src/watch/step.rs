//! What the instruction that a thread stands before will touch, and what is to be told of it.
//!
//! For:     soft watchpoints.
//! State:   none.
//! Context: control, in the thread that traces. The thread is in a ptrace stop.
//! Keeps:   P1 reads only: nothing of the thread or its memory is changed, but by `protect`.
//! Checked: testkit `watching`.

use super::{Access, Watch};
use crate::arch::operand;
use crate::facts::error::Broken;
use crate::find::memory::Memory;
use crate::hold::puppet::Puppet;
use insn::memory_accesses;
use sys::ptrace::Regs;
use sys::{Errno, nr};

/// The watched bytes as a number.
pub(super) fn value(memory: &Memory, watch: &Watch) -> u64 {
    let mut bytes = [0u8; 8];
    let _ = memory.read(watch.addr, &mut bytes[..watch.len as usize]);
    u64::from_le_bytes(bytes)
}

/// The watches that the instruction at `regs.pc()` will touch.
pub(super) fn touched(memory: &Memory, regs: &Regs, watches: &[Watch]) -> Result<Vec<usize>, Broken> {
    let mut code = [0u8; 15];
    let to_page_end = 4096 - (regs.pc() as usize & 4095);
    let first = to_page_end.min(15);
    memory.read(regs.pc(), &mut code[..first])?;
    // The next page may not be there; then the instruction ends before it.
    let _ = memory.read(regs.pc() + first as u64, &mut code[first..]);
    let accesses = memory_accesses(&code, regs.pc(), |n| operand(regs, n));
    let is_meant = |watch: &Watch| {
        accesses.iter().any(|a| {
            a.meets(watch.addr, u64::from(watch.len)) && (a.is_written || watch.access == Access::ReadWrite)
        })
    };
    Ok(watches.iter().enumerate().filter(|(_, w)| is_meant(w)).map(|(n, _)| n).collect())
}

/// Protects pages by calls of a puppet.
pub(super) fn protect(puppet: &mut Puppet, pages: &[(u64, u64)]) -> Result<(), Errno> {
    pages
        .iter()
        .try_for_each(|(addr, prot)| puppet.call(nr::MPROTECT, [*addr, 4096, *prot, 0, 0, 0]).map(drop))
}
