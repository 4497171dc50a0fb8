//! `torture xol`: out-of-line slots under more threads than slots.
//!
//! For:     `text::xol` and `trap`.
//! State:   one `World`.
//! Context: control.
//! Keeps:   T1 an honest run passes, a broken one fails within its time.
//!          T2 hits = calls of the functions whose probes stay.
//! Checked: `tests/xol.rs`.

mod options;
mod world;

use options::{Fault, Options, name};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use trap::{Config, Engine};
use world::World;

/// How much longer a run goes on until each of its parts has done something.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the torture; the exit status.
pub fn xol_main(args: &[String]) -> i32 {
    let options = match options::parse(args) {
        Ok(Some(options)) => options,
        Ok(None) => return 0,
        Err(error) => {
            eprintln!("nanoprobe: {error}\n  try      nanoprobe torture xol --help");
            return 2;
        }
    };
    println!("xol-torture: --- Start of test: {options}");
    match run(options) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("nanoprobe: torture xol: {error}");
            2
        }
    }
}

fn run(options: Options) -> Result<i32, trap::ProbeError> {
    let engine = Engine::start(Config {
        scheme: options.scheme,
        sync: options.sync,
        slot_limit: options.slots,
        always_slot: true,
        jumps: options.jumps,
        broken: options.broken.and_then(|b| if let Fault::Slots(how) = b.1 { Some(how) } else { None }),
        broken_poke: options.broken.and_then(|b| if let Fault::Poke(how) = b.1 { Some(how) } else { None }),
        ..Config::default()
    })?;
    let world: &'static World = Box::leak(Box::new(World::new(engine, options)?));
    world::watch_for_crashes(world);
    let probes = world.place()?;
    let workers: Vec<_> =
        (0..options.threads).map(|me| std::thread::spawn(move || world::work(world, me))).collect();
    let others = [
        std::thread::spawn(move || world::send_signals(world)),
        std::thread::spawn(move || world::churn(world)),
    ];
    watch(world, Instant::now() + options.run_for);
    // On a machine with other work, somebody's turn may come late.
    let patience = Instant::now() + PATIENCE;
    while !idle(&parts(world)).is_empty() && options.broken.is_none() && Instant::now() < patience {
        if world.is_wrong() || world.stuck.load(Relaxed) > 0 || world.hits.sum() >= options.hits {
            break;
        }
        watch(world, Instant::now() + Duration::from_millis(100));
    }
    world.over.store(true, Relaxed);
    if world.stuck.load(Relaxed) == 0 {
        for thread in workers.into_iter().chain(others) {
            if thread.join().is_err() {
                world.wrong.fetch_add(1, Relaxed);
            }
        }
        engine.remove(probes);
    }
    Ok(report(world))
}

/// Until the time is over, the hits are made, something is wrong, or nobody gets on.
fn watch(world: &World, end: Instant) {
    let (mut last, mut since) = (0, Instant::now());
    while Instant::now() < end && !world.is_wrong() && world.hits.sum() < world.options.hits {
        std::thread::sleep(Duration::from_millis(5));
        let calls = world.calls();
        if calls != last {
            (last, since) = (calls, Instant::now());
        } else if since.elapsed() > Duration::from_secs(4) {
            world.stuck.store(1, Relaxed);
            return;
        }
    }
}

/// A part of the test, and how often it did its work.
type Part = (&'static str, u64);

fn parts(world: &World) -> [Part; 6] {
    let (jumps, counts) = (world.options.jumps, world.engine.counts());
    [
        ("hits", world.hits.sum()),
        if jumps { ("jumps", world.jumped.load(Relaxed)) } else { ("written", counts.written) },
        if jumps { ("threads", world.options.threads as u64) } else { ("waits", counts.slept) },
        if jumps { ("handled", counts.handled) } else { ("settled", counts.settled) },
        ("signals", world.signals.load(Relaxed)),
        ("churned", world.churned.load(Relaxed)),
    ]
}

/// Those that did nothing.
fn idle(parts: &[Part]) -> Vec<&'static str> {
    parts.iter().filter(|part| part.1 == 0).map(|part| part.0).collect()
}

/// The verdict; the exit status.
fn report(world: &World) -> i32 {
    let options = &world.options;
    let (wrong, stuck, seen) =
        (world.wrong.load(Relaxed), world.stuck.load(Relaxed), world.seen.load(Relaxed));
    let (hits, calls) = (world.hits.sum(), world.calls());
    let counts = world.engine.counts();
    // Who is stuck leaves calls unfinished; and then there is an error already.
    let is_inexact = stuck == 0 && wrong == 0 && hits != calls;
    let parts = parts(world);
    let idle = idle(&parts);
    if !idle.is_empty() && options.broken.is_none() {
        println!("xol-torture: parts that did nothing, so that nothing is known: {}", idle.join(" "));
    }
    let in_slots = if stuck == 0 { world.engine.in_slots() } else { 0 };
    let is_good = wrong + stuck + seen == 0
        && !is_inexact
        && in_slots == 0
        && (idle.is_empty() || options.broken.is_some());
    let all: Vec<_> = parts.iter().map(|(name, n)| format!("{name}={n}")).collect();
    println!(
        "{} broken={} scheme={} seed={} calls={calls} wrong={wrong} stuck={stuck} seen={seen} in_slots={in_slots} {} \
         nested={} skipped={} seconds={:.1}",
        if is_good { "PASS" } else { "FAIL" },
        options.broken.map_or("none", |b| b.0),
        name(options.scheme),
        options.seed,
        all.join(" "),
        counts.nested,
        counts.skipped,
        world.started.elapsed().as_secs_f64(),
    );
    i32::from(!is_good)
}
