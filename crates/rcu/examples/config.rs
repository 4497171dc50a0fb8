//! A configuration that is read all the time and replaced now and then.

use rcu::{Domain, Flavour};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

struct Config {
    limit: u64,
    twice: u64,
}

fn config(limit: u64) -> *mut Config {
    Box::into_raw(Box::new(Config { limit, twice: 2 * limit }))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let domain = Domain::builder("config").flavour(Flavour::Lite).build()?;
    let current = AtomicPtr::new(config(0));
    let stop = AtomicBool::new(false);
    let reads: u64 = std::thread::scope(|s| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                s.spawn(|| {
                    let mut reads = 0u64;
                    while !stop.load(Ordering::Relaxed) {
                        let _section = domain.lite();
                        // SAFETY: what was replaced is freed after a grace period of this domain.
                        let seen = unsafe { &*current.load(Ordering::Acquire) };
                        assert_eq!(seen.twice, 2 * seen.limit);
                        reads += 1;
                    }
                    reads
                })
            })
            .collect();
        for limit in 1..=200 {
            let old = current.swap(config(limit), Ordering::AcqRel);
            // SAFETY: made by `into_raw`, and no new reader finds it.
            let old = unsafe { Box::from_raw(old) };
            if limit % 2 == 0 {
                domain.call(move || drop(old)); // later, on the domain's worker
            } else {
                domain.synchronize(); // now
                drop(old);
            }
        }
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().map(|r| r.join().expect("a reader does not panic")).sum()
    });
    domain.barrier();
    // SAFETY: made by `into_raw`; no reader is left.
    drop(unsafe { Box::from_raw(current.into_inner()) });
    println!("{reads} reads; {:?}", domain.stats());
    domain.close()?;
    Ok(())
}
