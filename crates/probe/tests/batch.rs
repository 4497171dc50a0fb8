//! Registrations by thousands: one call of each space, exact results, and one grace period.

mod kit;

use kit::*;
use probe::*;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

fn wanted(w: &World, offsets: impl IntoIterator<Item = u64>, count: &Arc<Count>) -> Vec<Wanted> {
    let one = |offset| Wanted { file: w.file.clone(), offset, ref_ctr: None, consumer: count.clone() };
    offsets.into_iter().map(one).collect()
}

#[test]
fn a_thousand_registrations_ask_each_space_once_to_place_and_once_to_remove() {
    let w = world(Config::default());
    let child = w.space.fork(SPACE + 1);
    w.registry.add_space(child.clone());
    let count = Count::new();
    let all: Vec<_> = w.registry.register_all(wanted(&w, (0..1000).map(|n| n * 16), &count));
    let all: Vec<Registered> = all.into_iter().map(Result::unwrap).collect();
    assert_eq!([w.space.batches.load(Relaxed), child.batches.load(Relaxed)], [1, 1]);
    assert_eq!(w.space.breakpoints(), (0..1000).map(|n| BASE + n * 16).collect::<Vec<_>>());
    assert_eq!(child.breakpoints(), w.space.breakpoints());
    (0..1000).for_each(|n| assert_eq!(w.hit(n * 16), Hit::Handled));
    assert_eq!(count.hits(), 1000);
    // Another consumer keeps its place.
    let other = w.register(16, &Count::new());
    let before = w.registry.domains().map(|d| d.map_or(0, |d| d.block().periods()));
    assert_eq!(w.registry.unregister_all_nosync(all), Left::default());
    w.registry.unregister_sync();
    let after = w.registry.domains().map(|d| d.map_or(0, |d| d.block().periods()));
    assert!(after[0] - before[0] <= 1 && after[1] - before[1] <= 1, "{before:?} {after:?}");
    assert_eq!([w.space.batches.load(Relaxed), child.batches.load(Relaxed)], [2, 2]);
    assert_eq!((w.space.breakpoints(), child.breakpoints()), (vec![BASE + 16], vec![BASE + 16]));
    drop(other);
    assert_eq!(w.registry.stats().installed, w.registry.stats().removed);
}

#[test]
fn registrations_that_fail_are_those_whose_breakpoint_was_not_placed() {
    let w = world(Config::default());
    let count = Count::new();
    w.space.installs_left.store(3, Relaxed);
    // Two at one place share its breakpoint, and its failure; one is refused before any space is asked.
    let mut some = wanted(&w, [0, 16, 32, 48, 48], &count);
    some.push(Wanted { file: w.file.clone(), offset: 1 << 40, ref_ctr: None, consumer: count.clone() });
    let results = w.registry.register_all(some);
    w.space.installs_left.store(u64::MAX, Relaxed);
    let good: Vec<bool> = results.iter().map(Result::is_ok).collect();
    assert_eq!(good, [true, true, true, false, false, false]);
    for result in &results[3..5] {
        assert!(matches!(result, Err(RegisterError::Install(InstallError::Space(SpaceError(14))))));
    }
    assert!(matches!(results[5], Err(RegisterError::BeyondEnd { .. })));
    assert_eq!(w.space.breakpoints(), [BASE, BASE + 16, BASE + 32]);
    assert_eq!(
        [0, 16, 32, 48].map(|offset| w.hit(offset)),
        [Hit::Handled, Hit::Handled, Hit::Handled, Hit::Unknown]
    );
    assert_eq!(count.hits(), 3);
    let all: Vec<_> = results.into_iter().flatten().collect();
    assert_eq!(w.registry.unregister_all_nosync(all), Left::default());
    w.registry.unregister_sync();
    assert!(w.space.breakpoints().is_empty());
    assert!(w.registry.find(FILE, 0).is_none(), "nothing is left");
}

#[test]
fn a_breakpoint_that_cannot_be_removed_is_told_and_its_uprobe_stays() {
    let w = world(Config::default());
    let count = Count::new();
    let all = w.registry.register_all(wanted(&w, [0, 16, 32], &count)).into_iter().flatten();
    w.space.removes_left.store(1, Relaxed);
    assert_eq!(w.registry.unregister_all_nosync(all), Left { breakpoints: 2 });
    w.registry.unregister_sync();
    w.space.removes_left.store(u64::MAX, Relaxed);
    assert_eq!(w.space.breakpoints(), [BASE + 16, BASE + 32]);
    assert_eq!(count.hits(), 0);
    assert!(w.registry.find(FILE, 16).is_some() && w.registry.find(FILE, 0).is_none());
}
