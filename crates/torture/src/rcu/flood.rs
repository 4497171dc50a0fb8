//! Callbacks: barriers, and floods.
//!
//! For:     finding callbacks that are lost, run twice, or not waited for.
//! State:   counters of the threads.
//! Context: control.
//! Keeps:   F1 a flood has at most `OUTSTANDING` callbacks under way.
//! Checked: `tests/broken.rs` (forgotten-barrier, lost-callback).
//! Source:  `rcu_torture_barrier`, `rcu_torture_fwd_prog` of the kernel.

use super::world::{RUN, World};
use crate::rng::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Callbacks of a flood under way at a time; as the kernel's for SRCU.
const OUTSTANDING: u64 = 50_000;

/// Callbacks that must pass, and grace periods that they must take; as the kernel's.
const LEAST: (u64, u64) = (100, 3);

/// Each of N threads queues one callback, then a barrier: N must have run.
pub fn barriers(world: &'static World, _stream: u64) {
    let (domain, counters) = (world.subject.domain, &world.counters);
    let n = world.options.n_barrier_cbs as u64;
    while let Some(_working) = world.work(RUN) {
        while world.is_on(RUN) {
            let ran = Arc::new(AtomicU64::new(0));
            std::thread::scope(|s| {
                for _ in 0..n {
                    s.spawn(|| {
                        let ran = ran.clone();
                        domain.call(move || {
                            ran.fetch_add(1, SeqCst);
                        });
                    });
                }
            });
            counters.barrier_tries.fetch_add(1, Relaxed);
            domain.barrier();
            let seen = ran.load(SeqCst);
            if seen == n {
                counters.barrier_good.fetch_add(1, Relaxed);
            } else {
                world.error(&counters.barrier_errors, || {
                    format!("barrier returned after {seen} of {n} callbacks")
                });
            }
            // Between two barriers, some readers and grace periods of the others.
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Floods of callbacks: every one must run once, and enough of them.
pub fn run(world: &'static World, stream: u64) {
    let mut rng = Rng::new(world.options.seed, stream);
    let mut next = Instant::now() + Duration::from_secs(1);
    while let Some(working) = world.work(RUN) {
        if Instant::now() < next {
            drop(working);
            std::thread::sleep(Duration::from_millis(50));
            continue;
        }
        next = Instant::now() + world.options.fwd_progress_holdoff;
        flood(world, &mut rng);
    }
}

fn flood(world: &'static World, rng: &mut Rng) {
    let (domain, counters) = (world.subject.domain, &world.counters);
    let ran: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(0)));
    let before = domain.block().periods();
    let end = Instant::now() + Duration::from_millis(500 + rng.below(1000));
    let mut called = 0;
    while Instant::now() < end && world.is_on(RUN) {
        if called - ran.load(Relaxed) < OUTSTANDING {
            domain.call(move || {
                ran.fetch_add(1, Relaxed);
            });
            called += 1;
        } else {
            std::thread::yield_now();
        }
    }
    domain.barrier();
    let seen = ran.load(SeqCst);
    counters.flood_callbacks.fetch_add(seen, Relaxed);
    if seen != called {
        world.error(&counters.flood_errors, || format!("{seen} of {called} callbacks of a flood ran"));
    }
    let periods = domain.block().periods() - before;
    let whole = Instant::now() >= end;
    if whole && (seen < LEAST.0 || periods < LEAST.1) {
        world.error(&counters.flood_errors, || {
            format!("no progress in a flood: {seen} callbacks in {periods} grace periods")
        });
    }
}
