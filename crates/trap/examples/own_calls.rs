//! A program that counts calls of one of its own functions, by a jump where one fits.

use probe::{Consumer, Regs, Verdict};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use trap::{Config, Engine, Vectors};

#[inline(never)]
extern "C" fn work(n: u64) -> u64 {
    std::hint::black_box(n) + 1
}

/// Adds to a number: what a signal handler may do, without a vector register.
#[derive(Default)]
struct Count(AtomicU64);

impl Consumer for Count {
    fn handler(&self, _: &mut Regs, _: &mut u64) -> Verdict {
        self.0.fetch_add(1, Relaxed);
        Verdict::Continue
    }
}

fn main() -> Result<(), trap::ProbeError> {
    const CALLS: u64 = 100_000;
    let engine = Engine::start(Config::default())?;
    for (name, config) in [
        ("breakpoint", Config { jumps: false, ..Config::default() }),
        ("jump, all vector registers saved", Config::default()),
        ("jump, the low halves saved", Config { vectors: Vectors::Low, ..Config::default() }),
    ] {
        engine.configure(config);
        let count = Arc::new(Count::default());
        // SAFETY: a function begins there, nobody reads its code, and the consumer only adds.
        let probe = unsafe { engine.probe(work as *const () as u64, count.clone()) }?;
        let start = sys::thread_cpu_ns();
        let sum: u64 = (0..CALLS).map(|n| work(n)).sum();
        let ns = (sys::thread_cpu_ns() - start) / CALLS;
        let way = probe.way();
        engine.remove([probe]);
        assert_eq!((sum, work(1), count.0.load(Relaxed)), (CALLS * (CALLS + 1) / 2, 2, CALLS));
        println!("{name}: {ns} ns a call, {way:?}");
    }
    println!("{:?}", engine.counts());
    Ok(())
}
