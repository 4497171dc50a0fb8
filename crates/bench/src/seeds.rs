//! `bench seeds`: the published tables of the uprobe series, with the registry's hit path beside them, and what more
//! consumers cost.
//!
//! For:     whoever knows those tables and wants to see ours in the same rows.
//! State:   none.
//! Context: control.
//! Keeps:   S1 each consumer's count equals the calls made, or the run fails.
//!          S2 all columns of a row come from one run, taken in turns.
//! Checked: tests below; the count by `Subject` in every run.
//! Source:  the two series' tables; `published` holds them.

mod consumers;
mod measure;
mod published;
mod table;
mod tracer;
mod trap;

use crate::command;
use published::Table;

/// How to run.
struct Options {
    calls: u64,
    /// `None`: as many as are usual with the series.
    runs: Option<usize>,
    consumers: usize,
}

/// What to run.
enum Subject {
    Tables(&'static [Table]),
    Consumers,
    Tracer,
    Trap,
    Cell(trap::Cell),
}

const HELP: &str = "\
nanoprobe bench seeds uprobe|srcu-lite|consumers|tracer|trap [OPTION]...
uprobe, srcu-lite: prints the tables that a kernel series published, for the CPU counts
that this machine has too, and the registry's hit path under the same protections: M/s of
wall time, median of the runs. consumers: what a hit costs with 1, 2, 4 and 8 consumers,
and the same handlers called without a registry. tracer: the tables again with the probe
in another process, as `nanoprobe bench trig-NAME` has it, by each flavour of its readers.
trap: the rows of entries with a probe that a program has on itself, by a jump and by int3.

A to D call their readers, A' to C' have them in the hit's own code; nothing else differs.
But for tracer and trap, ours is in process: the registry's hit path with consumers that count, no trap and no
trampoline. The kernel's figures hold a trap, on another machine. Compare along a row of
ours, not with the row above. Fails unless each consumer counted every call.

  --calls N       calls per run and thread (20000): short, so that most runs are
                  not interrupted by other load; tracer runs for two seconds
  --runs N        runs of each column, taken in turns (101; tracer 5, trap 11)
  --consumers N   consumers on the probe, in the tables (1)

Example: nanoprobe bench seeds srcu-lite --runs 301
";

/// The series that there are.
const SERIES: [&str; 6] = ["uprobe", "srcu-lite", "consumers", "tracer", "trap", "hwbp"];

/// Runs the series that the arguments name; the exit status.
pub fn main(args: &[String]) -> i32 {
    let is_named = |wanted: &[&str]| args.iter().any(|arg| wanted.contains(&arg.as_str()));
    if is_named(&SERIES[..5]) {
        return uprobe_seeds_main(args);
    }
    if is_named(&SERIES[5..]) {
        return crate::breakpoint::seeds_main(args);
    }
    if is_named(&["-h", "--help"]) {
        print!("{HELP}\n{}", crate::breakpoint::SEEDS_HELP);
        return 0;
    }
    if is_named(&["-l", "--list"]) {
        SERIES.iter().for_each(|name| print!("{name}\n"));
        return 0;
    }
    eprintln!("nanoprobe: which series? there are: {}", SERIES.join(", "));
    SERIES.iter().for_each(|name| eprintln!("  try      nanoprobe bench seeds {name}"));
    2
}

fn uprobe_seeds_main(args: &[String]) -> i32 {
    command::carry_out("seeds", parse(args), |(subject, options), out| match subject {
        Subject::Tables(tables) => tables.iter().try_for_each(|t| table::print(t, &options, out)),
        Subject::Consumers => consumers::print(&options, out),
        Subject::Tracer => published::SRCU_LITE.iter().try_for_each(|t| tracer::print(t, &options, out)),
        Subject::Trap => {
            let mut entries = published::SRCU_LITE.iter().filter(|t| t.kind == measure::Kind::Entry);
            entries.try_for_each(|t| trap::print(t, &options, out))
        }
        Subject::Cell(cell) => trap::cell(cell, options.calls, out),
    })
}

fn parse(args: &[String]) -> Result<Option<(Subject, Options)>, lexopt::Error> {
    use lexopt::prelude::*;
    let mut options = Options { calls: 20_000, runs: None, consumers: 1 };
    let mut subject = None;
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Value(name) if name == "uprobe" => subject = Some(Subject::Tables(published::UPROBE)),
            Value(name) if name == "srcu-lite" => subject = Some(Subject::Tables(published::SRCU_LITE)),
            Value(name) if name == "consumers" => subject = Some(Subject::Consumers),
            Value(name) if name == "tracer" => subject = Some(Subject::Tracer),
            Value(name) if name == "trap" => subject = Some(Subject::Trap),
            // A child of `trap`.
            Long("cell") => {
                let cell = trap::Cell::parse(&parser.value()?.string()?);
                subject = Some(Subject::Cell(cell.ok_or("no such cell")?));
            }
            Long("calls") => options.calls = parser.value()?.parse::<u64>()?.max(1),
            Long("runs") => options.runs = Some(parser.value()?.parse::<usize>()?.max(1)),
            Long("consumers") => options.consumers = parser.value()?.parse::<usize>()?.max(1),
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(None);
            }
            other => return Err(other.unexpected()),
        }
    }
    let subject = subject.ok_or("which seed: uprobe, srcu-lite, consumers, tracer or trap")?;
    Ok(Some((subject, options)))
}

