//! The table: from a CPU number to that CPU's copy.
//!
//! For:     trampolines and agent finding the copy of the CPU they run on.
//! State:   private pages, one table for each code region, wiped by the kernel in a forked child.
//! Context: hit, control.
//! Keeps:   T1 an entry is 0 or the address of a whole copy, with the rank of its readers in the low byte; 0 means: take
//!             the slow way.
//!          T2 in a forked child every entry and `alive` are 0.
//!          T3 there is an entry for any 16 bits that may be read as a CPU number, and that of a thread without one is 0.
//!          T4 a change of rank writes the low byte of an entry alone, so that no half of an address is ever read.
//! Checked: testkit `lives`, `threads`; text `a_hit_whose_rank_changes_inside_leaves_the_rank_that_it_entered` (T1, T4).

/// Byte offset of the address of the shared copy; 0 in a forked child.
pub const ALIVE: usize = 0;
/// Byte offset of the name of our memory, which the kernel is given by its address.
pub const NAME: usize = 16;
/// Byte offset of CPU 0's entry. The entries of the CPU numbers -1 and -2, which the kernel and glibc use for a thread
/// that has no rseq (yet), are those of their lower 16 bits, and 0 like all above the last CPU.
pub const CPU0: usize = 64;
/// In an entry beside the copy's address, which is a multiple of [`COPY_ALIGN`]: readers enter rank 1. As it is also the
/// distance of rank 1's counts from rank 0's, an entry with it leads to them.
pub const RANK: u64 = 16;
/// In what a hit keeps of the entry, never in an entry: the hit entered in a forked child.
pub const CHILD: u64 = 32;
/// What a copy's address is a multiple of; the bits below tell its readers' rank.
pub const COPY_ALIGN: u64 = 4096;
/// Bytes of a table. Only the pages with entries that are not 0, and those read, take memory.
pub const LEN_BYTES: usize = CPU0 + (1 << 16) * 8;
