//! `bench trig-*`: what a probe costs the program that it is in.
//!
//! For:     the figures of probes, beside an unprobed call and, with `--vs kernel`, a kernel uprobe.
//! State:   none.
//! Context: control; the traced program is a child, this executable started again.
//! Keeps:   T1 probed or not, kernel or not: the same functions, in the same child, in the same run.
//!          T2 producers have ended before probes are taken out, so hits = calls exactly, or the run fails.
//! Checked: tests of the parts; cli tests/bench.rs end to end.
//! Source:  kernel tools/testing/selftests/bpf/bench.c for options, samples and lines; kernel-facts 6.1.
//!          Departs: the traced program is another process; median, least and most, and processor time per
//!          call are printed too.

mod benchmark;
mod child;
mod error;
mod functions;
mod kernel;
mod options;
mod phase;
mod price;
mod producer;
mod programs;
mod report;
mod run;
mod scripts;
mod shared;

pub use price::{price, price_of_program};
pub use producer::target_main;
pub use scripts::main as scripts_main;
pub use session::Flavour;

use options::{Options, Wanted};
use report::Report;
use std::io::Write;

/// The name under which this executable is started as the traced program.
pub const TARGET: &str = "trig-target";

/// Runs the named benchmarks one after another; the exit status.
pub fn trigger_main(args: &[String]) -> i32 {
    let options = match options::parse(args) {
        Ok(Wanted::Run(options)) => options,
        Ok(Wanted::Text(text)) => {
            print!("{text}");
            return 0;
        }
        Err(error) => {
            eprintln!("nanoprobe: {error}\n  try      nanoprobe bench --help");
            return 1;
        }
    };
    let mut out = std::io::stdout().lock();
    let report = Report::new(&options);
    let mut status = 0;
    for benchmark in &options.benchmarks {
        match run_one(benchmark, &options, &report, &mut out) {
            Ok(()) => {}
            Err(error) => {
                status = 1;
                eprintln!("nanoprobe: {}: {error}", benchmark.name);
                error.advice().iter().for_each(|line| eprintln!("  {line}"));
            }
        }
    }
    status
}

/// Million calls per second of so many pinned threads through the probe that a benchmark is about, with readers of this
/// flavour; the middle of the seconds.
///
/// # Errors
/// Why there is no such probe, or that it did not count every call.
pub fn mega_hits(name: &str, flavour: Flavour, cpus: usize) -> std::io::Result<f64> {
    let benchmark =
        benchmark::named(name).ok_or_else(|| std::io::Error::other(format!("no benchmark {name}")))?;
    let options = Options { producers: cpus, cpus: (0..cpus).collect(), flavour, ..Options::shortest() };
    let outcome = run::run(&benchmark, &options, |_| Ok(())).map_err(std::io::Error::other)?;
    outcome.check().map_err(std::io::Error::other)?;
    let rates = outcome.phase().map(phase::Phase::rates).unwrap_or_default();
    Ok(crate::Summary::of(&rates).median)
}

fn run_one(
    benchmark: &benchmark::Benchmark,
    options: &Options,
    report: &Report,
    out: &mut impl Write,
) -> Result<(), error::TriggerError> {
    report.begin(benchmark, out)?;
    let outcome = run::run(benchmark, options, |iteration| report.progress(iteration, out))?;
    report.end(&outcome, out)?;
    out.flush()?;
    outcome.check()
}
