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
/// Rounds of one thread against two.
const PAIRS: usize = 31;
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

/// What two threads do side by side.
#[derive(Clone, Copy)]
enum Work<'a> {
    /// Operations on different tasks of the same accounts.
    Shared(&'a Accounts),
    /// The same with accounts of their own: as if nothing were shared.
    Own([&'a Accounts; 2]),
    /// A loop that touches no memory: what two CPUs of this machine are worth.
    Empty,
}

/// Rates of one and of two threads, in turns.
#[derive(Default)]
struct Pair {
    wall: Vec<f64>,
    cpu: Vec<f64>,
    one_ns: Vec<f64>,
    two_ns: Vec<f64>,
}

impl Pair {
    /// One round: both rates, one after the other, and how they compare.
    fn round(&mut self, work: Work<'_>) {
        let (one, one_ns) = threads(work, 1);
        let (two, two_ns) = threads(work, 2);
        self.wall.push(two / one);
        self.cpu.push(2.0 * one_ns / two_ns);
        self.one_ns.push(one_ns);
        self.two_ns.push(two_ns);
    }

    /// Two threads' rate over one's, by wall time and by processor time: medians over the rounds.
    fn ratios(&self) -> (f64, f64) {
        (Summary::of(&self.wall).median, Summary::of(&self.cpu).median)
    }
}

/// One thread against two on different tasks, beside what cannot be beaten here: the same with nothing shared.
pub(super) fn pair(engine: EngineKind, options: &Options, out: &mut impl Write) -> std::io::Result<()> {
    let [shared, left, right] = [(); 3].map(|()| Accounts::new(Machine::x86_64(options.cpus), engine));
    let held = [&shared, &left, &right].map(|accounts| fill(accounts, 2 * WORKING));
    let (mut together, mut apart, mut empty) = (Pair::default(), Pair::default(), Pair::default());
    for _ in 0..PAIRS {
        together.round(Work::Shared(&shared));
        apart.round(Work::Own([&left, &right]));
        empty.round(Work::Empty);
    }
    drop(held.into_iter().collect::<Result<Vec<_>, _>>()?);
    let ((wall, cpu), (own_wall, own_cpu), (empty_wall, empty_cpu)) =
        (together.ratios(), apart.ratios(), empty.ratios());
    let (one_ns, two_ns) = (Summary::of(&together.one_ns).median, Summary::of(&together.two_ns).median);
    let name = engine.name();
    if options.json {
        return writeln!(
            out,
            "{{\"name\":\"breakpoint-pair {name}\",\"ratio_wall\":{wall:.3},\"ratio_cpu\":{cpu:.3},\
             \"one_ns\":{one_ns:.1},\"two_ns\":{two_ns:.1},\"own_ratio_wall\":{own_wall:.3},\
             \"own_ratio_cpu\":{own_cpu:.3},\"empty_ratio_wall\":{empty_wall:.3},\
             \"empty_ratio_cpu\":{empty_cpu:.3}}}"
        );
    }
    writeln!(
        out,
        "{name}: two threads against one, medians of {PAIRS} rounds in turns: by wall time, by processor time"
    )?;
    writeln!(
        out,
        "  on different tasks of the same accounts {wall:>14.2}x {cpu:>8.2}x  ({one_ns:.1} and {two_ns:.1} ns/op)"
    )?;
    writeln!(out, "  with accounts of their own {own_wall:>27.2}x {own_cpu:>8.2}x")?;
    writeln!(out, "  a loop without memory {empty_wall:>32.2}x {empty_cpu:>8.2}x")
}

/// Operations per second of all threads together, and processor nanoseconds per operation.
fn threads(work: Work<'_>, n: usize) -> (f64, f64) {
    const PASSES: u64 = 3;
    let gate = Gate::new(n);
    let results: Vec<(f64, f64)> = std::thread::scope(|s| {
        let all: Vec<_> = (0..n)
            .map(|i| {
                let gate = &gate;
                s.spawn(move || {
                    pin::pin_to(i % pin::online());
                    let mut seed = i as u64;
                    one_pass(work, i, &mut seed);
                    gate.pass();
                    let (start, before) = (Instant::now(), sys::thread_cpu_ns());
                    (0..PASSES).for_each(|_| one_pass(work, i, &mut seed));
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

/// `LOOP` operations by thread `i`.
fn one_pass(work: Work<'_>, i: usize, seed: &mut u64) {
    match work {
        Work::Shared(accounts) => pass(accounts, i as u64 * WORKING, WORKING, seed),
        Work::Own(accounts) => pass(accounts[i % 2], i as u64 * WORKING, WORKING, seed),
        // About as long as an operation.
        Work::Empty => (0..100 * LOOP).for_each(|_| *seed = std::hint::black_box(*seed).wrapping_mul(3)),
    }
}
