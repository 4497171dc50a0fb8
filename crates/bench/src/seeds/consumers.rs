//! What the second to eighth consumer of a probe cost.
//!
//! For:     `bench seeds consumers`.
//! State:   none.
//! Context: control.
//! Keeps:   C1 all figures come from one run, taken in turns.
//!          C2 each consumer counted each call, or the run fails.
//! Checked: tests of `seeds`; C2 by `Subject` in every run.

use super::measure::{Kind, Subject, TYPES};
use super::table::middle_ratio;
use super::{Options, load};
use crate::Summary;
use crate::pin;
use probe::{Config, Protection};
use std::io::{Error, Result, Write};

const COUNTS: [usize; 4] = [1, 2, 4, 8];

/// Measures and prints: the entry side, then the return side.
pub fn print(options: &Options, out: &mut impl Write) -> Result<()> {
    pin::pin_to(0);
    for (kind, title) in [(Kind::Entry, "a hit"), (Kind::Return, "a hit and its return")] {
        for (types, of) in [(1, "one type"), (TYPES, "as many types")] {
            writeln!(out, "{title}, ns of processor time, consumers of {of} that count")?;
            print_block(kind, types, options, out)?;
        }
    }
    Ok(())
}

/// One line of a block: how it is protected (`None`: no registry), and the results by number of consumers.
struct Line {
    by: Option<Protection>,
    subjects: Vec<Subject>,
    results: [Vec<f64>; COUNTS.len()],
}

fn print_block(kind: Kind, types: usize, options: &Options, out: &mut impl Write) -> Result<()> {
    let line = |by: Option<Protection>| {
        let by_both = by.unwrap_or(Protection::Fast);
        let subject = |n| Subject::new(kind, Config::new(by_both, by_both), n, types);
        Line { by, subjects: COUNTS.map(subject).into(), results: Default::default() }
    };
    let bare = (kind == Kind::Entry).then_some(None);
    let mut lines: Vec<Line> = Protection::ALL.into_iter().map(Some).chain(bare).map(line).collect();
    let at_first = load();
    for _ in 0..options.runs() {
        lines.iter_mut().try_for_each(|line| run(line, options.calls))?;
    }
    writeln!(out, "{:<13} {:>8} {:>8} {:>8} {:>8} {:>8} {:>10}", "by", 1, 2, 4, 8, "8 by 1", "each more")?;
    for Line { by, results, .. } in &lines {
        let name = by.map_or("no registry".to_owned(), |by| by.to_string());
        let middle = |i: usize| Summary::of(&results[i]).median;
        let (ratio, more) = (middle_ratio(&results[3], &results[0]), (middle(3) - middle(0)) / 7.0);
        write!(out, "{name:<13}")?;
        (0..COUNTS.len()).try_for_each(|i| write!(out, " {:>8.2}", middle(i)))?;
        writeln!(out, " {ratio:>7.2}x {more:>10.2}")?;
    }
    writeln!(out, "each consumer counted every call; load average {at_first} to {}\n", load())
}

fn run(line: &mut Line, calls: u64) -> Result<()> {
    for (subject, results) in line.subjects.iter().zip(&mut line.results) {
        let ns = match line.by {
            Some(_) => subject.cpu_ns(calls),
            None => subject.bare_cpu_ns(calls),
        };
        results.push(ns.map_err(Error::other)?);
    }
    Ok(())
}
