//! From an index to what lies there.
//!
//! For:     `stack`, `view`, the worker.
//! State:   the arena's address; in a model, the model's headers and trays.
//! Context: hit, signal, target.
//! Keeps:   nothing.
//! Checked: every test of the crate.

use crate::link::Link;
use crate::tray::{TRAY, Tray};

/// The memory of a model: loom's atomics cannot lie anywhere.
#[cfg(loom)]
pub struct Room {
    /// Headers, by index.
    pub links: Vec<Link>,
    /// Trays, by index.
    pub trays: Vec<Tray>,
}

/// Where objects lie: index to header.
#[derive(Clone, Copy)]
pub struct Items(pub *mut u8);

// SAFETY: an address; what lies there is shared through atomics, or owned by who took it.
unsafe impl Send for Items {}
// SAFETY: as above.
unsafe impl Sync for Items {}

impl Items {
    /// The header of an object, or of a tray.
    ///
    /// # Safety
    /// `index` must be that of an object or tray of the arena at this address, which must stay mapped.
    #[inline(always)]
    pub unsafe fn link<'a>(self, index: u32) -> &'a Link {
        #[cfg(not(loom))]
        {
            let at = self.0.wrapping_add((index & !TRAY) as usize * 8);
            // SAFETY: the caller says that a header lies there; it is all atomics.
            unsafe { &*at.cast::<Link>() }
        }
        #[cfg(loom)]
        {
            // SAFETY: the model's memory lives as long as the model.
            let room = unsafe { &*self.0.cast::<Room>() };
            let n = (index & !TRAY) as usize;
            if index & TRAY != 0 { room.trays[n].link() } else { &room.links[n] }
        }
    }

    /// A tray.
    ///
    /// # Safety
    /// `head` must be that of a tray of the arena at this address, which must stay mapped.
    #[inline(always)]
    pub unsafe fn tray<'a>(self, head: u32) -> &'a Tray {
        debug_assert!(head & TRAY != 0);
        #[cfg(not(loom))]
        {
            let at = self.0.wrapping_add((head & !TRAY) as usize * 8);
            // SAFETY: the caller says that a tray lies there; it is all atomics.
            unsafe { &*at.cast::<Tray>() }
        }
        #[cfg(loom)]
        {
            // SAFETY: the model's memory lives as long as the model.
            let room = unsafe { &*self.0.cast::<Room>() };
            &room.trays[(head & !TRAY) as usize]
        }
    }

    /// Lets the processor fetch an object's header and first bytes; any index will do.
    #[inline(always)]
    pub fn fetch(self, index: u32) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let at = self.0.wrapping_add(index as usize * 8);
            // SAFETY: a prefetch of whatever address reads nothing that anybody sees.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
            // SAFETY: as above.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(48).cast()) };
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = index;
    }
}
