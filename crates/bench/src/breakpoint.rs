//! `bench breakpoint thread|enable|scale`: what breakpoint accounting costs.
//!
//! For:     the figures of `hwbp`, in the words of `perf bench breakpoint`.
//! State:   none.
//! Context: control.
//! Keeps:   B1 a run fails unless as many breakpoints were reserved and released as its parameters say, and
//!          none is left.
//! Checked: tests below.
//! Source:  kernel `tools/perf/bench/breakpoint.c` (v7.0) for options, work and lines. Departs: `--engine` runs
//!          the same work on virtual CPUs and tasks, accounting alone, no threads made.

mod real;
mod scale;
mod seeds;
mod thread;

pub use seeds::{HELP as SEEDS_HELP, seeds_main};

use crate::refscale::json;
use hwbp::EngineKind;
use std::io::Write;

const HELP: &str = "\
nanoprobe bench breakpoint thread [OPTION]...
Threads with inherited breakpoints are made and joined. By default virtual ones: what is timed is accounting.
  -b N              breakpoints (1)
  -p N              parallelism (1)
  -t N              threads of a batch (1)
nanoprobe bench breakpoint enable [OPTION]...   (real breakpoints)
  -p N              passive threads (0)
  -a N              active threads (0)
nanoprobe bench breakpoint scale [OPTION]...
Nanoseconds of one reserve and release for 1 to 100,000 tasks, 2 to 1,024 CPUs, one and two threads.

  -r N              batches, shared by all parallel workers, as in perf (10)
  --engine E        list, hash or histogram; may be given more than once (histogram)
  --cpus N          virtual CPUs (256)
  --real            breakpoints of the machine in the place of virtual ones, and perf's own run beside it
  -f simple|json    seconds alone; or one object a line

Example: nanoprobe bench breakpoint thread -r 30 -b 4 -p 64 -t 64 --engine hash --engine histogram
";

/// How to run.
#[derive(Clone, Debug)]
struct Options {
    repeat: u32,
    breakpoints: u32,
    parallel: u32,
    threads: u32,
    active: u32,
    engines: Vec<EngineKind>,
    cpus: u32,
    real: bool,
    json: bool,
    simple: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            repeat: 10,
            breakpoints: 1,
            parallel: 1,
            threads: 1,
            active: 0,
            engines: Vec::new(),
            cpus: 256,
            real: false,
            json: false,
            simple: false,
        }
    }
}

/// Runs the benchmark; the exit status.
pub fn breakpoint_main(args: &[String]) -> i32 {
    let (which, mut options) = match parse(args) {
        Ok(Some(parsed)) => parsed,
        Ok(None) => return 0,
        Err(error) => {
            eprintln!("nanoprobe: {error}\n  try      nanoprobe bench breakpoint --help");
            return 2;
        }
    };
    if options.engines.is_empty() {
        options.engines.push(EngineKind::Histogram);
    }
    let mut out = std::io::stdout().lock();
    let done = match which.as_str() {
        "thread" if options.real => real::thread(&options, &mut out),
        "thread" => thread::run(&options, &mut out),
        "enable" => real::enable(&options, &mut out),
        _ => scale::run(&options, &mut out),
    };
    match done {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("nanoprobe: breakpoint {which}: {error}");
            1
        }
    }
}

