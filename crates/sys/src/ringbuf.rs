//! The reading side of the kernel's ring for programs.
//!
//! For:     records of accesses to watched data.
//! State:   two mappings of the ring: where we have read to; where the kernel has written to, and the bytes.
//! Context: control. One reader.
//! Keeps:   B1 records come in the order in which room was taken for them, whatever CPU wrote them, each once.
//!          B2 a record that is not finished is waited for, and so are those behind it.
//! Orderings: the kernel stores its position and each header with release, and reads ours with acquire.
//! Checked: testkit `watching` (records = accesses, over eight threads).
//! Source:  kernel `Documentation/bpf/ringbuf.rst`.

use crate::Errno;
use crate::mapping::SharedMapping;
use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

const PAGE: usize = 4096;
/// Bits of a record's header beside its length.
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
const HEADER_BYTES: u64 = 8;

/// A ring made by [`create_ring`](crate::bpf::create_ring), to read from.
#[derive(Debug)]
pub struct Ring {
    ours: SharedMapping,
    theirs: SharedMapping,
    len: u64,
}

impl Ring {
    /// Maps the ring behind `fd`, which has `len` bytes of data.
    ///
    /// # Errors
    /// `EPERM` or `EINVAL`: `fd` is no such ring.
    pub fn map(fd: i32, len: u32) -> Result<Ring, Errno> {
        let ours = SharedMapping::of_file(fd, PAGE)?;
        // The data is there twice, so that no record is in two parts.
        let theirs = SharedMapping::of_file_to_read(fd, PAGE, PAGE + 2 * len as usize)?;
        Ok(Ring { ours, theirs, len: u64::from(len) })
    }

    /// Gives each record that is finished by now to `give`; returns how many.
    pub fn take(&mut self, mut give: impl FnMut(&[u8])) -> usize {
        let (read, written) = (position(&self.ours), position(&self.theirs));
        let mut at = read.load(Relaxed);
        let (mut taken, end) = (0, written.load(Acquire));
        while at < end {
            let offset = PAGE + (at & (self.len - 1)) as usize;
            let header = self.theirs.base().wrapping_add(offset).cast::<AtomicU32>();
            // SAFETY: in bounds, since the kernel keeps `at` a multiple of 8 below the position that it wrote; mapped
            // as long as `self` lives; the kernel writes it atomically.
            let header = unsafe { &*header }.load(Acquire);
            if header & BUSY != 0 {
                break;
            }
            let len = header & !DISCARDED;
            if header & DISCARDED == 0 {
                let bytes = self.theirs.base().wrapping_add(offset + HEADER_BYTES as usize);
                // SAFETY: the record is in bounds (double mapping) and finished, so that the kernel writes nothing
                // there until our position is behind it, which is after this borrow.
                give(unsafe { core::slice::from_raw_parts(bytes, len as usize) });
                taken += 1;
            }
            at += (u64::from(len) + HEADER_BYTES).next_multiple_of(8);
            read.store(at, Release);
        }
        taken
    }
}

/// The first word of a mapping.
fn position(mapping: &SharedMapping) -> &AtomicU64 {
    // SAFETY: the mapping is at least a page, aligned to one, lives as long as the borrow, and the kernel accesses
    // this word atomically.
    unsafe { &*mapping.base().cast::<AtomicU64>() }
}
