//! `bench refscale`: nanoseconds per read-side enter and exit.
//!
//! For:     the figures of `rcu`, beside what else there is.
//! State:   none.
//! Context: control.
//! Keeps:   R1 each run starts when all readers are warm, and no reader stops before all are measured.
//!          R2 the timed pass makes exactly the loops that the division uses.
//! Checked: tests below.
//! Source:  kernel `kernel/rcu/refscale.c` for parameters and report. Departs: real gates, no extra loop,
//!          mean, spread, least and middle are printed.

mod cases;

use crate::command;
use crate::pin::{self, Gate};
use crate::{Summary, urcu};
use cases::{Case, Pass};
use std::io::Write;
use std::time::Instant;

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    loops: u64,
    nreaders: usize,
    nruns: usize,
    readdelay: u64,
    json: bool,
    verbose: bool,
    only: Vec<String>,
}

const HELP: &str = "\
nanoprobe bench refscale [OPTION]... [NAME]...
Measures the nanoseconds of one enter and exit for each kind of reader, or for those named.

  --loops N       enters per run (10000)
  --nreaders N    reader threads (-1: three quarters of the CPUs)
  --nruns N       runs (30)
  --readdelay NS  time spent inside (0)
  -f json         one object per line, with name and median_ns
  -v, --verbose   print every run, as the kernel does
  --list          print the names

Example: nanoprobe bench refscale --nreaders 2 lite fast mutex
";

/// Runs the benchmark; the exit status.
pub fn refscale_main(args: &[String]) -> i32 {
    command::carry_out("refscale", parse(args), |options, out| run(&options, out))
}

fn parse(args: &[String]) -> Result<Option<Options>, lexopt::Error> {
    use lexopt::prelude::*;
    let cpus = pin::online();
    let mut options = Options {
        loops: 10_000,
        nreaders: cpus / 2 + cpus / 4,
        nruns: 30,
        readdelay: 0,
        json: false,
        verbose: false,
        only: Vec::new(),
    };
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Long("loops") => options.loops = parser.value()?.parse::<i64>()?.max(1) as u64,
            Long("nreaders") => match parser.value()?.parse::<i64>()? {
                -1 => {}
                n => options.nreaders = n.max(1) as usize,
            },
            Long("nruns") => options.nruns = parser.value()?.parse::<i64>()?.max(1) as usize,
            Long("readdelay") => options.readdelay = parser.value()?.parse::<i64>()?.max(0) as u64,
            Short('f') => options.json = json(&parser.value()?.string()?)?,
            Short('v') | Long("verbose") => options.verbose = true,
            Long("list") => {
                names().iter().for_each(|name| print!("{name}\n"));
                return Ok(None);
            }
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(None);
            }
            Value(name) => options.only.push(name.string()?),
            other => return Err(other.unexpected()),
        }
    }
    options.nreaders = options.nreaders.max(1);
    // nreaders x loops must fit the kernel's int.
    options.loops = options.loops.min(i32::MAX as u64 / options.nreaders as u64);
    if let Some(unknown) = options.only.iter().find(|name| !names().contains(name)) {
        return Err(format!("no reader is called {unknown}; there are: {}", names().join(" ")).into());
    }
    Ok(Some(options))
}

/// True for `json`; an error for any other format.
pub(crate) fn json(format: &str) -> Result<bool, lexopt::Error> {
    match format {
        "json" => Ok(true),
        "text" => Ok(false),
        other => Err(format!("no format {other}; there are: text json").into()),
    }
}

fn names() -> Vec<String> {
    let ours = cases::all().into_iter().map(|case| case.name.to_string());
    ours.chain(urcu::FLAVOURS.iter().map(|f| format!("liburcu-{f}"))).collect()
}

fn run(options: &Options, out: &mut impl Write) -> std::io::Result<()> {
    if !options.json {
        let Options { loops, nreaders, nruns, readdelay, .. } = options;
        writeln!(out, "refscale: loops={loops} nreaders={nreaders} nruns={nruns} readdelay={readdelay}")?;
        writeln!(out, "{:<24} {:>9} {:>9} {:>9} {:>9}", "Reader", "Mean(ns)", "sd", "min", "median")?;
    }
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|n| n == name);
    for case in cases::all().into_iter().filter(|case| wanted(case.name)) {
        let results = measure(&case, options, out)?;
        print_case(case.name, &results, options, out)?;
    }
    for flavour in urcu::FLAVOURS {
        let name = format!("liburcu-{flavour}");
        if !wanted(&name) {
            continue;
        }
        match urcu::read(flavour, options.loops, options.nreaders, options.nruns, options.readdelay) {
            Ok(results) => print_case(&name, &results, options, out)?,
            Err(why) => eprintln!("nanoprobe: {name} left out: {why}"),
        }
    }
    Ok(())
}