fn parse(args: &[String]) -> Result<Option<(String, Options)>, lexopt::Error> {
    use lexopt::prelude::*;
    let mut options = Options::default();
    let mut which = None;
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Short('r') | Long("repeat") => options.repeat = parser.value()?.parse()?,
            Short('b') | Long("breakpoints") => options.breakpoints = parser.value()?.parse()?,
            Short('p') | Long("parallelism" | "passive") => options.parallel = parser.value()?.parse()?,
            Short('t') | Long("threads") => options.threads = parser.value()?.parse()?,
            Short('a') | Long("active") => options.active = parser.value()?.parse()?,
            Long("cpus") => options.cpus = parser.value()?.parse()?,
            Long("engine") => options.engines.push(engine(&parser.value()?.string()?)?),
            Long("real") => options.real = true,
            Short('f') => match parser.value()?.string()?.as_str() {
                "simple" => options.simple = true,
                other => options.json = json(other)?,
            },
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(None);
            }
            Value(name) if which.is_none() => which = Some(name.string()?),
            other => return Err(other.unexpected()),
        }
    }
    match which {
        Some(name) if ["thread", "enable", "scale"].contains(&name.as_str()) => {
            // perf: one parallel worker unless told otherwise, but no passive thread.
            let has_p = args.iter().any(|a| a.starts_with("-p") || a.starts_with("--p"));
            if name == "enable" && !has_p {
                options.parallel = 0;
            }
            if name == "thread" && options.repeat * options.threads * options.parallel * options.cpus == 0 {
                return Err("repeat, threads, parallelism and cpus must be more than 0".into());
            }
            Ok(Some((name, options)))
        }
        Some(name) => Err(format!("no breakpoint benchmark {name}; there are: thread enable scale").into()),
        None => Err("which one? thread, enable or scale".into()),
    }
}

fn engine(name: &str) -> Result<EngineKind, String> {
    let found = EngineKind::ALL.into_iter().find(|e| e.name() == name);
    found.ok_or_else(|| format!("no engine {name}; there are: list hash histogram"))
}

/// perf's lines.
fn print_thread(name: &str, options: &Options, seconds: f64, out: &mut impl Write) -> std::io::Result<()> {
    let per_op = seconds * 1e6 / f64::from(options.repeat) / f64::from(options.threads);
    let per_cpu = per_op * f64::from(options.parallel);
    let Options { repeat, breakpoints, parallel, threads, cpus, .. } = options;
    if options.simple {
        return writeln!(out, "{seconds:.3}");
    }
    if options.json {
        return writeln!(
            out,
            "{{\"name\":\"breakpoint-thread {name}\",\"total_s\":{seconds:.6},\"usecs_per_op\":{per_op:.6},\
             \"usecs_per_op_per_cpu\":{per_cpu:.6},\"repeat\":{repeat},\"breakpoints\":{breakpoints},\
             \"parallelism\":{parallel},\"threads\":{threads},\"cpus\":{cpus}}}"
        );
    }
    writeln!(out, "# Running 'breakpoint/thread' benchmark: {name}")?;
    writeln!(
        out,
        "# Created/joined {repeat} threads with {breakpoints} breakpoints and {parallel} parallelism"
    )?;
    writeln!(out, " {:>14}: {seconds:.3} [sec]\n", "Total time")?;
    writeln!(out, " {per_op:>14.6} usecs/op")?;
    writeln!(out, " {per_cpu:>14.6} usecs/op/cpu")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> Options {
        let args: Vec<String> = line.split_whitespace().map(String::from).collect();
        parse(&args).unwrap().unwrap().1
    }

    #[test]
    fn every_engine_prints_perfs_fields_for_the_same_work() {
        let line = "thread -r 6 -b 4 -p 3 -t 5 --cpus 8 --engine list --engine hash --engine histogram";
        let mut out = Vec::new();
        thread::run(&options(line), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text.matches("# Created/joined 6 threads with 4 breakpoints and 3 parallelism").count(),
            3
        );
        assert_eq!(text.matches(" usecs/op/cpu").count(), 3, "{text}");
    }

    #[test]
    fn more_breakpoints_than_slots_fail_the_run() {
        let error = thread::run(&options("thread -b 5 --engine histogram"), &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("all 4 debug registers are taken"), "{error}");
    }

    #[test]
    fn an_unknown_engine_is_answered_with_the_known() {
        let error = parse(&["thread".into(), "--engine".into(), "magic".into()]).unwrap_err();
        assert!(error.to_string().contains("histogram"), "{error}");
    }
}
