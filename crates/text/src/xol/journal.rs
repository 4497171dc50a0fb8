//! What happened to slots, in order.
//!
//! For:     tests: a processor whose caches see stores shows no stale instruction, so the order is looked at instead.
//! State:   a list of events, in test builds alone.
//! Context: target; takes a lock.
//! Keeps:   J1 events of one slot are in the order in which they happened.
//! Checked: `tests::no_slot_is_entered_between_its_write_and_its_synchronisation`.

use super::Sync;

/// Something that happened to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Its first bytes were written.
    Wrote {
        /// The slot.
        number: usize,
        /// How many.
        len: usize,
    },
    /// They were synchronised.
    Synchronised {
        /// The slot.
        number: usize,
        /// How many.
        len: usize,
        /// In which way.
        by: Sync,
    },
    /// A thread was sent there.
    Entered {
        /// The slot.
        number: usize,
    },
}

/// The events so far.
#[cfg(any(test, feature = "broken"))]
#[derive(Debug, Default)]
pub struct Journal(std::sync::Mutex<Vec<Event>>);

#[cfg(any(test, feature = "broken"))]
impl Journal {
    pub(super) fn add(&self, event: Event) {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).push(event);
    }

    /// Takes all.
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(|e| e.into_inner()))
    }
}
