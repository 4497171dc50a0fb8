//! What nearly every hit asks of a map: a key of one word, or of half of one, that is there.
//!
//! For:     helpers of maps, and of the thread's number, before they make themselves a picture of all that is around.
//! State:   none.
//! Context: hit.
//! Keeps:   Q1 `None` and false say nothing, and nothing was done: who gets them goes the whole way.
//! Checked: tests/helpers/functions.rs: each by its function, beside the whole way, and with handles of no map.

use crate::around::{errno, form, program_of};
use crate::cell::Adder;
use crate::helpers::world::counted_at_once;
use crate::trace::tid;
use core::sync::atomic::Ordering::Relaxed;
use map::{Glance, Near};
use wire::maps::{Clock, MapsHead};
use wire::{Hit, Inside, SiteDesc, needs};

/// A map and a key.
pub(crate) struct Quick<'a> {
    hit: &'a Hit,
    glance: Glance<'a>,
    key: u64,
}

impl<'a> Quick<'a> {
    /// What a program means by these two; the key is looked for where the thread has found one before, and nowhere else.
    ///
    /// # Safety
    /// As for [`Around::of`](crate::Around).
    #[inline(always)]
    pub unsafe fn near(hit: &'a Hit, map: u64, key: u64) -> Option<Quick<'a>> {
        // SAFETY: passed on from the caller.
        let quick = unsafe { Quick::in_chain(hit, map, key) }?;
        Some(Quick { glance: quick.glance.near_only(), ..quick })
    }

    /// What a program means by these two; the key is looked for in its chain too.
    ///
    /// # Safety
    /// As for [`Around::of`](crate::Around).
    #[inline(always)]
    pub unsafe fn in_chain(hit: &'a Hit, map: u64, key: u64) -> Option<Quick<'a>> {
        // SAFETY: a program's description lives as long as a list leads to it (contract).
        let desc = unsafe { program_of(hit) };
        // SAFETY: the controller has put a head there (contract).
        let maps = unsafe { &*(desc.maps as *const MapsHead) };
        // SAFETY: the program's own maps (contract).
        let form = unsafe { form(maps, map) }?;
        // SAFETY: the thread's place, which lives as long as this code (contract of `inside::enter`).
        let inside = (hit.inside != 0).then(|| unsafe { &*(hit.inside as *const Inside) });
        let near = Near::new(inside.map(|of| &of.near[Inside::near_of(map)]));
        // SAFETY: the form of a table that the controller laid out there, and that nobody changes.
        let glance = unsafe { Glance::at(form, near) };
        let key = cut(key, glance.key_bytes()?);
        Some(Quick { hit, glance, key })
    }

    #[inline(always)]
    fn way<A: Adder>(&self) -> A::Way {
        // SAFETY: a site's description lives as long as its trampoline can be run (contract of `in_chain`).
        A::way(self.hit.copy, unsafe { &*(self.hit.site as *const SiteDesc) })
    }

    /// Takes a value into a count or a sum.
    #[inline(always)]
    pub fn add<A: Adder>(&self, value: u64) -> bool {
        self.glance.add(self.key, value, self.way::<A>())
    }

    /// The value's address, 0 of a key that is gone.
    #[inline(always)]
    pub fn address<A: Adder>(&self) -> Option<u64> {
        let found = self.glance.find_or_gone(self.key)?;
        Some(found.map_or(0, |slot| self.glance.address(slot, self.way::<A>()).as_ptr() as u64))
    }

    /// The value's address, of a key that is there.
    #[inline(always)]
    pub fn address_there<A: Adder>(&self) -> Option<u64> {
        self.address::<A>().filter(|at| *at != 0)
    }

    /// Sets the value of a key that is there, or was.
    #[inline(always)]
    pub fn set<A: Adder>(&self, value: u64) -> bool {
        let value = self.glance.value_bytes().map(|len| cut(value, len));
        value.is_some_and(|value| self.glance.set(self.key, value, self.way::<A>()))
    }

    /// Removes a key that is there, or was: 0 or an error.
    #[inline(always)]
    pub fn remove<A: Adder>(&self) -> Option<u64> {
        let removed = self.glance.remove(self.key, self.way::<A>())?;
        Some(if removed { 0 } else { errno::ENOENT })
    }
}

/// A word, or its lower half.
#[inline(always)]
fn cut(word: u64, bytes: u32) -> u64 {
    if bytes == 4 { word & u64::from(u32::MAX) } else { word }
}

/// Process and thread, where both are known without a call.
///
/// # Safety
/// As for [`Adder::pointer`].
#[inline(always)]
pub(crate) unsafe fn process_and_thread<A: Adder>(hit: &Hit) -> Option<u64> {
    // SAFETY: a site's description lives as long as its trampoline can be run (contract).
    let site = unsafe { &*(hit.site as *const SiteDesc) };
    if hit.copy <= wire::COPY_NONE || site.process == 0 || !A::is_known(hit.copy, site) {
        return None;
    }
    // SAFETY: the controller has seen that the word is there in each thread whose block is known.
    let thread = unsafe { tid(site) };
    (thread != 0).then_some(u64::from(site.process) << 32 | thread)
}

/// Nanoseconds by the counter, where it may be read and one of the clock's spans is of now; `more` are added.
///
/// # Safety
/// As for [`Quick::in_chain`].
#[inline(always)]
pub(crate) unsafe fn clock(hit: &Hit, more: impl FnOnce(&Clock) -> u64) -> Option<u64> {
    // SAFETY: a program's description lives as long as a list leads to it (contract).
    let desc = unsafe { program_of(hit) };
    // SAFETY: the controller has put a head there (contract).
    let maps = unsafe { &*(desc.maps as *const MapsHead) };
    // Orders nothing: it never changes but for the children's bit.
    if desc.needs.load(Relaxed) & needs::COUNTER == 0 {
        return None;
    }
    counted_at_once(&maps.clock.spans).map(|ns| ns.wrapping_add(more(&maps.clock)))
}
