//! What helpers cost, each in a loop of its own. By hand:
//! `cargo test --release -p nanoprobe-runtime --test helpers prices -- --ignored --nocapture`.

use crate::ground::{COUNTS, World};
use runtime::Rseq;
use std::time::Instant;
use wire::maps::{HANDLES, ReadWay};

/// Calls in a batch: a ring of a page holds so many records.
const BATCH: u32 = 50;

/// Nanoseconds of a call, the least of many batches.
fn least(mut call: impl FnMut() -> u64) -> f64 {
    let batches = (0..2000).map(|_| {
        let began = Instant::now();
        let sum = (0..BATCH).fold(0, |sum: u64, _| sum.wrapping_add(call()));
        std::hint::black_box(sum);
        began.elapsed().as_nanos() as f64 / f64::from(BATCH)
    });
    batches.fold(f64::MAX, f64::min)
}

#[test]
#[ignore = "a price, not a promise that this machine is quiet"]
fn prices() {
    let mut world = World::new(ReadWay::VmReadv);
    let ring = std::ptr::from_ref(world.head) as u64 + HANDLES as u64 + 16;
    for needs in [0, wire::needs::COUNTER] {
        *world.desc.needs.get_mut() = needs;
        world.maps.keep_clock();
        let (from, key) = (world.put(0, 1), world.put(8, 7));
        let by = if needs == 0 { "the kernel" } else { "the counter" };
        let around = world.around();
        let clock = least(|| around.monotonic());
        let mut taken = 0;
        let record = {
            let batches = (0..2000).map(|_| {
                let began = Instant::now();
                let around = world.around();
                let left = (0..BATCH).filter(|_| around.ring_output::<Rseq>(ring, from, 32) == 0).count();
                let took = began.elapsed();
                assert_eq!(left, BATCH as usize);
                taken += world.maps.take_records(u64::MAX).len();
                world.maps.keep_clock();
                took.as_nanos() as f64 / f64::from(BATCH)
            });
            batches.fold(f64::MAX, f64::min)
        };
        assert_eq!(taken, 2000 * BATCH as usize);
        let around = world.around();
        let add = least(|| around.aggregate::<Rseq>(world.handle(COUNTS), key, 0, 0));
        println!(
            "clock by {by} {clock:.1} ns; a record of 32 bytes {record:.1} ns; an add the whole way {add:.1} ns"
        );
    }
}
