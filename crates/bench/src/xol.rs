//! `bench xol`: the experiment of 2014 on what a slot's cache flush costs, with int3 probes in process.
//!
//! For:     docs/xol.md.
//! State:   the trap engine of this process.
//! Context: control.
//! Keeps:   X1 after each stretch, hits counted = calls x probes, or the run fails.
//!          X2 the seven rows are measured in turns within one run; the median of the turns counts.
//! Checked: tests below, cli tests/bench.rs.
//! Source:  a mail of 14 April 2014 to linux-arm-kernel by Victor Kamensky, for rows, workload and figures. Departs:
//!          the machine, and that the traps are signals of one process; on x86-64 the broadcast is a core-serialising
//!          membarrier(2), since caches see stores by themselves.

mod published;
mod work;

use crate::Summary;
use crate::command;
use crate::refscale::json;
use published::ROWS;
use std::io::{Error, Write};
use work::{Stretch, Work};

const HELP: &str = "\
nanoprobe bench xol [OPTION]...
Microseconds per call of a function of about 8000 instructions whose first one is probed by int3 in process and runs in
an out-of-line slot: without a probe, with a lookup per hit, with 1000 mappings more, without the lookup, with every
thread serialised at each hit (one and two threads), and with a slot that is written once. Published figures beside ours.

  --calls N     calls of each row (300000, about 20 s on the machine of docs/xol.md; published: 1000000)
  --rounds N    turns that they are split into; the median counts (10)
  -f json       one object per line, with name and us

Example: nanoprobe bench xol --calls 1000000
";

struct Options {
    calls: u64,
    rounds: u64,
    json: bool,
}

/// Runs the benchmark; the exit status.
pub fn xol_main(args: &[String]) -> i32 {
    command::carry_out("xol", parse(args), |options, out| {
        run(&options, out).map_err(|error| Error::other(format!("xol: {error}")))
    })
}

fn parse(args: &[String]) -> Result<Option<Options>, lexopt::Error> {
    use lexopt::prelude::*;
    let mut options = Options { calls: 300_000, rounds: 10, json: false };
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Long("calls") => options.calls = parser.value()?.parse::<u64>()?.max(1),
            Long("rounds") => options.rounds = parser.value()?.parse::<u64>()?.max(1),
            Short('f') => options.json = json(&parser.value()?.string()?)?,
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(None);
            }
            other => return Err(other.unexpected()),
        }
    }
    Ok(Some(options))
}

/// What was measured of a row.
#[derive(Default)]
struct Row {
    wall_us: Vec<f64>,
    cpu_us: Vec<f64>,
    calls: u64,
    hits: u64,
    written: u64,
}

impl Row {
    fn add(&mut self, stretch: Stretch) {
        self.wall_us.push(stretch.wall_us);
        self.cpu_us.push(stretch.cpu_us);
        self.calls += stretch.calls;
        self.hits += stretch.hits;
        self.written += stretch.written;
    }

    fn wall(&self) -> f64 {
        Summary::of(&self.wall_us).median
    }

    fn cpu(&self) -> f64 {
        Summary::of(&self.cpu_us).median
    }
}

fn run(options: &Options, out: &mut impl Write) -> std::io::Result<()> {
    let work = Work::new()?;
    let mut rows: Vec<Row> = ROWS.iter().map(|_| Row::default()).collect();
    let calls = (options.calls / options.rounds).max(1);
    for _ in 0..options.rounds {
        for (row, kind) in rows.iter_mut().zip(&ROWS) {
            row.add(work.stretch(&kind.setting, calls)?);
        }
    }
    if options.json {
        return print_json(&rows, out);
    }
    print_table(&rows, options, out)
}

fn print_json(rows: &[Row], out: &mut impl Write) -> std::io::Result<()> {
    for (row, kind) in rows.iter().zip(&ROWS) {
        let (name, threads) = (kind.name, kind.setting.threads);
        let Row { calls, hits, written, .. } = row;
        let (us, cpu, percent) = (row.wall(), row.cpu(), 100.0 * row.cpu() / rows[0].cpu());
        let (arndale, pandaboard) =
            (kind.arndale_us, kind.pandaboard_us.map_or("null".into(), |us| us.to_string()));
        writeln!(
            out,
            "{{\"name\":\"xol {name}\",\"us\":{us:.4},\"cpu_us\":{cpu:.4},\"percent\":{percent:.1},\
             \"threads\":{threads},\"calls\":{calls},\"hits\":{hits},\"slots_written\":{written},\
             \"published_arndale_us\":{arndale},\"published_pandaboard_us\":{pandaboard}}}"
        )?;
    }
    Ok(())
}

fn print_table(rows: &[Row], options: &Options, out: &mut impl Write) -> std::io::Result<()> {
    writeln!(
        out,
        "us per call of a function of about 8000 instructions, {} calls a row in {} turns (medians); %: of the first row",
        options.calls, options.rounds
    )?;
    writeln!(
        out,
        "{:<44} {:>8} {:>8} {:>5} {:>8}   Arndale      Pandaboard",
        "", "wall", "CPU", "%", "added"
    )?;
    let base = rows[0].cpu();
    for (row, kind) in rows.iter().zip(&ROWS) {
        let (wall, cpu) = (row.wall(), row.cpu());
        let pandaboard = match (kind.pandaboard_us, kind.pandaboard_percent) {
            (Some(us), Some(percent)) => format!("{us:>5.1} ({percent})"),
            _ => "    -".to_string(),
        };
        writeln!(
            out,
            "{:<44} {wall:>8.3} {cpu:>8.3} {:>5.0} {:>8.3}   {:>5.1} ({}){} {pandaboard}",
            kind.title,
            100.0 * cpu / base,
            cpu - base,
            kind.arndale_us,
            kind.arndale_percent,
            if kind.is_slip { "*" } else { " " },
        )?;
    }
    print_notes(rows, out)
}

fn print_notes(rows: &[Row], out: &mut impl Write) -> std::io::Result<()> {
    writeln!(out, "* printed so in the source; 8.9 of 5.0 is 178 %: a slip")?;
    writeln!(out, "broadcast serialisation: membarrier SYNC_CORE; on x86-64 no cache has to be flushed")?;
    let (calls, hits) = rows[1..].iter().fold((0, 0), |sum, row| (sum.0 + row.calls, sum.1 + row.hits));
    writeln!(out, "hits {hits} = calls {calls}")?;
    let slot = rows[3].cpu() - rows[6].cpu();
    writeln!(
        out,
        "dynamic less cached (slot taken, written, given back): {slot:.3} us a hit (published 0.5 to 1.1)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_measured_and_counts_each_call() {
        let options = Options { calls: 600, rounds: 2, json: true };
        let mut out = Vec::new();
        run(&options, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let rows: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(rows.len(), 7, "{text}");
        for row in &rows {
            let threads = row["threads"].as_u64().unwrap();
            assert_eq!(row["calls"], 600 * threads);
            let want = if row["name"] == "xol none" { 0 } else { 600 * threads };
            assert_eq!(row["hits"], want, "{row}");
        }
        let written = |n: usize| rows[n]["slots_written"].as_u64().unwrap();
        assert_eq!((written(0), written(1), written(3), written(5)), (0, 600, 600, 1200));
        assert!(written(6) <= 2, "a cached slot is written once a stretch");
    }
}
