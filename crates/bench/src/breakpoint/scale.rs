//! Is the cost the same for any number of tasks, CPUs and threads?
//!
//! For:     `bench breakpoint scale`, `bench seeds hwbp`.
//! State:   none.
//! Context: control.
//! Keeps:   Q1 what is compared is measured in turns within one run; processor time of the measuring thread
//!          counts, since the machine may be shared.
//! Checked: by use.

use super::Options;
use crate::Summary;
use crate::pin::{self, Gate};
use hwbp::{Accounts, EngineKind, Machine, Place, Request, Reservation};
use std::io::{Error, Write};
use std::time::Instant;

/// Operations between two looks at the clock.
const LOOP: u64 = 20_000;
/// Rounds over all cases; the median counts.
const ROUNDS: usize = 15;
/// Tasks that the measured operations go to. The others only are there.
const WORKING: u64 = 64;

/// Accounts with tasks in them.
struct Case<'a> {
    name: String,
    accounts: &'a Accounts,
    tasks: u64,
    working: u64,
    /// Processor time per reserve and release.
    ns: Vec<f64>,
}

pub(super) fn run(options: &Options, out: &mut impl Write) -> std::io::Result<()> {
    for engine in &options.engines {
        flat(*engine, options, out)?;
        pair(*engine, options, out)?;
    }
    Ok(())
}

fn fill(accounts: &Accounts, tasks: u64) -> std::io::Result<Vec<Reservation<'_>>> {
    let one = |task| accounts.reserve(Request::data(Place::Task(task)));
    (0..tasks).map(one).collect::<Result<_, _>>().map_err(|e| Error::other(e.to_string()))
}

/// `LOOP` times reserve and release.
fn pass(accounts: &Accounts, first: u64, working: u64, seed: &mut u64) {
    for _ in 0..LOOP {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let task = first + (*seed >> 33) % working;
        let held = accounts.reserve(Request::data(Place::Task(task)));
        drop(held.expect("a task has three slots left"));
    }
}

/// Rows over tasks and over CPUs.
pub(super) fn flat(engine: EngineKind, options: &Options, out: &mut impl Write) -> std::io::Result<()> {
    let most = if engine == EngineKind::Histogram { 100_000 } else { 1_000 };
    let by_tasks: Vec<u64> =
        [1, 10, 100, 1_000, 10_000, 100_000].into_iter().filter(|n| *n <= most).collect();
    let by_cpus = [2u32, 16, 256, 1_024];
    let machines: Vec<Accounts> = by_tasks
        .iter()
        .map(|_| options.cpus)
        .chain(by_cpus)
        .map(|cpus| Accounts::new(Machine::x86_64(cpus), engine))
        .collect();
    let mut cases = Vec::new();
    let mut held = Vec::new();
    for (accounts, tasks) in machines.iter().zip(by_tasks.iter().copied().chain([100; 4])) {
        held.push(fill(accounts, tasks)?);
        let name = format!("{} tasks, {} CPUs", tasks, accounts.machine().cpus);
        cases.push(Case { name, accounts, tasks, working: tasks.min(WORKING), ns: Vec::new() });
    }
    if let Some(last) = by_tasks.last().filter(|_| engine == EngineKind::Histogram) {
        let accounts = &machines[by_tasks.len() - 1];
        let name = format!("{last} tasks, all in use in random order");
        cases.push(Case { name, accounts, tasks: *last, working: *last, ns: Vec::new() });
    }
    let mut seed = 1;
    for _ in 0..ROUNDS {
        for case in &mut cases {
            pass(case.accounts, 0, case.working, &mut seed);
            let before = sys::thread_cpu_ns();
            pass(case.accounts, 0, case.working, &mut seed);
            case.ns.push((sys::thread_cpu_ns() - before) as f64 / LOOP as f64);
        }
    }
    for case in &cases {
        let s = Summary::of(&case.ns);
        row(&format!("{}: {}", engine.name(), case.name), case.tasks, &s, options, out)?;
    }
    drop(cases);
    drop(held);
    match machines.iter().any(Accounts::is_used) {
        true => Err(Error::other("something is held after all was released")),
        false => Ok(()),
    }
}

fn row(name: &str, tasks: u64, s: &Summary, options: &Options, out: &mut impl Write) -> std::io::Result<()> {
    let Summary { median, min, .. } = s;
    if options.json {
        return writeln!(
            out,
            "{{\"name\":\"breakpoint-scale {name}\",\"median_ns\":{median:.1},\"min_ns\":{min:.1},\"tasks\":{tasks}}}"
        );
    }
    writeln!(out, "{name:<60} {median:>10.1} ns/op  (least {min:.1})")
}

/// One thread against two on different tasks.
pub(super) fn pair(engine: EngineKind, options: &Options, out: &mut impl Write) -> std::io::Result<()> {
    let accounts = Accounts::new(Machine::x86_64(options.cpus), engine);
    let held = fill(&accounts, 2 * WORKING)?;
    let (mut one, mut two, mut one_cpu, mut two_cpu) = (vec![], vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        let (wall, cpu) = threads(&accounts, 1);
        one.push(wall);
        one_cpu.push(cpu);
        let (wall, cpu) = threads(&accounts, 2);
        two.push(wall);
        two_cpu.push(cpu);
    }
    drop(held);
    let ratio = Summary::of(&two).median / Summary::of(&one).median;
    let (cost, cost2) = (Summary::of(&one_cpu).median, Summary::of(&two_cpu).median);
    let by_cpu = 2.0 * cost / cost2;
    if options.json {
        let name = engine.name();
        return writeln!(
            out,
            "{{\"name\":\"breakpoint-pair {name}\",\"ratio_wall\":{ratio:.3},\"ratio_cpu\":{by_cpu:.3},\
             \"one_ns\":{cost:.1},\"two_ns\":{cost2:.1}}}"
        );
    }
    writeln!(
        out,
        "{}: two threads on different tasks {ratio:.2}x one by wall time, {by_cpu:.2}x by processor time \
         ({cost:.1} and {cost2:.1} ns/op)",
        engine.name()
    )
}

/// Operations per second of all threads together, and processor nanoseconds per operation.
fn threads(accounts: &Accounts, n: usize) -> (f64, f64) {
    const PASSES: u64 = 10;
    let gate = Gate::new(n);
    let results: Vec<(f64, f64)> = std::thread::scope(|s| {
        let all: Vec<_> = (0..n)
            .map(|i| {
                let gate = &gate;
                s.spawn(move || {
                    pin::pin_to(i % pin::online());
                    let mut seed = i as u64;
                    let first = i as u64 * WORKING;
                    pass(accounts, first, WORKING, &mut seed);
                    gate.pass();
                    let (start, before) = (Instant::now(), sys::thread_cpu_ns());
                    (0..PASSES).for_each(|_| pass(accounts, first, WORKING, &mut seed));
                    let cpu = (sys::thread_cpu_ns() - before) as f64;
                    (start.elapsed().as_secs_f64(), cpu / (PASSES * LOOP) as f64)
                })
            })
            .collect();
        all.into_iter().map(|t| t.join().expect("a thread does not panic")).collect()
    });
    let rate = results.iter().map(|(s, _)| (PASSES * LOOP) as f64 / s).sum();
    (rate, results.iter().map(|(_, cpu)| cpu).sum::<f64>() / n as f64)
}
