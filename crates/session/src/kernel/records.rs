//! Records of calls that the kernel's programs write.
//!
//! For:     `trace` of what the kernel probes.
//! State:   the kernel's ring; the stamps of calls that have begun.
//! Context: control, while hits write.
//! Keeps:   R1 stamps are the time stamp counter's, as those of the other rings: what comes from both can be sorted.
//!          R2 an exit has the very stamp of its entry.
//! Checked: testkit `kernel`.

use super::program::RECORD_LEN;
use crate::arch;
use crate::facts::calls::Event;
use crate::facts::descriptor::owned;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use sys::Errno;
use sys::ringbuf::Ring;

/// Bytes of the ring: 14,563 records with their headers.
const RING_LEN: u32 = 1 << 20;
/// Calls whose beginning is remembered.
const BEGUN_MAX: usize = 1 << 18;

/// The kernel's ring.
#[derive(Debug)]
pub(super) struct Records {
    fd: OwnedFd,
    reader: Mutex<Reader>,
}

#[derive(Debug)]
struct Reader {
    ring: Ring,
    /// When calls began: on the kernel's clock, and on ours.
    begun: HashMap<(u64, u32), (u64, u64)>,
}

impl Records {
    pub fn make() -> Result<Records, Errno> {
        let fd = owned(sys::bpf::create_ring(RING_LEN))?;
        let ring = Ring::map(fd.as_raw_fd(), RING_LEN)?;
        Ok(Records { fd, reader: Mutex::new(Reader { ring, begun: HashMap::new() }) })
    }

    pub fn fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Takes out what is there.
    pub fn take(&self, ns_per_tick: u64, take: &mut dyn FnMut(Event)) {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let Reader { ring, begun } = &mut *reader;
        // The two clocks now: what lies shortly back is as far back on both.
        let (ticks, ns) = (arch::ticks(), sys::monotonic_ns());
        let stamp_of = |at: u64| {
            let back = (u128::from(ns.saturating_sub(at)) << 32) / u128::from(ns_per_tick.max(1));
            ticks.saturating_sub(back as u64).saturating_add(later(at, ns, ns_per_tick))
        };
        ring.take(|bytes| {
            let Some(words) = words(bytes) else { return };
            let [at, place, what, tid, first, second, third, _] = words;
            let (stamp, values) = (stamp_of(at), [first, second, third]);
            let mut event = Event::from(wire::Event { stamp, place, what, tid, values });
            let key = (place, event.function);
            if event.is_exit {
                let entry = begun.remove(&key).filter(|(began, _)| *began == second);
                event.values[1] = entry.map_or(0, |(_, stamp)| stamp);
            } else {
                if begun.len() >= BEGUN_MAX {
                    begun.clear();
                }
                begun.insert(key, (at, event.stamp));
            }
            take(event);
        });
    }
}

/// Ticks by which `at` is later than the clock's reading: it was written since.
fn later(at: u64, ns: u64, ns_per_tick: u64) -> u64 {
    ((u128::from(at.saturating_sub(ns)) << 32) / u128::from(ns_per_tick.max(1))) as u64
}

fn words(bytes: &[u8]) -> Option<[u64; RECORD_LEN / 8]> {
    let (words, rest) = bytes.as_chunks::<8>();
    let words: &[[u8; 8]; RECORD_LEN / 8] = words.try_into().ok()?;
    rest.is_empty().then(|| words.map(u64::from_ne_bytes))
}
