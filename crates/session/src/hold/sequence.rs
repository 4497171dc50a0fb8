//! Restartable sequences of the target's own.
//!
//! For:     whoever sends a stopped thread elsewhere.
//! State:   none.
//! Context: control, in a stopped world. The area and the descriptor are the target's memory: they are checked as the
//!          kernel checks them, and nothing is read through them but what the kernel would read.
//! Keeps:   Q1 a thread that is sent elsewhere from inside its sequence goes on at the sequence's abort address, and its
//!             area names no sequence any more: as if it had been preempted, which it was.
//!          Q2 a thread that stands outside of its sequence, or has none, is left alone.
//! Checked: testkit `entered`; tests below.
//! Source:  rseq_ip_fixup in the kernel's kernel/rseq.c. It clears `rseq_cs` when it finds the pc outside: a thread that
//!          we take out and put back inside would commit after it was preempted.

use crate::find::memory::Memory;
use std::ops::Range;
use sys::ptrace::{self, Regs};

/// Offset of `rseq_cs` in an rseq area.
const RSEQ_CS: u64 = 8;
/// Bytes of a descriptor.
const DESCRIPTOR: usize = 32;
/// User addresses end here.
const USER_END: u64 = if cfg!(target_arch = "aarch64") { 1 << 48 } else { 1 << 47 };

/// A sequence that a thread stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sequence {
    /// Where the area names it.
    named_at: u64,
    /// Where the thread goes on.
    pub abort: u64,
}

/// Where a thread stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// In no sequence.
    Outside,
    /// In this one.
    Inside(Sequence),
    /// Its area or its descriptor cannot be read or is wrong: the kernel kills it as soon as it is preempted.
    Unsound,
}

impl Standing {
    /// Of a stopped thread.
    pub fn of(memory: &Memory, tid: i32, regs: &Regs) -> Standing {
        // A kernel before 5.13 does not tell; nor is there an area if the thread registered none.
        match ptrace::rseq_config(tid) {
            Ok(config) if config.area != 0 => {
                of_area(config.area, config.signature, regs.pc(), |at, into| {
                    (at < USER_END).then(|| memory.read(at, into).ok()).flatten()
                })
            }
            _ => Standing::Outside,
        }
    }

    /// Takes a stopped thread out of its sequence, if it is in one; its registers from then on.
    ///
    /// # Errors
    /// The registers cannot be set.
    pub fn abandon(self, memory: &Memory, tid: i32, regs: Regs) -> Result<Regs, sys::Errno> {
        let Standing::Inside(sequence) = self else { return Ok(regs) };
        let regs = regs.at(sequence.abort);
        // In this order: at the abort address the kernel clears the name by itself, if we die here.
        ptrace::set_regs(tid, &regs)?;
        let _ = memory.write(sequence.named_at, &[0; 8]);
        Ok(regs)
    }
}

fn of_area(area: u64, expected: u32, pc: u64, read: impl Fn(u64, &mut [u8]) -> Option<()>) -> Standing {
    let named_at = area.saturating_add(RSEQ_CS);
    let mut word = [0u8; 8];
    let Some(()) = read(named_at, &mut word) else { return Standing::Unsound };
    let descriptor = u64::from_le_bytes(word);
    if descriptor == 0 {
        return Standing::Outside;
    }
    let mut bytes = [0u8; DESCRIPTOR];
    let Some(()) = read(descriptor, &mut bytes) else { return Standing::Unsound };
    let Some((range, abort)) = parse(&bytes) else { return Standing::Unsound };
    let mut signature = [0u8; 4];
    let is_signed = abort.checked_sub(4).and_then(|at| read(at, &mut signature)).is_some();
    if !is_signed || u32::from_le_bytes(signature) != expected {
        return Standing::Unsound;
    }
    if range.contains(&pc) { Standing::Inside(Sequence { named_at, abort }) } else { Standing::Outside }
}

/// The addresses of the sequence and where it is aborted to, if the kernel would take the descriptor.
fn parse(bytes: &[u8; DESCRIPTOR]) -> Option<(Range<u64>, u64)> {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
    let version = word(0) as u32;
    let (start, len, abort) = (word(8), word(16), word(24));
    let end = start.checked_add(len)?;
    let is_user = start < USER_END && end < USER_END && abort < USER_END;
    (version == 0 && is_user && !(start..end).contains(&abort)).then_some((start..end, abort))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNATURE: u32 = 0x5305_3053;

    /// An area at 0x100 that names a descriptor at 0x200 with these words; the signature stands before 0x500.
    fn standing(words: [u64; 4], named: u64, pc: u64) -> Standing {
        of_area(0x100, SIGNATURE, pc, |at, into| {
            let all: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            match at {
                0x108 => into.copy_from_slice(&named.to_le_bytes()),
                0x200 => into.copy_from_slice(&all),
                0x4fc => into.copy_from_slice(&SIGNATURE.to_le_bytes()),
                0x5fc => into.copy_from_slice(&[0; 4]),
                _ => return None,
            }
            Some(())
        })
    }

    #[test]
    fn a_thread_is_inside_from_the_start_to_the_commit() {
        let words = [0, 0x400, 0x20, 0x500];
        let inside = Standing::Inside(Sequence { named_at: 0x108, abort: 0x500 });
        for (pc, expected) in [
            (0x3ff, Standing::Outside),
            (0x400, inside),
            (0x41f, inside),
            (0x420, Standing::Outside),
            (0x500, Standing::Outside),
        ] {
            assert_eq!(standing(words, 0x200, pc), expected, "{pc:#x}");
        }
        assert_eq!(standing(words, 0, 0x410), Standing::Outside, "no sequence is named");
    }

    #[test]
    fn what_the_kernel_would_not_take_is_unsound() {
        for words in [
            [1, 0x400, 0x20, 0x500],
            [0, 0x400, 0x20, 0x410],
            [0, 0x400, u64::MAX, 0x500],
            [0, 0x400, USER_END, 0x500],
            [0, 0x400, 0x20, 0x600],
            [0, 0x400, 0x20, 2],
            [0, 0x400, 0x20, 1 << 63],
        ] {
            assert_eq!(standing(words, 0x200, 0x410), Standing::Unsound, "{words:x?}");
        }
        assert_eq!(standing([0, 0x400, 0x20, 0x500], 0x300, 0x410), Standing::Unsound);
    }
}
