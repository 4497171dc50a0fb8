//! `nanoprobe bench`: from the first argument to the benchmark that it names.
//!
//! For:     the command line, which passes on what follows `bench`.
//! State:   none.
//! Context: control.
//! Keeps:   nothing.
//! Checked: cli tests/bench.rs.

use std::io::StdoutLock;

/// A benchmark with arguments of its own: its name, what it measures, its main function.
type Named = (&'static str, &'static str, fn(&[String]) -> i32);

/// All of them.
pub(crate) const ALL: &[Named] = &[
    ("refscale", "ns per enter and exit of every kind of reader", crate::refscale_main),
    ("synchronize", "how long each way of waiting for readers takes", crate::synchronize_main),
    ("alloc", "ns per object taken and given back", crate::alloc_main),
    ("htab-mem", "rate and memory of a hash whose keys come and go", crate::htab_mem_main),
    ("map-perf", "what maps cost", crate::map_perf_main),
    ("rhltable", "lookups in a table that grows and shrinks", crate::rhltable_main),
    ("breakpoint", "what breakpoint accounting costs: thread, enable, scale", crate::breakpoint_main),
    ("xol", "the cache-flush experiment with out-of-line slots", crate::xol_main),
    ("scripts", "ns that a script adds to a call, beside bpftrace's and the kernel's", crate::scripts_main),
    ("seeds", "published tables beside ours: uprobe, srcu-lite, consumers, hwbp", crate::seeds::main),
];

/// The lines that tell of them.
pub(crate) fn list() -> String {
    ALL.iter().map(|(name, about, _)| format!("{name:<20} {about}\n")).collect()
}

/// Runs the benchmark that the arguments name; the exit status.
///
/// Those of [`ALL`] stand first and have arguments of their own; all else is for the `trig-` benchmarks, which speak the
/// language of the kernel's driver.
pub fn bench_main(args: &[String]) -> i32 {
    let status = match args.split_first() {
        Some((name, rest)) if name == crate::trigger::TARGET => crate::trigger::target_main(rest),
        Some((name, rest)) => match ALL.iter().find(|(known, ..)| known == name) {
            Some((.., run)) => run(rest),
            None => crate::trigger_main(args),
        },
        None => crate::trigger_main(args),
    };
    crate::talk::status(status)
}

/// Runs a benchmark with the options that were parsed, `None` if help was all that was asked for; the exit status.
pub(crate) fn carry_out<O>(
    name: &str,
    parsed: Result<Option<O>, lexopt::Error>,
    run: impl FnOnce(O, &mut StdoutLock<'static>) -> std::io::Result<()>,
) -> i32 {
    let options = match parsed {
        Ok(Some(options)) => options,
        Ok(None) => return 0,
        Err(error) => {
            eprintln!("nanoprobe: {error}\n  try      nanoprobe bench {name} --help");
            return 2;
        }
    };
    match run(options, &mut std::io::stdout().lock()) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("nanoprobe: {error}");
            1
        }
    }
}
