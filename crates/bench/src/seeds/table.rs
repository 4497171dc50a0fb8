//! A published table, and ours in its columns.
//!
//! For:     `bench seeds uprobe` and `bench seeds srcu-lite`.
//! State:   the results of one row at a time.
//! Context: control.
//! Keeps:   T1 a cell that was not published is a dash; each column has one of ours.
//!          T2 all cells of a row come from one run, taken in turns.
//! Checked: tests of `seeds`.

use super::measure::{Kind, Subject};
use super::published::{Column, Row, Table};
use super::{Options, load};
use crate::Summary;
use crate::pin;
use probe::Protection;
use std::io::{Result, Write};

/// Measures and prints a table, for the CPU counts that this machine has.
pub fn print(table: &Table, options: &Options, out: &mut impl Write) -> Result<()> {
    writeln!(out, "{}, M/s; published: kernel, {}; ours: in process, no trap", table.title, table.machine)?;
    line(out, "", table.columns.iter().map(|c| c.name.to_owned()))?;
    line(out, "entries by", table.columns.iter().map(|c| c.by[0].to_string()))?;
    if table.kind == Kind::Return {
        line(out, "returns by", table.columns.iter().map(|c| c.by[1].to_string()))?;
    }
    let rows = table.rows.iter().filter(|row| row.cpus <= pin::online());
    let compared = rows.map(|row| print_row(table, row, options, out)).collect::<Result<Vec<_>>>()?;
    writeln!(out, "lite by srcu, median of the runs: {}\n", compared.concat().join(", "))
}

pub fn line(out: &mut impl Write, head: &str, cells: impl Iterator<Item = String>) -> Result<()> {
    write!(out, "{head:<17}")?;
    cells.into_iter().try_for_each(|cell| write!(out, " {cell:>13}"))?;
    writeln!(out)
}

/// Prints a row; the comparisons of lite with normal readers in it, in words.
fn print_row(table: &Table, row: &Row, options: &Options, out: &mut impl Write) -> Result<Vec<String>> {
    let subject = |c: &Column| Subject::new(table.kind, c.by, options.consumers, 1);
    let subjects: Vec<_> = table.columns.iter().map(subject).collect();
    let mut results = vec![Vec::new(); subjects.len()];
    let at_first = load();
    for _ in 0..options.runs() {
        for (subject, results) in subjects.iter().zip(&mut results) {
            results.push(subject.run(row.cpus, options.calls).map_err(std::io::Error::other)?);
        }
    }
    let cpus = if row.cpus == 1 { "1 CPU".to_owned() } else { format!("{} CPUs", row.cpus) };
    let published = |p: &Option<_>| p.map_or("-".to_owned(), |(mean, sd)| format!("{mean:.3}±{sd:.3}"));
    line(out, &format!("{cpus:<7}published"), row.published.iter().map(published))?;
    let ours = |results: &Vec<f64>| {
        let summary = Summary::of(results);
        format!("{:.2}±{:.2}", summary.median, summary.sd)
    };
    line(out, &format!("{:<7}ours", ""), results.iter().map(ours))?;
    writeln!(out, "{:<7}hits = calls in every cell; load average {at_first} to {}", "", load())?;
    let compared = pairs(table).map(|(lite, normal)| {
        let names = [lite, normal].map(|i| table.columns[i].name);
        let ratio = middle_ratio(&results[lite], &results[normal]);
        format!("{}/{} at {cpus} {ratio:.3}", names[0], names[1])
    });
    Ok(compared.collect())
}

/// The middle of the ratios of results that were taken one after the other.
pub fn middle_ratio(a: &[f64], b: &[f64]) -> f64 {
    let ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / b).collect();
    Summary::of(&ratios).median
}

/// The columns that differ in having lite readers where the other has normal ones. Primes are repetitions.
pub fn pairs(table: &Table) -> impl Iterator<Item = (usize, usize)> + '_ {
    let sides = if table.kind == Kind::Entry { 1 } else { 2 };
    let lite = |p: Protection| if p == Protection::Normal { Protection::Lite } else { p };
    let is_pair = move |a: &Column, b: &Column| {
        let (a, b) = (&a.by[..sides], &b.by[..sides]);
        a != b && b.iter().map(|p| lite(*p)).eq(a.iter().copied())
    };
    let columns = || table.columns.iter().enumerate().filter(|(_, c)| !c.name.ends_with('\''));
    columns().flat_map(move |(i, a)| {
        let others = columns().filter(move |(_, b)| is_pair(a, b));
        others.map(move |(j, _)| (i, j))
    })
}
