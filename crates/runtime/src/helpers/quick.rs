//! What nearly every hit asks of a map: a key of one word, or of half of one, that is there.
//!
//! For:     `aggregate`, `map_lookup` and `lookup_or_init`, before they make themselves a picture of all that is around.
//! State:   none.
//! Context: hit.
//! Keeps:   Q1 `None` and false say nothing, and nothing was done: who gets them goes the whole way.
//!          Q2 as `around` R1: a key is read only in the program's frames, or among the constants.
//! Checked: tests/helpers/functions.rs: each of the three by its function, with every kind of wrong pointer, beside the whole way.

use crate::around::{Piece, form};
use crate::cell::Adder;
use core::sync::atomic::Ordering::Relaxed;
use map::Glance;
use wire::maps::MapsHead;
use wire::{Hit, ProgramDesc, SiteDesc, needs};

/// A map and a key.
pub(crate) struct Quick<'a> {
    hit: &'a Hit,
    glance: Glance<'a>,
    key: u64,
}

impl<'a> Quick<'a> {
    /// What a program means by these two; `below` lies below its frames.
    ///
    /// # Safety
    /// As for [`Around::of`](crate::Around).
    #[inline(always)]
    pub unsafe fn of(hit: &'a Hit, below: &u64, map: u64, key: u64) -> Option<Quick<'a>> {
        // SAFETY: a program's description lives as long as a list leads to it (contract).
        let desc = unsafe { &*(hit.program as *const ProgramDesc) };
        // SAFETY: the controller has put a head there (contract).
        let maps = unsafe { &*(desc.maps as *const MapsHead) };
        // SAFETY: the program's own maps (contract).
        let form = unsafe { form(maps, map) }?;
        // SAFETY: the form of a table that the controller laid out there, and that nobody changes.
        let glance = unsafe { Glance::at(form) };
        let len = u64::from(glance.key_bytes()?);
        let frames = Piece { start: core::ptr::from_ref(below) as u64, end: hit.regs };
        let constants = desc.maps + maps.constants;
        let constants = Piece { start: constants, end: constants + maps.constants_len };
        // Orders nothing: it never changes but for the children's bit.
        let is_own = desc.needs.load(Relaxed) & needs::CHECKED == 0;
        let may_read = is_own && frames.holds(key, len) || constants.holds(key, len);
        if !may_read {
            return None;
        }
        let key = match len {
            // SAFETY: the program's frames, or a constant, all four bytes of it.
            4 => u64::from(unsafe { (key as *const u32).read_unaligned() }),
            // SAFETY: the same, all eight.
            _ => unsafe { (key as *const u64).read_unaligned() },
        };
        Some(Quick { hit, glance, key })
    }

    #[inline(always)]
    fn way<A: Adder>(&self) -> A::Way {
        // SAFETY: a site's description lives as long as its trampoline can be run (contract of `of`).
        A::way(self.hit.copy, unsafe { &*(self.hit.site as *const SiteDesc) })
    }

    /// Takes a value into a count or a sum.
    #[inline(always)]
    pub fn add<A: Adder>(&self, value: u64) -> bool {
        self.glance.add(self.key, value, self.way::<A>())
    }

    /// The value's address.
    #[inline(always)]
    pub fn address<A: Adder>(&self) -> Option<u64> {
        let slot = self.glance.find(self.key)?;
        Some(self.glance.address(slot, self.way::<A>()).as_ptr() as u64)
    }
}
