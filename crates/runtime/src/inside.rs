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
use core::sync::atomic::{AtomicU16, Ordering};
use wire::{Inside, ProgramDesc, SiteDesc};

/// So many hits in a row are skipped.
const PATIENCE: u16 = 1000;
/// Places that a thread looks at for its own.
const LOOKS: u64 = 4;

/// How a thread is in a program.
pub(crate) enum Entered<'a> {
    /// Nobody knows of it.
    Unseen,
    /// The mark stands in this place.
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
    let mark = mark(place, desc);
    match mark.load(Ordering::Relaxed) {
        0 => {
            mark.store(1, Ordering::Relaxed);
            Entered::Seen(place)
        }
        skipped => nested(place, mark, skipped),
    }
}

/// Notes that a thread enters it that has the first of its places already, and is not inside: the place's address. `None`: nothing was
/// noted, ask [`enter`].
///
/// # Safety
/// As for [`enter`].
#[inline(always)]
pub(crate) unsafe fn enter_again<A: Adder>(desc: &ProgramDesc, site: &SiteDesc, copy: u64) -> Option<u64> {
    if desc.inside == 0 {
        return None;
    }
    // SAFETY: passed on from the caller.
    let me = unsafe { A::pointer(copy, site) };
    // SAFETY: passed on from the caller.
    let place = unsafe { numbered(desc.inside, hash(me)) };
    // A place that nobody has is owned by 0, which is no thread's pointer.
    let is_mine = me != 0 && place.owner.load(Ordering::Relaxed) == me;
    let mark = mark(place, desc);
    if !is_mine || mark.load(Ordering::Relaxed) != 0 {
        return None;
    }
    mark.store(1, Ordering::Relaxed);
    Some(core::ptr::from_ref(place) as u64)
}

#[cold]
fn nested<'a>(place: &'a Inside, mark: &AtomicU16, skipped: u16) -> Entered<'a> {
    let is_left_behind = skipped > PATIENCE;
    mark.store(if is_left_behind { 1 } else { skipped + 1 }, Ordering::Relaxed);
    if is_left_behind { Entered::Seen(place) } else { Entered::Nested }
}

/// Notes that the thread leaves the program.
///
/// # Safety
/// `place` must be that of [`Entered::Seen`], or 0.
#[inline(always)]
pub(crate) unsafe fn leave(place: u64, desc: &ProgramDesc) {
    if place == 0 {
        return;
    }
    // SAFETY: places live as long as this code (contract of `enter`).
    let place = unsafe { &*(place as *const Inside) };
    mark(place, desc).store(0, Ordering::Relaxed);
}

/// The thread's place.
///
/// # Safety
/// At `first` there must be [`Inside::COUNT`] places.
#[inline(always)]
unsafe fn place<'a>(first: u64, me: u64) -> Option<&'a Inside> {
    let hash = hash(me);
    // SAFETY: passed on from the caller.
    let place = unsafe { numbered(first, hash) };
    if place.owner.load(Ordering::Relaxed) == me {
        return Some(place);
    }
    // SAFETY: passed on from the caller.
    unsafe { find(first, me, hash) }
}

/// A program's own of a place.
#[inline(always)]
fn mark<'a>(place: &'a Inside, desc: &ProgramDesc) -> &'a AtomicU16 {
    &place.marks[desc.mark as usize % Inside::MARKS]
}

/// Pointers of threads differ in the middle.
#[inline(always)]
fn hash(me: u64) -> u64 {
    (me >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
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
