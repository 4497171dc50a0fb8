//! References, revival, and how many grace periods a batch costs.

mod kit;

use kit::*;
use probe::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[test]
fn a_dying_uprobe_is_replaced_by_a_registration_of_its_place() {
    let w = world(Config::default());
    let first = w.register(8, &Count::new());
    w.drop_nosync(first);
    let count = Count::new();
    let _second = w.register(8, &count);
    assert_eq!(w.registry.stats().revived, 1);
    w.registry.unregister_sync();
    assert_eq!(w.hit(8), Hit::Handled);
    assert_eq!((count.hits(), w.registry.stats().freed), (1, 1));
}

#[test]
fn a_site_keeps_its_uprobe_without_consumers() {
    let w = world(Config::default());
    let probe = w.register(8, &Count::new()).probe();
    w.registry.unregister_sync();
    assert_eq!((probe.refs(), w.registry.stats().freed), (1, 0));
    assert_eq!(probe.hit(&mut Regs::default()), Hit::Handled);
    drop(probe);
    w.registry.unregister_sync();
    assert_eq!(w.registry.stats().freed, 1);
}

#[test]
fn a_leased_uprobe_is_freed_after_its_return() {
    for returns in Protection::ALL {
        let w = world(Config::new(Protection::Fast, returns));
        let mut stack = w.registry.return_stack();
        let count = Count::ret_only();
        let registered = w.register(8, &count);
        assert!(stack.enter(&registered.probe(), &mut Regs::default()).1);
        w.drop_nosync(registered);
        let registry = w.registry.clone();
        let waiter = std::thread::spawn(move || registry.unregister_sync());
        if returns != Protection::Refcount {
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waiter.is_finished(), "{returns}: the lease holds the wait");
        }
        assert_eq!(w.registry.stats().freed, 0, "{returns}");
        assert!(stack.leave(&mut Regs::default()));
        waiter.join().unwrap();
        w.registry.unregister_sync();
        assert_eq!((count.returns(), w.registry.stats().freed), (0, 1), "{returns}");
    }
}

#[test]
fn fifty_thousand_unregistrations_cost_one_grace_period_and_less_than_a_second_of_a_cpu() {
    const N: u64 = 50_000;
    let w = world(Config::new(Protection::Lite, Protection::Lite));
    let count = Count::new();
    let all: Vec<_> = (0..N).map(|i| w.register(i, &count)).collect();
    assert_eq!(w.space.breakpoints().len() as u64, N);
    let periods = || w.registry.domains().map(|d| d.unwrap().stats().periods);
    let (before, start, cpu) = (periods(), Instant::now(), sys::thread_cpu_ns());
    all.into_iter().for_each(|r| w.drop_nosync(r));
    w.registry.unregister_sync();
    let (took, after) = (Duration::from_nanos(sys::thread_cpu_ns() - cpu), periods());
    println!(
        "{N} unregistered in {:?}, {took:?} of a CPU, grace periods {before:?} to {after:?}",
        start.elapsed()
    );
    // On a busy machine the time of the clock is that of others.
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert!(after.iter().zip(before).all(|(a, b)| a - b <= 1), "{before:?} {after:?}");
    let stats = w.registry.stats();
    assert_eq!((stats.freed, stats.retired, w.space.breakpoints().len()), (N, 0, 0));
    assert_eq!(Arc::strong_count(&count), 1);
}
