//! The table page: from a CPU number to that CPU's copy.
//!
//! For:     trampolines and agent finding the copy of the CPU they run on.
//! State:   one private page per code region, wiped by the kernel in a forked child.
//! Context: hit, control.
//! Keeps:   T1 an entry is 0 or the address of a whole copy; 0 means: take the slow way.
//!          T2 in a forked child every entry and `alive` are 0.
//! Checked: testkit `lives`.

/// Byte offset of the address of the shared copy; 0 in a forked child.
pub const ALIVE: usize = 0;
/// Byte offset of CPU 0's entry. The two words before it are the entries of the CPU numbers -1 and -2,
/// which the kernel and glibc use for a thread that has no rseq (yet): always 0.
pub const CPU0: usize = 32;

/// Bytes of a table for `cpus` CPUs.
pub const fn len_bytes(cpus: usize) -> usize {
    CPU0 + cpus * 8
}
