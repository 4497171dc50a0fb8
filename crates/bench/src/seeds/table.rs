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
    line(out, "entries by", table.columns.iter().map(|c| c.by.entry.to_string()))?;
    if table.kind == Kind::Return {
        line(out, "returns by", table.columns.iter().map(|c| c.by.returns.to_string()))?;
    }
    let readers = |c: &Column| if c.by.by_calls { "called" } else { "inlined" }.to_owned();
    line(out, "readers", table.columns.iter().map(readers))?;
    let rows = table.rows.iter().filter(|row| row.cpus <= pin::online());
    let compared = rows.map(|row| print_row(table, row, options, out)).collect::<Result<Vec<_>>>()?;
    let (lite, inlined): (Vec<_>, Vec<_>) = compared.into_iter().unzip();
    writeln!(out, "lite by srcu, median of the runs: {}", lite.concat().join(", "))?;
    match inlined.concat() {
        none if none.is_empty() => writeln!(out),
        all => writeln!(out, "inlined by called, median of the runs: {}\n", all.join(", ")),
    }
}

pub fn line(out: &mut impl Write, head: &str, cells: impl Iterator<Item = String>) -> Result<()> {
    write!(out, "{head:<17}")?;
    cells.into_iter().try_for_each(|cell| write!(out, " {cell:>13}"))?;
    writeln!(out)
}

/// Comparisons in words.
type Words = Vec<String>;

/// Prints a row; its comparisons of lite with normal readers, and of inlined with called ones.
fn print_row(table: &Table, row: &Row, options: &Options, out: &mut impl Write) -> Result<(Words, Words)> {
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
    let compare = |(one, other): (usize, usize)| {
        let names = [one, other].map(|i| table.columns[i].name);
        let ratio = middle_ratio(&results[one], &results[other]);
        format!("{}/{} at {cpus} {ratio:.3}", names[0], names[1])
    };
    Ok((pairs(table).map(compare).collect(), primes(table).map(compare).collect()))
}

/// The middle of the ratios of results that were taken one after the other.
pub fn middle_ratio(a: &[f64], b: &[f64]) -> f64 {
    let ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / b).collect();
    Summary::of(&ratios).median
}

/// The columns that differ in having lite readers where the other has normal ones. Primes are compared by themselves.
pub fn pairs(table: &Table) -> impl Iterator<Item = (usize, usize)> + '_ {
    let sides = if table.kind == Kind::Entry { 1 } else { 2 };
    let lite = |p: Protection| if p == Protection::Normal { Protection::Lite } else { p };
    let is_pair = move |a: &Column, b: &Column| {
        let of = |c: &Column| [c.by.entry, c.by.returns];
        let (calls, a, b) = (a.by.by_calls == b.by.by_calls, of(a), of(b));
        let (a, b) = (&a[..sides], &b[..sides]);
        calls && a != b && b.iter().map(|p| lite(*p)).eq(a.iter().copied())
    };
    let columns = || table.columns.iter().enumerate().filter(|(_, c)| !c.name.ends_with('\''));
    columns().flat_map(move |(i, a)| {
        let others = columns().filter(move |(_, b)| is_pair(a, b));
        others.map(move |(j, _)| (i, j))
    })
}

/// The columns that differ in having inlined readers where the other calls them: A' and A, and so on.
pub fn primes(table: &Table) -> impl Iterator<Item = (usize, usize)> + '_ {
    let all = table.columns.iter().enumerate();
    all.filter_map(|(i, prime)| {
        let plain = prime.name.strip_suffix('\'')?;
        Some((i, table.columns.iter().position(|c| c.name == plain)?))
    })
}
