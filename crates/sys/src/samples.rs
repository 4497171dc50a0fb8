//! The reading side of the kernel's ring of samples.
//!
//! For:     probes of scripts that samples run.
//! State:   one mapping: a page about the ring, and its bytes.
//! Context: control. One reader.
//! Keeps:   S1 records come in the order in which they were written, each once; what found no room is counted.
//! Orderings: [`Samples::take`] loads the kernel's position with acquire and stores ours with release, as perf_event_open(2) asks.
//! Checked: session `samples_are_of_who_runs`; testkit `sampled`.

use crate::Errno;
use crate::mapping::SharedMapping;
use core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

const PAGE: usize = 4096;
/// Where the page about the ring has the kernel's position and ours.
const HEAD: usize = 1024;
const TAIL: usize = 1032;
/// Kinds of records.
const LOST: u32 = 2;
const COMM: u32 = 3;
const FORK: u32 = 7;
const SAMPLE: u32 = 9;
/// A record's header: kind, mode of the CPU, length.
const HEADER: usize = 8;
/// Bytes of a record that are read: no sample that was asked for is longer.
const RECORD_MAX: usize = 4096;
/// The CPU was in user mode.
const USER: u16 = 2;
const MODES: u16 = 7;

/// What the kernel tells, each as it wrote it; all but samples end in thread, time and CPU.
#[derive(Clone, Copy, Debug)]
pub enum Record<'a> {
    /// A sample, and whether it was taken in user mode.
    Sample(&'a [u8], bool),
    /// A thread has another name: process, thread, the name.
    Named(&'a [u8]),
    /// A thread was started: process, parent, thread, by which thread.
    Started(&'a [u8]),
}

/// The ring of an event that [`open_sampled`](crate::perf::open_sampled) made.
#[derive(Debug)]
pub struct Samples {
    mapping: SharedMapping,
    lost: u64,
}

impl Samples {
    /// Maps the ring of `event` with so many bytes, a power of two and at least a page.
    ///
    /// # Errors
    /// `EPERM` more memory than the user may lock.
    pub fn map(event: i32, bytes: usize) -> Result<Samples, Errno> {
        Ok(Samples { mapping: SharedMapping::of_file(event, PAGE + bytes)?, lost: 0 })
    }

    /// Gives each record that is there.
    pub fn take(&mut self, mut give: impl FnMut(Record<'_>)) {
        let mut record = [0u8; RECORD_MAX];
        let (mut at, end) = (self.position(TAIL).load(Relaxed), self.position(HEAD).load(Acquire));
        while at < end {
            let mut header = [0u8; HEADER];
            self.copy(at, &mut header);
            let [a, b, c, d, e, f, g, h] = header;
            let (kind, mode) = (u32::from_le_bytes([a, b, c, d]), u16::from_le_bytes([e, f]));
            let len = usize::from(u16::from_le_bytes([g, h])).max(HEADER);
            let body = &mut record[..(len - HEADER).min(RECORD_MAX)];
            self.copy(at + HEADER as u64, body);
            match kind {
                SAMPLE => give(Record::Sample(body, mode & MODES == USER)),
                COMM => give(Record::Named(body)),
                FORK => give(Record::Started(body)),
                // An event's number, and how many.
                LOST => {
                    self.lost +=
                        body.get(8..16).map_or(0, |n| n.iter().rev().fold(0, |s, b| s << 8 | u64::from(*b)))
                }
                _ => {}
            }
            at += len as u64;
            // What is read is the kernel's again.
            self.position(TAIL).store(at, Release);
        }
    }

    /// Samples that found no room.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    fn position(&self, at: usize) -> &AtomicU64 {
        // SAFETY: in the first page, aligned, mapped as long as the borrow; the kernel accesses it atomically.
        unsafe { &*self.mapping.base().wrapping_add(at).cast::<AtomicU64>() }
    }

    /// Copies what is in the ring from a position on; it may go on at the ring's beginning.
    fn copy(&self, from: u64, to: &mut [u8]) {
        let ring = self.mapping.len_bytes() - PAGE;
        for (n, byte) in to.iter_mut().enumerate() {
            let at = PAGE + ((from + n as u64) as usize & (ring - 1));
            // SAFETY: in bounds by the mask; between our position and the kernel's, where it does not write.
            *byte = unsafe { self.mapping.base().wrapping_add(at).read_volatile() };
        }
    }
}
