//! Which programs a thread is inside of.
//!
//! For:     a hit in a signal handler that came while the thread was in the same program: it is skipped.
//! State:   a place for each thread, found by its pointer, in private pages of the first region that a fork wipes.
//! Context: hit, signal included: a handler that comes between two of these instructions leaves a place as it found it.
//! Keeps:   I1 a place is written by the thread whose pointer it has, and by nobody else.
//!          I2 who has none is not held up: a thread whose pointer is not known, and one that finds four others in its places.
//!          I3 a thread that left a hit by a jump out of a handler is not held up for ever: after [`PATIENCE`] skipped hits in a
//!             row its place is clean. Nothing but the skipping rests on a place: a run has memory of its own in any case.
//! Checked: session `a_signal_inside_a_program_does_not_begin_it_again`.

use crate::cell::Adder;
use core::sync::atomic::Ordering;
use wire::{Inside, ProgramDesc, SiteDesc};

/// So many hits in a row are skipped.
const PATIENCE: u64 = 1000;
/// Places that a thread looks at for its own.
const LOOKS: u64 = 4;

/// How a thread is in a program.
pub(crate) enum Entered<'a> {
    /// Nobody knows of it.
    Unseen,
    /// The bit stands in this place.
    Seen(&'a Inside),
    /// It was in it already.
    Nested,
}

/// Notes that the thread enters this program.
///
/// # Safety
/// As for [`Adder::add`]; `desc.inside` must be 0 or the address of [`Inside::COUNT`] places that live as long as this code.
#[inline(always)]
pub(crate) unsafe fn enter<'a, A: Adder>(desc: &ProgramDesc, site: &SiteDesc, copy: u64) -> Entered<'a> {
    // SAFETY: passed on from the caller.
    let me = unsafe { A::pointer(copy, site) };
    if me == 0 || desc.inside == 0 {
        return Entered::Unseen;
    }
    // SAFETY: passed on from the caller.
    let Some(place) = (unsafe { place(desc.inside, me) }) else { return Entered::Unseen };
    // All of it is this thread's own (I1): a signal is ordered with it by itself.
    let programs = place.programs.load(Ordering::Relaxed);
    if programs & desc.bit == 0 {
        place.programs.store(programs | desc.bit, Ordering::Relaxed);
        return Entered::Seen(place);
    }
    nested(place)
}

#[cold]
fn nested(place: &Inside) -> Entered<'_> {
    let skipped = place.skipped.load(Ordering::Relaxed) + 1;
    place.skipped.store(skipped, Ordering::Relaxed);
    if skipped <= PATIENCE {
        return Entered::Nested;
    }
    place.skipped.store(0, Ordering::Relaxed);
    Entered::Seen(place)
}

impl Entered<'_> {
    /// Address of the thread's place; 0 if it has none.
    #[inline(always)]
    pub fn place(&self) -> u64 {
        if let Entered::Seen(place) = self { core::ptr::from_ref::<Inside>(place) as u64 } else { 0 }
    }

    /// Notes that the thread leaves the program.
    #[inline(always)]
    pub fn leave(self, desc: &ProgramDesc) {
        if let Entered::Seen(place) = self {
            let programs = place.programs.load(Ordering::Relaxed);
            place.programs.store(programs & !desc.bit, Ordering::Relaxed);
            place.skipped.store(0, Ordering::Relaxed);
        }
    }
}

/// The thread's place.
///
/// # Safety
/// At `first` there must be [`Inside::COUNT`] places.
#[inline(always)]
unsafe fn place<'a>(first: u64, me: u64) -> Option<&'a Inside> {
    // Pointers of threads differ in the middle.
    let hash = (me >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    // SAFETY: passed on from the caller.
    let place = unsafe { numbered(first, hash) };
    if place.owner.load(Ordering::Relaxed) == me {
        return Some(place);
    }
    // SAFETY: passed on from the caller.
    unsafe { find(first, me, hash) }
}

/// A thread's first hit, or one that does not have the first of its places.
///
/// # Safety
/// As for [`place`].
#[cold]
#[inline(never)]
unsafe fn find<'a>(first: u64, me: u64, hash: u64) -> Option<&'a Inside> {
    for look in 0..LOOKS {
        // SAFETY: passed on from the caller.
        let place = unsafe { numbered(first, hash + look) };
        // Orders nothing: what is in a place that nobody has is 0, and stays so until its owner writes.
        match place.owner.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Some(place),
            Err(owner) if owner == me => return Some(place),
            Err(_) => {}
        }
    }
    None
}

/// # Safety
/// As for [`place`].
#[inline(always)]
unsafe fn numbered<'a>(first: u64, number: u64) -> &'a Inside {
    let place = (first + number % Inside::COUNT as u64 * size_of::<Inside>() as u64) as *const Inside;
    // SAFETY: one of those that are there (contract); accessed as atomics alone.
    unsafe { &*place }
}
