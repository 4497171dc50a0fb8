//! `nanoprobe bench`: from the first argument to the benchmark that it names.
//!
//! For:     the command line, which passes on what follows `bench`.
//! State:   none.
//! Context: control.
//! Keeps:   nothing.
//! Checked: cli tests/bench.rs.

use std::io::StdoutLock;

/// Runs the benchmark that the arguments name; the exit status.
///
/// `refscale`, `synchronize`, `breakpoint`, `seeds`, `rhltable`, `alloc`, `htab-mem`, `map-perf` and `xol` stand first
/// and have arguments of their own; all else is for the `trig-` benchmarks, which speak the language of the kernel's driver.
pub fn bench_main(args: &[String]) -> i32 {
    match args.split_first() {
        Some((name, rest)) if name == "refscale" => crate::refscale_main(rest),
        Some((name, rest)) if name == "alloc" => crate::alloc_main(rest),
        Some((name, rest)) if name == "htab-mem" => crate::htab_mem_main(rest),
        Some((name, rest)) if name == "map-perf" => crate::map_perf_main(rest),
        Some((name, rest)) if name == "synchronize" => crate::synchronize_main(rest),
        Some((name, rest)) if name == "breakpoint" => crate::breakpoint_main(rest),
        Some((name, rest)) if name == "seeds" && crate::seeds::is_ours(rest) => {
            crate::uprobe_seeds_main(rest)
        }
        Some((name, rest)) if name == "seeds" => crate::seeds_main(rest),
        Some((name, rest)) if name == "rhltable" => crate::rhltable_main(rest),
        Some((name, rest)) if name == "xol" => crate::xol_main(rest),
        Some((name, rest)) if name == crate::trigger::TARGET => crate::trigger::target_main(rest),
        _ => crate::trigger_main(args),
    }
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