fn print_case(name: &str, results: &[f64], options: &Options, out: &mut impl Write) -> std::io::Result<()> {
    let Summary { mean, sd, min, median, .. } = Summary::of(results);
    if options.json {
        let Options { loops, nreaders, nruns, readdelay, .. } = options;
        return writeln!(
            out,
            "{{\"name\":\"{name}\",\"median_ns\":{median:.3},\"mean_ns\":{mean:.3},\"sd_ns\":{sd:.3},\
             \"min_ns\":{min:.3},\"loops\":{loops},\"nreaders\":{nreaders},\"nruns\":{nruns},\
             \"readdelay_ns\":{readdelay}}}"
        );
    }
    if options.verbose {
        writeln!(out, "END OF TEST. Calculating average duration per loop (nanoseconds)...")?;
        writeln!(out, "Runs\tTime(ns)")?;
        for (i, result) in results.iter().enumerate() {
            writeln!(out, "{}\t{result:.3}", i + 1)?;
        }
    }
    writeln!(out, "{name:<24} {mean:>9.3} {sd:>9.3} {min:>9.3} {median:>9.3}")
}

/// Nanoseconds per loop of each run.
fn measure(case: &Case, options: &Options, out: &mut impl Write) -> std::io::Result<Vec<f64>> {
    let mut results = Vec::new();
    for n in 0..options.nruns {
        let pass = (case.make)();
        let durations = one_run(&*pass, options);
        if options.verbose && !options.json {
            writeln!(out, "Experiment #{} (Format: <THREAD-NUM>:<Total loop time in ns>)", n + 1)?;
            for (i, ns) in durations.iter().enumerate() {
                write!(out, "{i}: {ns:.0}{}", if i % 5 == 4 { "\n" } else { " \t" })?;
            }
            writeln!(out)?;
        }
        results.push(durations.iter().sum::<f64>() / (options.nreaders as f64 * options.loops as f64));
    }
    Ok(results)
}

/// One run: the nanoseconds that each reader took for its loops.
fn one_run(pass: &dyn Pass, options: &Options) -> Vec<f64> {
    let (warm, done) = (Gate::new(options.nreaders), Gate::new(options.nreaders));
    let (warm, done) = (&warm, &done);
    let loops = |n| pass.pass(n, options.readdelay);
    std::thread::scope(|s| {
        let readers: Vec<_> = (0..options.nreaders)
            .map(|i| {
                s.spawn(move || {
                    pin::pin_to(i % pin::online());
                    loops(options.loops);
                    warm.arrive();
                    while !warm.is_open() {
                        loops(options.loops / 16 + 1);
                    }
                    let start = Instant::now();
                    loops(options.loops);
                    let ns = start.elapsed().as_nanos() as f64;
                    done.arrive();
                    while !done.is_open() {
                        loops(options.loops / 16 + 1);
                    }
                    ns
                })
            })
            .collect();
        readers.into_iter().map(|reader| reader.join().expect("a reader does not panic")).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_with(args: &[&str]) -> (i32, String) {
        let args: Vec<String> = args.iter().map(|s| s.to_string()).collect();
        let mut out = Vec::new();
        let options = parse(&args).unwrap().unwrap();
        let status = run(&options, &mut out).map_or(1, |()| 0);
        (status, String::from_utf8(out).unwrap())
    }

    #[test]
    fn each_line_of_json_has_a_name_and_a_median() {
        let (status, text) = run_with(&["--loops", "100", "--nruns", "2", "-f", "json", "lite", "mutex"]);
        assert_eq!(status, 0);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("{\"name\":\"lite\",\"median_ns\":") && lines[0].ends_with('}'));
    }

    #[test]
    fn every_case_runs_with_two_readers_and_a_delay() {
        let names: Vec<_> = cases::all().iter().map(|c| c.name).collect();
        let mut args = vec!["--loops", "50", "--nruns", "1", "--nreaders", "2", "--readdelay", "10", "-v"];
        args.extend(&names);
        let (status, text) = run_with(&args);
        assert_eq!(status, 0);
        assert!(names.iter().all(|name| text.contains(name)));
    }

    #[test]
    fn an_unknown_reader_is_an_error_that_lists_the_known() {
        let error = parse(&["nosuch".to_string()]).unwrap_err().to_string();
        assert!(error.contains("nosuch") && error.contains("lite"), "{error}");
    }
}
