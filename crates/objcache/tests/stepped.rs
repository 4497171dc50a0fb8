//! Objects in a thread that is single-stepped: no sequence of it commits, and it gets and gives the same (V4).
#![cfg(all(target_arch = "x86_64", not(miri)))]

#[path = "../../percpu/tests/stepped/driver.rs"]
mod driver;

use objcache::{Index, ObjectCache, View};

const TURNS: usize = 3;
/// Objects at a time, if there are as many.
const HELD: usize = 20;
/// Instructions, several times over.
const STEPS_MOST: u32 = 500_000;

#[test]
fn objects_are_taken_and_given_back() {
    let cache = ObjectCache::builder(56).build().unwrap();
    let view = cache.view();
    // Whatever is found out at the first call is found out here.
    let first = view.alloc().unwrap();
    // SAFETY: taken above.
    unsafe { view.free(first) };
    driver::stepped(STEPS_MOST, || {
        let mut held = [None; HELD];
        let mut turn = |give: fn(View<'_>, Index)| {
            held.iter_mut().for_each(|slot| *slot = view.alloc());
            let got = held.iter().flatten().count();
            held.iter_mut().filter_map(Option::take).for_each(|index| give(view, index));
            got
        };
        // SAFETY: taken before, and known to nobody else.
        let free = |view: View<'_>, index| unsafe { view.free(index) };
        // SAFETY: as above.
        let free_rcu = |view: View<'_>, index| unsafe { view.free_rcu(index) };
        // What is given back is there again.
        let got = turn(free);
        got > 1 && (0..TURNS).all(|_| turn(free) == got) && turn(free_rcu) == got
    });
}
