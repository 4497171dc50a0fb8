//! `bench seeds hwbp`: the published series beside ours.
//!
//! For:     whoever wants to see what the series gained, here.
//! State:   none.
//! Context: control. The list alone takes about a minute.
//! Keeps:   Z1 the three engines do the same work in one run.
//! Checked: by use.
//! Source:  the figures of "perf/hw_breakpoint: Optimize for thousands of tasks" (2022), 256 CPUs.

use super::{Options, scale, thread};
use crate::Summary;
use hwbp::EngineKind;
use std::io::Write;

pub const HELP: &str = "\
nanoprobe bench seeds hwbp [--quick] [-f json]
Runs `-r 30 -b 4 -p 64 -t 64` of breakpoint/thread on 256 virtual CPUs by each engine, and prints the published
figures of Linux beside them. Theirs make and join real threads, ours are accounting alone: compare the ratios.
  --quick   8 batches in the place of 30
";

/// Published: stage, seconds in all, microseconds per operation (table).
const PUBLISHED: [(&str, f64, f64); 4] = [
    ("baseline: one list, one mutex", 236.418, 123_134.794_271),
    ("+ hash table by task", 0.208, 108.422_396),
    ("+ lock for each task", 0.077, 40.20),
    ("+ histograms", 0.067, 35.29),
];

/// Runs the series; the exit status.
pub fn seeds_main(args: &[String]) -> i32 {
    let (mut options, mut which) = (Options::default(), None);
    (options.repeat, options.breakpoints, options.parallel, options.threads) = (30, 4, 64, 64);
    let mut words = args.iter().map(String::as_str);
    while let Some(word) = words.next() {
        match word {
            "--quick" => options.repeat = 8,
            "-f" => options.json = words.next() == Some("json"),
            "hwbp" => which = Some(word),
            "-h" | "--help" => {
                print!("{HELP}");
                return 0;
            }
            other => {
                eprintln!("nanoprobe: no seed series '{other}'; there are: hwbp");
                return 2;
            }
        }
    }
    if which.is_none() {
        eprintln!("nanoprobe: which series? there are: hwbp\n  try      nanoprobe bench seeds hwbp");
        return 2;
    }
    match run(&options, &mut std::io::stdout().lock()) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("nanoprobe: seeds hwbp: {error}");
            1
        }
    }
}

fn run(options: &Options, out: &mut impl Write) -> std::io::Result<()> {
    let mut ours = Vec::new();
    for engine in EngineKind::ALL {
        // The list takes a minute; the others are repeated, and the middle one counts.
        let runs = if engine == EngineKind::List { 1 } else { 9 };
        let seconds: Result<Vec<f64>, _> = (0..runs).map(|_| thread::one(engine, options)).collect();
        let median = Summary::of(&seconds?).median;
        let per_op = median * 1e6 / f64::from(options.repeat * options.threads);
        ours.push((engine, median, per_op));
    }
    let first = ours[0].1;
    if options.json {
        for (engine, seconds, per_op) in &ours {
            let (name, ratio) = (engine.name(), first / seconds);
            writeln!(
                out,
                "{{\"name\":\"seeds-hwbp {name}\",\"total_s\":{seconds:.6},\"usecs_per_op\":{per_op:.4},\
                 \"times_the_list\":{ratio:.1}}}"
            )?;
        }
    } else {
        print_tables(options, &ours, out)?;
    }
    scale::flat(EngineKind::Histogram, options, out)?;
    scale::pair(EngineKind::Histogram, options, out)
}

fn print_tables(
    options: &Options,
    ours: &[(EngineKind, f64, f64)],
    out: &mut impl Write,
) -> std::io::Result<()> {
    writeln!(
        out,
        "{:<44} {:>12} {:>16} {:>10}",
        "Published (Linux, real threads)", "total s", "usecs/op", "x"
    )?;
    for (stage, seconds, per_op) in PUBLISHED {
        writeln!(out, "{stage:<44} {seconds:>12.3} {per_op:>16.3} {:>10.0}", PUBLISHED[0].1 / seconds)?;
    }
    let title = format!("Here (accounting alone, {} virtual CPUs)", options.cpus);
    writeln!(out, "{title:<44} {:>12} {:>16} {:>10}", "total s", "usecs/op", "x")?;
    for (engine, seconds, per_op) in ours {
        writeln!(out, "{:<44} {seconds:>12.6} {per_op:>16.3} {:>10.0}", engine.name(), ours[0].1 / seconds)?;
    }
    Ok(())
}
