//! Results as text and as JSON.
//!
//! For:     the engine; data to stdout or a file, talk to stderr.
//! State:   where to write.
//! Context: control.
//! Keeps:   R1 the closing lines are always there: hits, handled, skipped; what was left out; detach.
//! Checked: tests of `histogram`; testkit `faces`.

use crate::args::{Format, RunArgs};
use crate::engine::Job;
use serde_json::{Map, Value, json};
use session::{Receipt, Session, Verb};
use std::fs::File;
use std::io::{self, Write};
use std::time::Duration;

mod histogram;

/// Counts of one site.
pub struct Row {
    pub name: String,
    pub hits: u64,
    /// Buckets of a histogram; empty for a count.
    pub buckets: Vec<u64>,
}

/// All counts at one moment.
pub struct Report {
    pub rows: Vec<Row>,
    pub hits: u64,
    pub handled: u64,
    pub children: u64,
    what: Option<String>,
}

impl Report {
    pub fn of(session: &Session, job: &Job) -> Report {
        let is_hist = matches!(job.verb, Verb::HistogramOfArgument(_));
        let is_plain = job.verb == Verb::Count;
        let mut rows: Vec<Row> = session
            .sites()
            .map(|site| Row {
                name: site.plan.name.clone(),
                hits: site.hits(),
                buckets: if is_hist { site.cells(0) } else { Vec::new() },
            })
            .collect();
        name_apart(&mut rows, session);
        rows.sort_by(|a, b| a.hits.cmp(&b.hits).then_with(|| a.name.cmp(&b.name)));
        let handled = rows.iter().map(|r| r.hits).sum();
        let hits = if is_plain { handled } else { session.entered() };
        if job.args.hit_only {
            rows.retain(|r| r.hits > 0);
        }
        let children = session.sites().map(|s| s.children_hits()).sum();
        let what = match job.verb {
            Verb::HistogramOfArgument(n) => Some(format!("arg{n}")),
            _ => None,
        };
        Report { rows, hits, handled, children, what }
    }
}

/// Functions of one name in several files, or several in one, are told apart by file and address.
fn name_apart(rows: &mut [Row], session: &Session) {
    let mut names: Vec<&str> = session.sites().map(|s| s.plan.name.as_str()).collect();
    names.sort_unstable();
    let is_double = |name: &str| {
        let first = names.partition_point(|n| *n < name);
        names.get(first + 1) == Some(&name)
    };
    for (row, site) in rows.iter_mut().zip(session.sites()) {
        if is_double(&row.name) {
            let file = site.plan.module.rsplit('/').next().unwrap_or_default();
            row.name = format!("{}:{}@{:#x}", file, row.name, site.plan.placement.site);
        }
    }
}

/// Where results go.
pub struct Writer {
    pub format: Format,
    out: Box<dyn Write>,
    pub is_quiet: bool,
    is_verbose: bool,
    is_launched: bool,
    left_out: usize,
}

impl Writer {
    pub fn open(args: &RunArgs) -> Result<Writer, String> {
        let out: Box<dyn Write> = match &args.output {
            None => Box::new(io::BufWriter::new(io::stdout())),
            Some(path) => Box::new(io::BufWriter::new(
                File::create(path).map_err(|e| format!("{}: {e}", path.display()))?,
            )),
        };
        Ok(Writer {
            format: args.format,
            out,
            is_quiet: args.quiet,
            is_verbose: args.verbose,
            is_launched: !args.command.is_empty(),
            left_out: 0,
        })
    }

    pub fn line(&mut self, text: &str) {
        // A closed pipe on stdout ends the talk, not the detach.
        let _ = writeln!(self.out, "{text}").and_then(|()| self.out.flush());
    }

    /// The first line: what is armed, how, and at what price.
    pub fn attached(&mut self, session: &Session, refused: &[(String, String)], missed: &[(String, String)]) {
        self.left_out = refused.len() + missed.len();
        let probes: usize = session.rungs().iter().map(|(_, n)| n).sum();
        let rungs: Vec<String> = session.rungs().iter().map(|(r, n)| format!("{n} {r}")).collect();
        let (took, stall) = (session.attach_time(), session.longest_stall());
        if self.format == Format::Json {
            let by_rung: Map<String, Value> =
                session.rungs().iter().map(|(r, n)| (r.to_string(), json!(n))).collect();
            let pair = |(name, why): &(String, String)| json!({"name": name, "reason": why});
            let left_out: Vec<Value> = refused.iter().chain(missed).map(pair).collect();
            let data = json!({
                "probes": probes, "rungs": by_rung, "left_out": left_out, "pid": session.pid(),
                "attach_us": took.as_micros() as u64, "longest_stall_us": stall.as_micros() as u64,
            });
            self.line(&json!({"type": "attached_probes", "data": data}).to_string());
        }
        if !self.is_quiet {
            let noun = if probes == 1 { "probe" } else { "probes" };
            let rungs = rungs.join(", ");
            let end = if self.is_launched { "Ctrl-C or its end to end." } else { "Ctrl-C to end." };
            eprintln!(
                "Attached {probes} {noun} in {} ({rungs}); longest stall {}. {end}",
                time(took),
                time(stall)
            );
        }
        self.say_left_out(refused, missed);
    }

