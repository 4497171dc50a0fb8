//! The work of `perf bench breakpoint thread` on virtual tasks.
//!
//! For:     `bench breakpoint thread`, `bench seeds hwbp`.
//! State:   the accounts of one run.
//! Context: control.
//! Keeps:   B1 (see breakpoint).
//! Checked: tests of breakpoint.

use super::{Options, print_thread};
use hwbp::{Accounts, EngineKind, Machine, Place, Refused, Request};
use std::io::{Error, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

pub(super) fn run(options: &Options, out: &mut impl Write) -> std::io::Result<()> {
    for engine in &options.engines {
        let seconds = one(*engine, options)?;
        print_thread(&format!("{}, {} virtual CPUs", engine.name(), options.cpus), options, seconds, out)?;
    }
    Ok(())
}

/// Seconds of one run.
pub(super) fn one(engine: EngineKind, options: &Options) -> std::io::Result<f64> {
    let accounts = Accounts::new(Machine::x86_64(options.cpus), engine);
    let (batches, reserved) = (AtomicU64::new(0), AtomicU64::new(0));
    // perf's program has the breakpoints itself; its threads inherit them.
    let own: Result<Vec<_>, Refused> =
        (0..options.breakpoints).map(|_| accounts.reserve(Request::data(Place::Task(0)))).collect();
    let own = own.map_err(|e| Error::other(e.to_string()))?;
    let start = Instant::now();
    let results: Vec<Result<(), Refused>> = std::thread::scope(|s| {
        let workers: Vec<_> = (0..options.parallel)
            .map(|worker| {
                let (accounts, batches, reserved) = (&accounts, &batches, &reserved);
                s.spawn(move || {
                    let mut next = (u64::from(worker) + 1) << 32;
                    while batches.fetch_add(1, Relaxed) < u64::from(options.repeat) {
                        let n = batch(accounts, options, &mut next)?;
                        reserved.fetch_add(n, Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().map(|w| w.join().expect("a worker does not panic")).collect()
    });
    let seconds = start.elapsed().as_secs_f64();
    results.into_iter().collect::<Result<(), Refused>>().map_err(|e| Error::other(e.to_string()))?;
    drop(own);
    let wanted = u64::from(options.repeat) * u64::from(options.threads) * u64::from(options.breakpoints);
    if reserved.load(Relaxed) != wanted || accounts.is_used() {
        let got = reserved.load(Relaxed);
        return Err(Error::other(format!("{got} breakpoints reserved, {wanted} wanted, or some are left")));
    }
    Ok(seconds)
}

/// Makes a batch of tasks, each with its breakpoints, and ends them; how many were reserved.
fn batch(accounts: &Accounts, options: &Options, next: &mut u64) -> Result<u64, Refused> {
    let mut held = Vec::with_capacity((options.threads * options.breakpoints) as usize);
    for _ in 0..options.threads {
        *next += 1;
        for _ in 0..options.breakpoints {
            held.push(accounts.reserve(Request::data(Place::Task(*next)))?);
        }
    }
    Ok(held.len() as u64)
}
