//! Counted CPU sets (M1, M2).

use objcache::{CpuMasks, domain};
use std::time::Duration;

#[test]
fn bits_are_set_cleared_counted_and_combined() {
    let masks = CpuMasks::new().unwrap();
    let (a, b, c) = (masks.create().unwrap(), masks.create().unwrap(), masks.create().unwrap());
    assert!(a.is_empty() && a.first().is_none() && a.any_distribute().is_none());
    [0, 1, 65, 1023].into_iter().for_each(|cpu| a.set(cpu));
    [1, 2, 65].into_iter().for_each(|cpu| b.set(cpu));
    a.set(5000);
    assert_eq!((a.weight(), b.weight(), a.first(), b.first()), (4, 3, Some(0), Some(1)));
    assert!(c.and(&a, &b) && c.weight() == 2 && c.is_subset(&a) && c.is_subset(&b) && !a.is_subset(&b));
    c.or(&a, &b);
    assert_eq!(c.weight(), 5);
    c.xor(&a, &b);
    assert_eq!((c.weight(), c.test(0), c.test(1)), (3, true, false));
    c.copy_from(&a);
    assert!(c.equal(&a) && c.intersects(&b));
    assert!(c.test_and_clear(1023) && !c.test_and_clear(1023) && !c.test_and_set(1023));
    c.clear_all();
    c.set_all();
    assert_eq!((c.weight(), c.first_zero()), (percpu::possible_cpus().min(1024), None));
    c.clear(0);
    assert_eq!(c.first_zero(), Some(0));
    let seen: std::collections::HashSet<_> = (0..8).filter_map(|_| a.any_distribute()).collect();
    assert_eq!(seen.len(), 4, "every CPU has its turn");
}

#[test]
fn a_mask_lives_as_long_as_a_share_and_readers_see_it_a_little_longer() {
    let masks = CpuMasks::new().unwrap();
    let mask = masks.create().unwrap();
    mask.set(1);
    let other = mask.clone();
    drop(mask);
    assert!(other.test(1));
    let guard = domain().fast();
    let address = other.as_ptr();
    drop(other);
    // SAFETY: a reader that began before the release.
    assert!(unsafe { address.as_ref() }.test(1), "released masks stay for readers");
    // SAFETY: as above.
    assert!(unsafe { masks.acquire(address) }.is_none(), "and cannot be had again");
    drop(guard);
    assert!(masks.cache().drain(Duration::from_secs(10)));
    // SAFETY: nobody takes or gives now.
    assert_eq!(unsafe { masks.cache().audit() }.unwrap().live(), 0);
}
