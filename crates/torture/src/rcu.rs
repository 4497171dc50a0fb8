//! `torture rcu`: the kernel's rcutorture for the flavours of `rcu`.
//!
//! For:     finding a reader that a grace period did not wait for.
//! State:   one world per run: a pool of elements, the subject, the counters.
//! Context: control.
//! Keeps:   T1 a run that passes has seen no error of the set, and has seen each part do its work.
//!          T2 every broken variant fails within 30 s (`tests/broken.rs`).
//! Checked: `tests/broken.rs`.
//! Source:  kernel `kernel/rcu/rcutorture.c` (v7.0) for method, parameters and report. Departs: the gap
//!          between fetching the rank and counting can be stretched, an edge test looks for stores that
//!          are late, the seed is printed.

mod edge;
mod exits;
mod fakewriter;
mod flood;
mod options;
mod reader;
mod report;
mod subject;
mod updown;
mod world;
mod writer;

pub(crate) use options::duration;

use options::Options;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};
use world::World;

/// Runs the torture; the exit status: 0 passed, 1 failed, 2 bad arguments.
pub fn rcu_main(args: &[String]) -> i32 {
    match options::parse(args) {
        Ok(Some(options)) => run(options),
        Ok(None) => 0,
        Err(error) => {
            eprintln!("nanoprobe: {error}\n  try      nanoprobe torture rcu --help");
            2
        }
    }
}

fn run(options: Options) -> i32 {
    println!("rcu-torture: --- Start of test: {options}");
    let world: &'static World = match World::new(options) {
        Ok(world) => Box::leak(Box::new(world)),
        Err(error) => {
            eprintln!("nanoprobe: {error}");
            return 2;
        }
    };
    ::rcu::set_reporter(|report| world.warn(&report.to_string()));
    println!("rcu-torture: Start-test grace-period state: {}", world.subject.domain.stats());
    let end = Instant::now() + world.options.run_for;
    let threads = start(world);
    direct(world, end);
    world.stop.store(true, SeqCst);
    for thread in threads {
        let name = thread.thread().name().unwrap_or("?").to_string();
        if thread.join().is_err() {
            world.warn(&format!("thread {name} panicked"));
        }
    }
    world.settle();
    report::end(world)
}

/// What a thread of the test does; the number is its stream of random numbers.
type Job = fn(&'static World, u64);

/// Starts every thread of the test.
fn start(world: &'static World) -> Vec<thread::JoinHandle<()>> {
    let options = &world.options;
    let mut jobs: Vec<(String, Job)> = Vec::new();
    jobs.push(("writer".into(), writer::run));
    jobs.extend((0..options.nreaders).map(|i| (format!("reader{i}"), reader::run as Job)));
    jobs.extend((0..options.nfakewriters).map(|i| (format!("fakewriter{i}"), fakewriter::run as _)));
    jobs.extend((0..options.n_barrier_cbs.min(1)).map(|_| ("barrier".into(), flood::barriers as _)));
    jobs.extend((0..options.fwd_progress.min(1)).map(|_| ("flood".into(), flood::run as _)));
    jobs.extend((0..options.read_exit_burst.min(1)).map(|_| ("exits".into(), exits::run as _)));
    if world.subject.has_updown() && options.n_up_down > 0 {
        jobs.push(("updown".into(), updown::run));
    }
    if !options.edge.is_zero() {
        jobs.push(("edge-reader".into(), edge::reader));
        jobs.push(("edge-writer".into(), edge::writer));
    }
    jobs.into_iter()
        .enumerate()
        .map(|(i, (name, job))| {
            let builder = thread::Builder::new().name(name);
            builder.spawn(move || job(world, i as u64)).expect("a thread for the test")
        })
        .collect()
}

/// Alternates the phases: edge test, run, pause with a look for leaks; prints the report.
fn direct(world: &'static World, end: Instant) {
    let options = &world.options;
    let mut next_report = Instant::now() + options.stat_interval;
    while Instant::now() < end && !world.should_stop_early() {
        if !options.edge.is_zero() {
            world.phase(world::EDGE, options.edge, end);
        }
        world.phase(world::RUN, options.stutter, end);
        world.phase(world::PAUSE, Duration::from_millis(20), end);
        world.settle();
        if Instant::now() >= next_report {
            next_report += options.stat_interval;
            report::interval(world);
        }
    }
}
