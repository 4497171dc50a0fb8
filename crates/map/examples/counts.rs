//! Counts by key and by size, as a handler would keep them.

use map::{Buckets, Flag, Hash, Histogram};

fn main() -> Result<(), map::Error> {
    let arena = objcache::Arena::private(16 << 20)?;
    let calls = Hash::builder(8, 8, 1000).build(&arena)?;
    let sizes = Histogram::create(&arena, Buckets::Log2)?;

    std::thread::scope(|s| {
        for thread in 0..4u64 {
            let (calls, sizes) = (&calls, &sizes);
            s.spawn(move || {
                for n in 0..10_000u64 {
                    // Busy says that another thread changes the same bucket: a handler would count that and go on.
                    while calls.add(&(n % 100).to_ne_bytes(), 1).is_err() {}
                    sizes.record(n * thread);
                }
            });
        }
    });

    assert_eq!(calls.len(), 100);
    assert_eq!(calls.sum(&7u64.to_ne_bytes())?, 400);
    calls.update(&7u64.to_ne_bytes(), &0u64.to_ne_bytes(), Flag::Exist)?;
    for bucket in (0..Buckets::Log2.count()).filter(|b| sizes.count(*b) > 0) {
        println!("{:>8} and more: {}", Buckets::Log2.from(bucket), sizes.count(bucket));
    }
    Ok(())
}