    fn say_left_out(&self, refused: &[(String, String)], missed: &[(String, String)]) {
        if self.left_out == 0 || (self.is_quiet && !self.is_verbose) {
            return;
        }
        let shown = if self.is_verbose { usize::MAX } else { 3 };
        for (name, why) in refused.iter().chain(missed).take(shown) {
            eprintln!("nanoprobe: left out {name}: {why}");
        }
        if self.left_out > shown {
            eprintln!("nanoprobe: left out {} more; -v shows them", self.left_out - shown);
        }
    }

    /// The counts.
    pub fn results(&mut self, report: &Report) {
        match (self.format, &report.what) {
            (Format::Text, None) => {
                for row in &report.rows {
                    self.line(&format!("@[{}]: {}", row.name, row.hits));
                }
            }
            (Format::Text, Some(what)) => {
                for row in &report.rows {
                    self.line(&format!("@[{}, {what}]:", row.name));
                    for bar in histogram::bars(&row.buckets) {
                        self.line(&bar);
                    }
                }
            }
            (Format::Json, None) => {
                let map: Map<String, Value> =
                    report.rows.iter().map(|r| (r.name.clone(), json!(r.hits))).collect();
                self.line(&json!({"type": "map", "data": {"@": map}}).to_string());
            }
            (Format::Json, Some(_)) => {
                let map: Map<String, Value> =
                    report.rows.iter().map(|r| (r.name.clone(), histogram::json(&r.buckets))).collect();
                self.line(&json!({"type": "hist", "data": {"@": map}}).to_string());
            }
        }
    }

    /// The closing lines.
    pub fn receipt(&mut self, report: &Report, receipt: &Receipt, cpu_ticks: Option<u64>) {
        let skipped = report.hits.saturating_sub(report.handled);
        if self.format == Format::Json {
            let data = json!({
                "hits": report.hits, "handled": report.handled,
                "skipped": if skipped == 0 { json!({}) } else { json!({"ended_inside": skipped}) },
                "children_hits": report.children, "left_out": self.left_out,
                "detach_verified": receipt.is_verified && !receipt.was_gone,
                "target_gone": receipt.was_gone, "restored": receipt.restored,
                "handed_over": receipt.handed_over, "foreign": receipt.foreign,
                "memory_returned": receipt.is_unmapped, "children_freed": receipt.children,
                "detach_us": receipt.took.as_micros() as u64,
                "longest_stall_us": receipt.longest_stall.as_micros() as u64,
            });
            self.line(&json!({"type": "receipt", "data": data}).to_string());
        }
        if skipped > 0 {
            eprintln!("nanoprobe: {skipped} hits skipped: their threads ended inside the probe");
        }
        if report.children > 0 {
            let n = report.children;
            eprintln!("nanoprobe: {n} hits in forked children are not counted above");
        }
        for name in &receipt.foreign {
            eprintln!("nanoprobe: {name} was changed by somebody else meanwhile and left alone");
        }
        if self.is_quiet {
            return;
        }
        eprintln!(
            "Hits {}: {} handled, {skipped} skipped; {} sites left out.",
            report.hits, report.handled, self.left_out
        );
        if report.hits == 0 {
            eprintln!("{}", why_nothing(receipt, cpu_ticks));
        }
        eprintln!("{}", detach_line(receipt));
    }
}

fn why_nothing(receipt: &Receipt, cpu_ticks: Option<u64>) -> &'static str {
    match cpu_ticks {
        _ if receipt.was_gone => "Nothing was hit before the process ended.",
        Some(0) => "Nothing was hit: the process slept, it used no CPU time meanwhile.",
        _ => "Nothing was hit: the process ran, but came by none of these sites.",
    }
}

/// What became of the target, in one line.
pub fn detach_line(receipt: &Receipt) -> String {
    let stall = time(receipt.longest_stall);
    if receipt.was_gone {
        return format!("Detach verified: nothing to restore, the process ended; longest stall {stall}.");
    }
    let verdict = if receipt.is_verified { "yes" } else { "NO" };
    let mut parts = vec![format!("{} sites restored in {}", receipt.restored, time(receipt.took))];
    if receipt.handed_over > 0 {
        parts.push(format!("{} handed to another nanoprobe", receipt.handed_over));
    }
    if receipt.children > 0 {
        parts.push(format!("{} forked children freed", receipt.children));
    }
    match receipt.held_by {
        _ if receipt.is_unmapped => parts.push("memory returned".into()),
        Some(tid) => parts.push(format!("memory still held by thread {tid}")),
        None => parts.push("memory not returned".into()),
    }
    format!("Detach verified: {verdict}; {}; longest stall {stall}.", parts.join(", "))
}

/// A time with the unit that fits.
pub fn time(duration: Duration) -> String {
    match duration.as_micros() {
        us @ 0..10_000 => format!("{us} us"),
        us @ 10_000..10_000_000 => format!("{} ms", us / 1000),
        us => format!("{} s", us / 1_000_000),
    }
}
