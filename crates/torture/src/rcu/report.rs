//! What `torture rcu` prints.
//!
//! For:     people who know the kernel's report, and scripts that read the last line.
//! State:   none.
//! Context: control.
//! Keeps:   P1 the last line begins with PASS or FAIL, and agrees with the exit status.
//! Checked: `tests/broken.rs`.
//! Source:  `rcu_torture_stats_print` of the kernel.

use super::world::{Counters, NONE, PIPE, World};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

fn list(counters: &[AtomicU64]) -> String {
    counters.iter().map(|n| n.load(Relaxed).to_string()).collect::<Vec<_>>().join(" ")
}

/// The lines of one interval.
pub fn interval(world: &World) {
    let c = &world.counters;
    let get = |n: &AtomicU64| n.load(Relaxed);
    let stopped = world.stop.load(Relaxed);
    let version = get(&c.version);
    let current = world.current.load(Relaxed);
    let rtc = if current == NONE { "none".to_string() } else { current.to_string() };
    println!(
        "rcu-torture: rtc: {rtc} {}: {version} tfle: {} rta: {} rtaf: {} rtf: {} rtmbe: {} rtmbkf: {}/{} rtbe: {} \
         cookie: {}/{} leaks: {} flood: {}/{} edge: {}/{}/{} barrier: {}/{}:{} read-exits: {} ndowns: {} nups: {} \
         nmigrates: {} nfake: {} warnings: {}",
        if stopped { "VER" } else { "ver" },
        u8::from(world.free.lock().expect("not poisoned").is_empty()),
        get(&c.allocs),
        get(&c.alloc_fails),
        get(&c.frees),
        get(&c.mbtest_errors),
        get(&c.mailbox_fails),
        get(&c.mailbox_tries),
        get(&c.barrier_errors),
        get(&c.cookie_errors),
        get(&c.cookie_checks),
        get(&c.leaks),
        get(&c.flood_errors),
        get(&c.flood_callbacks),
        get(&c.edge_errors),
        get(&c.edge_reads),
        get(&c.edge_periods),
        get(&c.barrier_good),
        get(&c.barrier_tries),
        get(&c.barrier_errors),
        get(&c.read_exits),
        get(&c.downs),
        get(&c.ups),
        get(&c.migrates),
        get(&c.fake_writes),
        get(&c.warnings)
    );
    let alarm = if world.errors() > 0 { "!!! " } else { "" };
    println!("rcu-torture: {alarm}Reader Pipe: {}", list(&c.pipe));
    println!("rcu-torture: Reader Batch: {}", list(&c.batch));
    println!("rcu-torture: Free-Block Circulation: {}", list(&c.circulation));
    println!("rcu-torture: {}", world.subject.domain.stats());
    if !stopped && version == world.last_version.swap(version, Relaxed) {
        world.warn(&format!("Writer stall: version {version} since the last report"));
    }
}

/// The verdict; the exit status.
pub fn end(world: &World) -> i32 {
    interval(world);
    let c = &world.counters;
    let idle: Vec<_> = idle_parts(world).into_iter().collect();
    let domain = world.subject.domain;
    println!(
        "rcu-torture: End-test grace-period state: {} total-gps={}",
        domain.stats(),
        domain.block().periods()
    );
    let errors = world.errors();
    let first = world.first_error.lock().expect("not poisoned").clone();
    let warned = world.warned.lock().expect("not poisoned").first().cloned();
    let good = errors == 0 && idle.is_empty();
    println!("rcu-torture: --- End of test: {}: {}", if good { "SUCCESS" } else { "FAILURE" }, world.options);
    if let Some(first) = first.or(warned) {
        println!("rcu-torture: first error: {first}");
    }
    if !idle.is_empty() {
        println!("rcu-torture: parts that did nothing, so that nothing is known: {}", idle.join(" "));
    }
    println!("{}", last_line(world, c, good, errors));
    i32::from(!good)
}

fn last_line(world: &World, c: &Counters, good: bool, errors: u64) -> String {
    let get = |n: &AtomicU64| n.load(Relaxed);
    let beyond: u64 = c.pipe[2..].iter().map(&get).sum();
    format!(
        "{} flavour={} broken={} seed={} seconds={:.1} errors={errors} reads={} gps={} pipe>1={beyond} mbtest={} \
         mailbox={} cookie={} barrier={} flood={} leaks={} edge={} warnings={}",
        if good { "PASS" } else { "FAIL" },
        world.options.flavour,
        world.options.broken.map_or("none", |(name, _)| name),
        world.options.seed,
        world.started.elapsed().as_secs_f64(),
        c.pipe.iter().map(&get).sum::<u64>(),
        world.subject.domain.block().periods(),
        get(&c.mbtest_errors),
        get(&c.mailbox_fails),
        get(&c.cookie_errors),
        get(&c.barrier_errors),
        get(&c.flood_errors),
        get(&c.leaks),
        get(&c.edge_errors),
        get(&c.warnings)
    )
}

/// Parts that were on and did nothing; only asked of runs long enough for each.
fn idle_parts(world: &World) -> Vec<&'static str> {
    let (o, c) = (&world.options, &world.counters);
    let mut parts = vec![
        ("readers", &c.pipe[0]),
        ("replaced-while-read", &c.pipe[1]),
        ("writer", &c.version),
        ("circulation", &c.circulation[PIPE]),
        ("cookies", &c.cookie_checks),
        ("mailbox", &c.mailbox_tries),
    ];
    if o.n_barrier_cbs > 0 {
        parts.push(("barrier", &c.barrier_tries));
    }
    if o.fwd_progress > 0 {
        parts.push(("flood", &c.flood_callbacks));
    }
    if o.read_exit_burst > 0 {
        parts.push(("read-exits", &c.read_exits));
    }
    if world.subject.is_on_block() && !o.edge.is_zero() {
        parts.push(("edge", &c.edge_periods));
    }
    if world.subject.has_updown() && o.n_up_down > 0 {
        parts.push(("updown", &c.ups));
    }
    let long_enough = o.run_for.as_secs() >= 20 && o.broken.is_none();
    parts.into_iter().filter(|(_, n)| long_enough && n.load(Relaxed) == 0).map(|(name, _)| name).collect()
}
