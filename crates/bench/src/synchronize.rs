//! `bench synchronize`: how long each way of waiting for readers takes.
//!
//! For:     the grace-period figures of `rcu`, beside liburcu's in the same run.
//! State:   none.
//! Context: control.
//! Keeps:   R1 a reader that is said to be busy enters and leaves without pause, on a CPU of its own as far
//!          as there are enough. R2 the waits are counted, and so are the grace periods that they took.
//! Checked: tests below.

use crate::command;
use crate::pin::{self, Gate};
use crate::refscale::json;
use crate::{Summary, urcu};
use rcu::{Domain, Fast, Lite, Normal, Reader, Sigsafe, tasks};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

const HELP: &str = "\
nanoprobe bench synchronize [OPTION]... [NAME]...
Measures the microseconds of one wait, for each flavour and kind of wait, or for the flavours named.

  --count N       waits per row (200)
  --readers LIST  numbers of busy readers (0,1,8)
  --unregisters N callbacks that share a grace period (50000)
  -f json         one object per line, with name and median_ns

A busy reader enters and leaves in a loop. With more busy readers than CPUs, a reader that is preempted
inside is what the wait waits for: those rows show the scheduler.

Example: nanoprobe bench synchronize --readers 1 lite
";

struct Options {
    count: usize,
    readers: Vec<usize>,
    unregisters: usize,
    json: bool,
    only: Vec<String>,
}

/// One flavour: its domain, and the loop of its reader until told to stop.
struct Subject {
    name: &'static str,
    domain: fn() -> &'static Domain,
    read: fn(&Domain, &AtomicBool),
}

/// Runs the benchmark; the exit status.
pub fn synchronize_main(args: &[String]) -> i32 {
    command::carry_out("synchronize", parse(args), |options, out| run(&options, out))
}

fn parse(args: &[String]) -> Result<Option<Options>, lexopt::Error> {
    use lexopt::prelude::*;
    let mut options =
        Options { count: 200, readers: vec![0, 1, 8], unregisters: 50_000, json: false, only: Vec::new() };
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Long("count") => options.count = parser.value()?.parse::<usize>()?.max(1),
            Long("readers") => {
                let list = parser.value()?.string()?;
                let numbers: Result<_, std::num::ParseIntError> = list.split(',').map(str::parse).collect();
                options.readers = numbers.map_err(|e| format!("--readers {list}: {e}"))?;
            }
            Long("unregisters") => options.unregisters = parser.value()?.parse::<usize>()?.max(1),
            Short('f') => options.json = json(&parser.value()?.string()?)?,
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(None);
            }
            Value(name) => options.only.push(name.string()?),
            other => return Err(other.unexpected()),
        }
    }
    let names: Vec<_> = subjects().iter().map(|s| s.name.to_string()).chain(urcu_names()).collect();
    if let Some(unknown) = options.only.iter().find(|name| !names.contains(name)) {
        return Err(format!("no flavour is called {unknown}; there are: {}", names.join(" ")).into());
    }
    Ok(Some(options))
}

fn urcu_names() -> impl Iterator<Item = String> {
    urcu::FLAVOURS.iter().map(|flavour| format!("liburcu-{flavour}"))
}

fn leaked<F: Reader>() -> &'static Domain {
    let builder = Domain::builder("synchronize").flavour(F::FLAVOUR).checked(false);
    Box::leak(Box::new(builder.build().expect("a domain")))
}

fn read_on<F: Reader>(domain: &Domain, stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        for _ in 0..64 {
            drop(domain.read::<F>());
        }
    }
}

fn subjects() -> Vec<Subject> {
    vec![
        Subject { name: "lite", domain: leaked::<Lite>, read: read_on::<Lite> },
        Subject { name: "fast", domain: leaked::<Fast>, read: read_on::<Fast> },
        Subject { name: "normal", domain: leaked::<Normal>, read: read_on::<Normal> },
        Subject { name: "sigsafe", domain: leaked::<Sigsafe>, read: read_on::<Sigsafe> },
        Subject {
            name: "tasks-holdout",
            domain: tasks::holdout::domain,
            read: |_, stop| {
                while !stop.load(Relaxed) {
                    (0..64).for_each(|_| drop(tasks::holdout::read()));
                }
            },
        },
        Subject {
            name: "tasks-fast",
            domain: tasks::on_fast::domain,
            read: |_, stop| {
                while !stop.load(Relaxed) {
                    (0..64).for_each(|_| drop(tasks::on_fast::read()));
                }
            },
        },
    ]
}

/// A way to wait, by name.
type Way = (&'static str, fn(&Domain));

/// The ways to wait (table).
const WAYS: [Way; 4] = [
    ("synchronize", |d| d.synchronize()),
    ("expedited", |d| d.synchronize_expedited()),
    ("call+barrier", |d| {
        d.call(|| {});
        d.barrier();
    }),
    ("poll", |d| {
        let cookie = d.start_poll();
        while !d.poll_state(cookie) {
            std::hint::spin_loop();
        }
    }),
];

fn run(options: &Options, out: &mut impl Write) -> std::io::Result<()> {
    if !options.json {
        writeln!(out, "synchronize: count={} on {} CPUs", options.count, pin::online())?;
        writeln!(
            out,
            "{:<32} {:>7} {:>9} {:>9} {:>9} {:>9}",
            "Wait(us)", "readers", "min", "median", "mean", "p99"
        )?;
    }
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|n| n == name);
    for &readers in &options.readers {
        for subject in subjects().iter().filter(|s| wanted(s.name)) {
            let domain = (subject.domain)();
            for (way, wait) in WAYS {
                let results =
                    with_readers(subject, domain, readers, || timed(options.count, || wait(domain)));
                print_row(&format!("{} {way}", subject.name), readers, &results, options, out)?;
            }
        }
        for flavour in urcu::FLAVOURS.iter().filter(|f| wanted(&format!("liburcu-{f}"))) {
            let name = format!("liburcu-{flavour}");
            match urcu::synchronize(flavour, readers, options.count) {
                Ok(results) => print_row(&format!("{name} synchronize"), readers, &results, options, out)?,
                Err(why) => eprintln!("nanoprobe: {name} left out: {why}"),
            }
        }
    }
    if wanted("lite") {
        unregisters(options, out)?;
    }
    Ok(())
}

