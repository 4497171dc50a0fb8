//! `bench seeds`: the published tables of the uprobe series, with the registry's hit path beside them.
//!
//! For:     whoever knows those tables and wants to see ours in the same rows.
//! State:   none.
//! Context: control.
//! Keeps:   S1 the consumers' count equals the calls made, or the run fails.
//!          S2 all columns of a table come from one run, taken in turns.
//! Checked: tests below; the count by `Side::check` in every run.
//! Source:  the two series' tables; `published` holds them.

mod measure;
mod published;

use crate::Summary;
use crate::command;
use crate::pin;
use measure::{Kind, Subject};
use probe::{Preset, Protection};
use published::{Row, Table};
use std::io::Write;

/// How to run.
struct Options {
    calls: u64,
    runs: usize,
    consumers: usize,
}

const HELP: &str = "\
nanoprobe bench seeds uprobe|srcu-lite [OPTION]...
Prints the table that a kernel series published, for the CPU counts that this machine
has too, and the registry's hit path under the same protections: M/s, median of the runs.

Ours is in process: the registry's hit path with one consumer that counts, no trap and no
trampoline. The kernel's figures hold a trap, on another machine. Compare down a column
of ours, not across.

  --calls N       calls per run and thread (1000000)
  --runs N        runs of each column, taken in turns (7)
  --consumers N   consumers on the probe (1)

Example: nanoprobe bench seeds srcu-lite --runs 15
";

/// True if the arguments after `seeds` name a table of ours.
pub fn is_ours(args: &[String]) -> bool {
    args.iter().any(|arg| arg == "uprobe" || arg == "srcu-lite")
}

/// Runs the benchmark; the exit status.
pub fn uprobe_seeds_main(args: &[String]) -> i32 {
    command::carry_out("seeds", parse(args), |(tables, options), out| {
        tables.iter().try_for_each(|table| print(table, &options, out))
    })
}

fn parse(args: &[String]) -> Result<Option<(&'static [Table], Options)>, lexopt::Error> {
    use lexopt::prelude::*;
    let mut options = Options { calls: 1_000_000, runs: 7, consumers: 1 };
    let mut tables = None;
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Value(name) if name == "uprobe" => tables = Some(published::UPROBE),
            Value(name) if name == "srcu-lite" => tables = Some(published::SRCU_LITE),
            Long("calls") => options.calls = parser.value()?.parse::<u64>()?.max(1),
            Long("runs") => options.runs = parser.value()?.parse::<usize>()?.max(1),
            Long("consumers") => options.consumers = parser.value()?.parse::<usize>()?.max(1),
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(None);
            }
            other => return Err(other.unexpected()),
        }
    }
    let tables = tables.ok_or("which seed: uprobe or srcu-lite")?;
    Ok(Some((tables, options)))
}

/// What one of our columns ran with.
fn subject(kind: Kind, preset: Preset, consumers: usize) -> Subject {
    let (entry, returns) = preset.protections();
    Subject::new(kind, entry, returns, consumers)
}

fn print(table: &Table, options: &Options, out: &mut impl Write) -> std::io::Result<()> {
    writeln!(
        out,
        "{}: M/s; published (kernel, {}) | ours (in process, no trap)",
        table.title, table.machine
    )?;
    write!(out, "{:>4}", "CPUs")?;
    table.columns.iter().for_each(|c| drop(write!(out, " {:>11}", c.name)));
    write!(out, "  |")?;
    for column in table.columns {
        let (entry, returns) = column.preset.protections();
        let by = if table.kind == Kind::Entry { entry } else { returns };
        write!(out, " {:>14}", format!("{} {by}", column.name))?;
    }
    writeln!(out, " {:>14} {:>14}", "tasks-fast", "fast")?;
    for row in table.rows.iter().filter(|row| row.cpus <= pin::online()) {
        print_row(table, row, options, out)?;
    }
    writeln!(out)
}

fn print_row(table: &Table, row: &Row, options: &Options, out: &mut impl Write) -> std::io::Result<()> {
    let published = table.columns.iter().map(|c| subject(table.kind, c.preset, options.consumers));
    let ours = [Protection::TasksFast, Protection::Fast];
    let ours = ours.into_iter().map(|p| Subject::new(table.kind, p, p, options.consumers));
    let subjects: Vec<_> = published.chain(ours).collect();
    let mut results = vec![Vec::new(); subjects.len()];
    for _ in 0..options.runs {
        for (subject, results) in subjects.iter().zip(&mut results) {
            results.push(subject.run(row.cpus, options.calls).map_err(std::io::Error::other)?);
        }
    }
    write!(out, "{:>4}", row.cpus)?;
    row.published.iter().for_each(|(mean, sd)| drop(write!(out, " {mean:>5.3}±{sd:.3}")));
    write!(out, "  |")?;
    for results in &results {
        let summary = Summary::of(results);
        write!(out, " {:>8.2}±{:<5.2}", summary.median, summary.sd)?;
    }
    writeln!(out)
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
        let options = Options { calls: 100, runs: 2, consumers: 3 };
        for tables in [published::UPROBE, published::SRCU_LITE] {
            let mut out = Vec::new();
            tables.iter().for_each(|table| print(table, &options, &mut out).unwrap());
            let text = String::from_utf8(out).unwrap();
            assert_eq!(text.lines().filter(|line| line.starts_with("   1 ")).count(), tables.len(), "{text}");
        }
    }
}
