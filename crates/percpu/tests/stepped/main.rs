//! Adds and lists in a thread that is single-stepped: what begins again when it is interrupted never ends there.
#![cfg(all(target_arch = "x86_64", not(miri)))]

mod driver;

use driver::stepped;
use percpu::{Counter, List, RseqOffset, list_pop, list_pop_all, list_push, list_push_all, possible_cpus};
use std::alloc::{Layout, alloc_zeroed};

const TURNS: u64 = 50;
/// Instructions from one stop to the end, several times over.
const STEPS_MOST: u32 = 100_000;

#[test]
fn an_add_ends_and_is_counted() {
    let counter = Counter::new();
    // Whatever is found out at the first add is found out here.
    counter.add(1);
    stepped(STEPS_MOST, || {
        (0..TURNS).for_each(|_| counter.add(3));
        counter.sum() == 1 + 3 * TURNS
    });
}

const SHIFT: u32 = 11;
/// The bound and the limit stand before the lists.
const BOUND: isize = -2048;
const CAP: usize = 500;

#[test]
fn an_operation_on_a_list_ends_and_has_done_nothing() {
    let size = (possible_cpus() as usize + 1) << SHIFT;
    let layout = Layout::from_size_align(size, 1 << SHIFT).unwrap();
    // SAFETY: it has a size.
    let head = unsafe { alloc_zeroed(layout) };
    let base = head.wrapping_add(1 << SHIFT);
    // SAFETY: of our own memory, which is aligned to it.
    unsafe { head.cast::<[u32; 2]>().write([possible_cpus(), CAP as u32]) };
    let offset = RseqOffset::detect();
    // SAFETY: every CPU below the bound has a list behind the bound, and only these functions change them.
    let push = |item| unsafe { list_push::<SHIFT, 0, BOUND>(offset, base, item) };
    // SAFETY: as above.
    let pop = || unsafe { list_pop::<SHIFT, 0, BOUND>(offset, base, base) };
    // SAFETY: as above.
    let push_all = |items: &[u32]| unsafe { list_push_all::<SHIFT, 0, BOUND>(offset, base, items) };
    // SAFETY: as above.
    let pop_all = |room: &mut [u32]| unsafe { list_pop_all::<SHIFT, 0, BOUND>(offset, base, room) };
    let len = || {
        let of = |cpu: u32| base.wrapping_add((cpu as usize) << SHIFT).cast::<List<CAP>>();
        // SAFETY: as above; zeros are an empty list.
        (0..possible_cpus()).map(|cpu| unsafe { &*of(cpu) }.len()).sum::<usize>()
    };
    // Lists on which all four could do something.
    while offset.is_some() && len() < 30 {
        push(1 + len() as u32);
    }
    let full = len();
    stepped(STEPS_MOST, || {
        let mut room = [0; 8];
        let done = |_| push(7) || pop().is_some() || push_all(&[8, 9]) > 0 || pop_all(&mut room) > 0;
        !(0..TURNS).any(done) && len() == full
    });
}