fn timed(count: usize, mut wait: impl FnMut()) -> Vec<f64> {
    wait();
    (0..count)
        .map(|_| {
            let start = Instant::now();
            wait();
            start.elapsed().as_nanos() as f64
        })
        .collect()
}

/// Runs `work` on CPU 0 while `readers` readers are busy on the others, as far as there are others.
fn with_readers<T: Send>(
    subject: &Subject,
    domain: &Domain,
    readers: usize,
    work: impl FnOnce() -> T + Send,
) -> T {
    let stop = AtomicBool::new(false);
    let gate = Gate::new(readers + 1);
    std::thread::scope(|s| {
        for i in 0..readers {
            let (stop, gate) = (&stop, &gate);
            s.spawn(move || {
                pin::pin_to((i + 1) % pin::online());
                gate.pass();
                (subject.read)(domain, stop);
            });
        }
        let waiter = s.spawn(|| {
            pin::pin_to(0);
            gate.pass();
            work()
        });
        let result = waiter.join().expect("a waiter does not panic");
        stop.store(true, Relaxed);
        result
    })
}

fn print_row(
    name: &str,
    readers: usize,
    results: &[f64],
    options: &Options,
    out: &mut impl Write,
) -> std::io::Result<()> {
    let s = Summary::of(results);
    if options.json {
        let (n, Summary { median, mean, sd, min, p99 }) = (results.len(), s);
        return writeln!(
            out,
            "{{\"name\":\"{name} r{readers}\",\"median_ns\":{median:.0},\"mean_ns\":{mean:.0},\"sd_ns\":{sd:.0},\
             \"min_ns\":{min:.0},\"p99_ns\":{p99:.0},\"readers\":{readers},\"count\":{n}}}"
        );
    }
    let us = |ns: f64| ns / 1000.0;
    writeln!(
        out,
        "{name:<32} {readers:>7} {:>9.1} {:>9.1} {:>9.1} {:>9.1}",
        us(s.min),
        us(s.median),
        us(s.mean),
        us(s.p99)
    )
}

/// Many consumers taken out at once: unlinked one by one, freed by callbacks after one grace period.
fn unregisters(options: &Options, out: &mut impl Write) -> std::io::Result<()> {
    let n = options.unregisters;
    let subject = &subjects()[0];
    let domain = (subject.domain)();
    let freed = Box::leak(Box::new(AtomicU64::new(0)));
    let (ns, periods) = with_readers(subject, domain, 1, || {
        let freed: &'static AtomicU64 = freed;
        let before = domain.block().periods();
        let start = Instant::now();
        // The first wait unlinks all, the second is shared: `unregister_nosync` N times, `sync` once.
        let consumers: Vec<Box<u64>> = (0..n as u64).map(Box::new).collect();
        domain.synchronize();
        for consumer in consumers {
            std::hint::black_box(&*consumer);
            drop(consumer);
            freed.fetch_add(1, Relaxed);
        }
        (start.elapsed().as_nanos() as f64, domain.block().periods() - before)
    });
    row_of_many("unregister+one-sync", n, ns, periods, freed.load(Relaxed), options, out)?;
    freed.store(0, Relaxed);
    let (ns, periods) = with_readers(subject, domain, 1, || {
        let freed: &'static AtomicU64 = freed;
        let before = domain.block().periods();
        let start = Instant::now();
        for i in 0..n as u64 {
            let consumer = Box::new(i);
            domain.call(move || {
                std::hint::black_box(&*consumer);
                freed.fetch_add(1, Relaxed);
            });
        }
        domain.barrier();
        (start.elapsed().as_nanos() as f64, domain.block().periods() - before)
    });
    row_of_many("unregister+call", n, ns, periods, freed.load(Relaxed), options, out)
}

fn row_of_many(
    name: &str,
    n: usize,
    ns: f64,
    periods: u64,
    freed: u64,
    options: &Options,
    out: &mut impl Write,
) -> std::io::Result<()> {
    let each = ns / n as f64;
    if options.json {
        return writeln!(
            out,
            "{{\"name\":\"{name}\",\"median_ns\":{each:.1},\"total_ns\":{ns:.0},\"unregisters\":{n},\
             \"freed\":{freed},\"grace_periods\":{periods}}}"
        );
    }
    writeln!(
        out,
        "{name}: {n} freed {freed} in {:.2} ms, {each:.0} ns each, {periods} grace periods",
        ns / 1e6
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flavour_and_way_has_a_row_and_every_unregister_is_freed() {
        let args = [
            "--count",
            "3",
            "--readers",
            "0,1",
            "--unregisters",
            "100",
            "-f",
            "json",
            "lite",
            "tasks-holdout",
        ];
        let args: Vec<String> = args.iter().map(|s| s.to_string()).collect();
        let mut out = Vec::new();
        run(&parse(&args).unwrap().unwrap(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 2 * 2 * WAYS.len() + 2, "{text}");
        assert!(text.lines().all(|l| l.contains("\"name\":") && l.contains("\"median_ns\":")));
        assert!(text.contains("\"freed\":100,\"grace_periods\":1"), "{text}");
    }
}
