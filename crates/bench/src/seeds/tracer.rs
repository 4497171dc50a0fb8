//! A published table, and the same function probed by the tracer, with readers of each flavour.
//!
//! For:     `bench seeds tracer`.
//! State:   the results of one row at a time.
//! Context: control; a child is traced for each figure.
//! Keeps:   T1 all cells of a row come from one run, taken in turns.
//!          T2 hits = calls in each of them, or the run fails.
//! Checked: T2 by `trigger::mega_hits`; cli tests/bench.rs.

use super::published::{Row, Table};
use super::table::{line, middle_ratio};
use super::{Options, load};
use crate::Summary;
use crate::pin;
use crate::trigger::{Flavour, mega_hits};
use std::io::{Result, Write};

const FLAVOURS: [Flavour; 3] = [Flavour::Lite, Flavour::Normal, Flavour::Sigsafe];
/// The presets that were published, without their repetitions.
const PRESETS: [&str; 4] = ["A", "B", "C", "D"];
const RUNS: usize = 5;

/// Measures and prints a table, for the CPU counts that this machine has.
pub fn print(table: &Table, options: &Options, out: &mut impl Write) -> Result<()> {
    writeln!(
        out,
        "{}, M/s; published: kernel, {}; ours: another process, by a jump",
        table.title, table.machine
    )?;
    line(out, "published", PRESETS.into_iter().map(str::to_owned))?;
    line(out, "ours", FLAVOURS.into_iter().map(|flavour| flavour.to_string()))?;
    let rows = table.rows.iter().filter(|row| row.cpus <= pin::online());
    let compared = rows.map(|row| print_row(table, row, options, out)).collect::<Result<Vec<_>>>()?;
    writeln!(out, "lite by the others, median of the runs: {}\n", compared.join(", "))
}

fn print_row(table: &Table, row: &Row, options: &Options, out: &mut impl Write) -> Result<String> {
    let cpus = if row.cpus == 1 { "1 CPU".to_owned() } else { format!("{} CPUs", row.cpus) };
    let of = |preset| table.columns.iter().position(|c| c.name == preset).and_then(|i| row.published[i]);
    let published = PRESETS.map(|preset| match of(preset) {
        Some((mean, sd)) => format!("{mean:.3}±{sd:.3}"),
        None => "-".to_owned(),
    });
    line(out, &format!("{cpus:<7}published"), published.into_iter())?;
    let at_first = load();
    let mut results: [Vec<f64>; FLAVOURS.len()] = Default::default();
    for _ in 0..options.runs.unwrap_or(RUNS) {
        for (flavour, results) in FLAVOURS.into_iter().zip(&mut results) {
            results.push(mega_hits(table.title, flavour, row.cpus)?);
        }
    }
    let ours = |results: &Vec<f64>| {
        let summary = Summary::of(results);
        format!("{:.2}±{:.2}", summary.median, summary.sd)
    };
    line(out, &format!("{:<7}ours", ""), results.iter().map(ours))?;
    writeln!(out, "{:<7}hits = calls in every cell; load average {at_first} to {}", "", load())?;
    let [lite, others @ ..] = &results;
    let ratio = |(flavour, other): (&Flavour, &Vec<f64>)| {
        format!("lite/{flavour} at {cpus} {:.3}", middle_ratio(lite, other))
    };
    let ratios: Vec<String> = FLAVOURS[1..].iter().zip(others).map(ratio).collect();
    Ok(ratios.join(", "))
}