impl Options {
    /// How often each column of a table runs in process.
    fn runs(&self) -> usize {
        self.runs.unwrap_or(101)
    }
}

/// The load average of the last minute.
fn load() -> String {
    let all = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    all.split(' ').next().filter(|first| !first.is_empty()).unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_value_for_every_column() {
        for table in published::UPROBE.iter().chain(published::SRCU_LITE) {
            assert!(
                table.rows.iter().all(|row| row.published.len() == table.columns.len()),
                "{}",
                table.title
            );
        }
    }

    #[test]
    fn a_short_run_prints_each_table_with_a_row_for_one_cpu() {
        let options = Options { calls: 100, runs: Some(2), consumers: 3 };
        for tables in [published::UPROBE, published::SRCU_LITE] {
            let mut out = Vec::new();
            tables.iter().for_each(|t| table::print(t, &options, &mut out).unwrap());
            let text = String::from_utf8(out).unwrap();
            let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("1 CPU  published")).collect();
            assert_eq!(rows.len(), tables.len(), "{text}");
            assert!(rows.iter().all(|row| row.contains(" - ")), "what was not published is a dash: {text}");
        }
    }

    #[test]
    fn lite_is_compared_with_normal_readers_wherever_that_is_the_one_difference() {
        let names = |tables: &'static [Table]| {
            let of = |t: &'static Table| table::pairs(t).map(|(a, b)| (t.columns[a].name, t.columns[b].name));
            tables.iter().map(|t| of(t).collect()).collect::<Vec<Vec<_>>>()
        };
        assert_eq!(names(published::SRCU_LITE), [vec![("B", "A"), ("C", "D")], vec![("C", "D")]]);
        assert_eq!(names(published::UPROBE), [vec![("lite", "SRCU")], vec![("lite", "SRCU")]]);
        let primes = |t: &'static Table| table::primes(t).map(|(a, b)| (&t.columns[a], &t.columns[b]));
        for (prime, plain) in published::SRCU_LITE.iter().flat_map(primes) {
            let of = |c: &published::Column| (c.by.entry, c.by.returns);
            assert!(of(prime) == of(plain) && plain.by.by_calls && !prime.by.by_calls, "{}", plain.name);
        }
        assert_eq!(published::SRCU_LITE.iter().flat_map(primes).count(), 6);
    }

    #[test]
    fn consumers_are_counted_under_every_protection_and_without_a_registry() {
        let mut out = Vec::new();
        consumers::print(&Options { calls: 100, runs: Some(2), consumers: 1 }, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
        probe::Protection::ALL.iter().for_each(|p| assert_eq!(lines(&format!("{p} ")), 4, "{text}"));
        assert_eq!(lines("no registry "), 2, "{text}");
    }
}
