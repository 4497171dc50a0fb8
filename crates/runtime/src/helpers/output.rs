//! Records.
//!
//! For:     programs.
//! State:   a ring for each CPU in the arena.
//! Context: hit; signal included: a handler that interrupts a record takes the next.
//! Keeps:   O1 a record is there whole, with the time at which it was begun, or counted as lost.
//! Checked: tests/helpers.

use crate::around::{Around, errno};
use crate::cell::Adder;
use core::ptr::NonNull;
use map::{Error, Ring, Way};
use wire::maps::HANDLES;
use wire::maps::HelperError::{BadArgument, RecordTooLong, RingFull};

/// The handle of the ring.
const RING: u64 = 2;

impl Around<'_> {
    /// (ring, from, length, flags) -> 0 or an error.
    pub fn ring_output<A: Adder>(&self, ring: u64, from: u64, len: u64) -> u64 {
        let head = core::ptr::from_ref(self.maps) as u64;
        let bytes = self.bytes(from, len).filter(|_| ring == head + HANDLES as u64 + 8 * RING);
        let Some(bytes) = bytes else { return self.refused(BadArgument, errno::EINVAL) };
        let stamp = self.monotonic();
        let Some(ring) = self.own_ring::<A>() else { return self.refused(RingFull, errno::ENOSPC) };
        let mut room = match ring.try_reserve(8 + bytes.len()) {
            Ok(room) => room,
            Err(Error::TooLong) => return self.refused(RecordTooLong, errno::E2BIG),
            Err(_) => return self.refused(RingFull, errno::ENOSPC),
        };
        room.write_stamped(stamp, bytes);
        room.submit();
        0
    }

    #[inline(always)]
    fn own_ring<A: Adder>(&self) -> Option<Ring> {
        // A thread's area tells at once; where it has none a segment does, in 15 ns (2026-11). Any ring would do.
        let cpu = match self.way::<A>().cpu() {
            cpu if u64::from(cpu) < self.maps.cpus => u64::from(cpu),
            _ => u64::from(percpu::cpu_by_segment()),
        };
        if cpu >= self.maps.cpus || self.maps.ring_bytes == 0 {
            return None;
        }
        let at = core::ptr::from_ref(self.maps) as u64 + self.maps.rings + cpu * self.maps.ring_stride;
        // SAFETY: the controller laid a ring of this size out there for each CPU, and it stays for the hit.
        Some(unsafe { Ring::at(NonNull::new(at as *mut u8)?, self.maps.ring_bytes as usize) })
    }
}
