//! `torture mem`: the object cache under everything that may happen to it.
//!
//! For:     finding an object with two owners, one reused under a reader, or one that is lost.
//! State:   one world per run: a cache, slots that readers look at, counters.
//! Context: control; the handler runs wherever a signal finds a thread.
//! Keeps:   Q1 a run that passes has seen no error, and each part do its work.
//!          Q2 every broken variant fails (`tests/broken_mem.rs`).
//! Checked: `tests/broken_mem.rs`.

mod mortal;
mod options;
mod world;

use options::Options;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};
use world::{RUN, World};

/// Runs the torture; the exit status: 0 passed, 1 failed, 2 bad arguments.
pub fn mem_main(args: &[String]) -> i32 {
    match options::parse(args) {
        Ok(Some(options)) => run(options),
        Ok(None) => 0,
        Err(error) => {
            eprintln!("nanoprobe: {error}\n  try      nanoprobe torture mem --help");
            2
        }
    }
}

fn run(options: Options) -> i32 {
    println!("mem-torture: --- Start of test: {options}");
    let world: &'static World = match World::new(options) {
        Ok(world) => Box::leak(Box::new(world)),
        Err(error) => {
            eprintln!("nanoprobe: {error}");
            return 2;
        }
    };
    world::install(world);
    let mut threads: Vec<_> =
        (0..world.options.threads).map(|me| thread::spawn(move || world::churn(world, me as u64))).collect();
    threads.push(thread::spawn(move || world::send_signals(world)));
    threads.push(thread::spawn(move || mortal::run(world)));
    let end = Instant::now() + world.options.run_for;
    while Instant::now() < end && !world.has_error() {
        world.phase.store(RUN, Relaxed);
        let phase = Instant::now() + world.options.stutter;
        while Instant::now() < phase.min(end) && !world.has_error() {
            thread::sleep(Duration::from_millis(5));
        }
        world.pause();
        world.check();
    }
    world.stop();
    for thread in threads {
        if thread.join().is_err() {
            world.error("a thread panicked");
        }
    }
    report(world)
}

/// The verdict; the exit status.
fn report(world: &World) -> i32 {
    let c = &world.counts;
    let parts = [
        ("allocs", &c.allocs),
        ("retired", &c.retired),
        ("reads", &c.reads),
        ("handlers", &c.handlers),
        ("audits", &c.audits),
        ("destroyed", &c.destroyed),
    ];
    let idle: Vec<_> = parts.iter().filter(|(_, n)| n.load(Relaxed) == 0).map(|(name, _)| *name).collect();
    let errors = c.errors.load(Relaxed);
    if let Some(first) = world.first_error() {
        println!("mem-torture: first error: {first}");
    }
    let is_broken = world.options.broken.is_some();
    if !idle.is_empty() && !is_broken {
        println!("mem-torture: parts that did nothing, so that nothing is known: {}", idle.join(" "));
    }
    let good = errors == 0 && (idle.is_empty() || is_broken);
    let counts: Vec<_> = parts.iter().map(|(name, n)| format!("{name}={}", n.load(Relaxed))).collect();
    println!(
        "{} broken={} seed={} seconds={:.1} errors={errors} {} failed={} peak_kb={}",
        if good { "PASS" } else { "FAIL" },
        world.options.broken.map_or("none", |(name, _)| name),
        world.options.seed,
        world.started.elapsed().as_secs_f64(),
        counts.join(" "),
        c.failed.load(Relaxed),
        c.peak_bytes.load(Relaxed) / 1024,
    );
    i32::from(!good)
}
