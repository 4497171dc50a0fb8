//! The table: from a CPU number to that CPU's copy.
//!
//! For:     trampolines and agent finding the copy of the CPU they run on.
//! State:   private pages, one table for each code region, wiped by the kernel in a forked child.
//! Context: hit, control.
//! Keeps:   T1 an entry is 0 or the address of a whole copy; 0 means: take the slow way.
//!          T2 in a forked child every entry and `alive` are 0.
//!          T3 there is an entry for any 16 bits that may be read as a CPU number, and that of a thread without one is 0.
//! Checked: testkit `lives`, `threads`.

/// Byte offset of the address of the shared copy; 0 in a forked child.
pub const ALIVE: usize = 0;
/// Byte offset of the name of our memory, which the kernel is given by its address.
pub const NAME: usize = 16;
/// Byte offset of CPU 0's entry. The entries of the CPU numbers -1 and -2, which the kernel and glibc use for a thread
/// that has no rseq (yet), are those of their lower 16 bits, and 0 like all above the last CPU.
pub const CPU0: usize = 64;
/// Bytes of a table. Only the pages with entries that are not 0, and those read, take memory.
pub const LEN_BYTES: usize = CPU0 + (1 << 16) * 8;
