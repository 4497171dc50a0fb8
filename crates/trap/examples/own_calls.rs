//! A program that counts calls of one of its own functions.

use probe::{Consumer, Regs, Verdict};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use trap::{Config, Engine};

#[inline(never)]
extern "C" fn work(n: u64) -> u64 {
    std::hint::black_box(n) + 1
}

/// Adds to a number: what a signal handler may do.
#[derive(Default)]
struct Count(AtomicU64);

impl Consumer for Count {
    fn handler(&self, _: &mut Regs, _: &mut u64) -> Verdict {
        self.0.fetch_add(1, Relaxed);
        Verdict::Continue
    }
}

fn main() -> Result<(), trap::ProbeError> {
    let engine = Engine::start(Config::default())?;
    let count = Arc::new(Count::default());
    // SAFETY: a function begins there, nobody reads its code, and the consumer only adds.
    let probe = unsafe { engine.probe(work as *const () as u64, count.clone()) }?;
    let sum: u64 = (0..1000).map(|n| work(n)).sum();
    engine.remove([probe]);
    assert_eq!((sum, work(1), count.0.load(Relaxed)), (500_500, 2, 1000));
    println!("{:?}", engine.counts());
    Ok(())
}
