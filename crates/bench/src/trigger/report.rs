//! The lines of a run.
//!
//! For:     people, and scripts made for the kernel's bench: the summary is the last line.
//! State:   what to leave out.
//! Context: control.
//! Keeps:   L1 progress and summary are letter for letter in the kernel's format.
//!          L2 one object a benchmark with `-f json`, and nothing else.
//! Checked: tests below.
//! Source:  kernel-facts 6.1; the line of a table as the script of S0 makes it.

use super::benchmark::Benchmark;
use super::options::Options;
use super::phase::{Iteration, Phase};
use super::run::{Outcome, Probed};
use crate::Summary;
use serde_json::{Value, json};
use std::io::{Result, Write};

/// How to print.
#[derive(Debug)]
pub struct Report {
    producers: usize,
    json: bool,
    quiet: bool,
    verbose: bool,
}

impl Report {
    /// As the options say.
    pub fn new(options: &Options) -> Report {
        let Options { producers, json, quiet, verbose, .. } = *options;
        Report { producers, json, quiet, verbose }
    }

    fn is_short(&self) -> bool {
        self.json || self.quiet
    }

    /// Before a benchmark.
    pub fn begin(&self, benchmark: &Benchmark, out: &mut impl Write) -> Result<()> {
        if self.is_short() {
            return Ok(());
        }
        writeln!(out, "Setting up benchmark 'trig-{}'...", benchmark.name)?;
        writeln!(out, "Benchmark 'trig-{}' started.", benchmark.name)
    }

    /// At each sample.
    pub fn progress(&self, iteration: &Iteration, out: &mut impl Write) -> Result<()> {
        if self.is_short() {
            return Ok(());
        }
        writeln!(out, "{}", progress_line(iteration, self.producers))
    }

    /// After a benchmark.
    pub fn end(&self, outcome: &Outcome, out: &mut impl Write) -> Result<()> {
        let Some(phase) = outcome.phase() else { return Ok(()) };
        if self.json {
            return writeln!(out, "{}", object(outcome, phase, self.producers));
        }
        if !self.quiet {
            self.figures(outcome, phase, out)?;
        }
        writeln!(out, "{}", table_line(outcome.benchmark.name, &phase.nominal(), self.producers))?;
        if self.quiet {
            return Ok(());
        }
        writeln!(out, "{}", summary_line(&phase.nominal(), self.producers))
    }

    fn figures(&self, outcome: &Outcome, phase: &Phase, out: &mut impl Write) -> Result<()> {
        let function = outcome.benchmark.function;
        writeln!(out, "machine    {}", machine())?;
        match &outcome.ours {
            None => writeln!(out, "unprobed   {} ({})", function.symbol(), function.instruction())?,
            Some((_, site)) => {
                let count = if site.has_rseq { "rseq" } else { "locked adds" };
                let (symbol, first) = (function.symbol(), function.instruction());
                let readers = outcome.benchmark.readers(site.flavour);
                writeln!(
                    out,
                    "probed     {symbol} ({first}): rung {}, counts by {count}{readers}",
                    site.rung
                )?;
            }
        }
        self.rates("rate", phase, out)?;
        match &outcome.ours {
            None => {
                writeln!(out, "cpu time   {:.3} ns per call, {} calls", phase.ns_per_call(), phase.calls)?
            }
            Some((ours, _)) => self.probed(ours, out)?,
        }
        if let Some((ratio, (one, _))) = outcome.ratio_to_one().zip(outcome.one.as_ref()) {
            let consumers = outcome.benchmark.consumers;
            self.probed(one, out)?;
            writeln!(out, "consumers  {consumers} add {ratio:.2}x as much as the one of the lines above")?;
        }
        let Some((kernel, (ours, _))) = outcome.kernel.as_ref().zip(outcome.ours.as_ref()) else {
            return Ok(());
        };
        let kind =
            if outcome.benchmark.is_return { "uretprobe on" } else { "uprobe on the same instruction of" };
        writeln!(
            out,
            "kernel     {kind} the same function (perf_event_open), a BPF program that adds one to its CPU's count"
        )?;
        self.rates("rate", &kernel.phase, out)?;
        self.probed(kernel, out)?;
        let rate = middle(&ours.phase.rates()) / middle(&kernel.phase.rates());
        let cost = outcome.ratio().unwrap_or(f64::NAN);
        writeln!(out, "ours/kernel  rate {rate:.1}x; the kernel adds {cost:.1}x as much to a call")
    }

    fn rates(&self, what: &str, phase: &Phase, out: &mut impl Write) -> Result<()> {
        let rates = phase.rates();
        let (least, most) = rates.first().zip(rates.last()).unwrap_or((&0.0, &0.0));
        writeln!(out, "{what:<10} median {:.3}M/s, min {least:.3}, max {most:.3}", middle(&rates))
    }

    fn probed(&self, probed: &Probed, out: &mut impl Write) -> Result<()> {
        let Probed { phase, unprobed_ns } = probed;
        let [before, after] = unprobed_ns;
        let (ns, added) = (phase.ns_per_call(), probed.added_ns());
        let sign = if phase.hits == phase.calls { "=" } else { "!=" };
        writeln!(
            out,
            "cpu time   {ns:.3} ns per call, {added:.3} ns added ({before:.3} and {after:.3} unprobed)"
        )?;
        let Summary { min, p99, sd, .. } = Summary::of(&phase.cpu_ns);
        write!(out, "           least {min:.3} ns per call")?;
        if self.verbose {
            write!(out, ", sd {sd:.3}, p99 {p99:.3}, in {} stretches", phase.cpu_ns.len())?;
        }
        writeln!(out)?;
        writeln!(out, "hits {} {sign} calls {}", phase.hits, phase.calls)
    }
}

fn middle(rates: &[f64]) -> f64 {
    Summary::of(rates).median
}

fn progress_line(iteration: &Iteration, producers: usize) -> String {
    let off = iteration.took.as_nanos() as f64 / 1e3 - 1e6;
    let hits = iteration.mega_hits();
    let per = hits / producers as f64;
    format!(
        "Iter {:>3} ({off:>7.3}us): hits {hits:>8.3}M/s ({per:>7.3}M/prod), drops {:>8.3}M/s, total operations {hits:>8.3}M/s",
        iteration.index, 0.0
    )
}

fn summary_line(rate: &Summary, producers: usize) -> String {
    let Summary { mean, sd, .. } = rate;
    let per = mean / producers as f64;
    let both = format!("{mean:>8.3} \u{b1} {sd:>5.3}M/s");
    let none = format!("{:>8.3} \u{b1} {:>5.3}M/s", 0.0, 0.0);
    format!("Summary: hits {both} ({per:>7.3}M/prod), drops {none}, total operations {both}")
}

/// A line of the sources' tables.
fn table_line(name: &str, rate: &Summary, producers: usize) -> String {
    let Summary { mean, sd, .. } = rate;
    let per = mean / producers as f64;
    format!("{name:<15} ({producers:>2} cpus): {mean:>8.3} \u{b1} {sd:>5.3}M/s  ({per:>7.3}M/s/cpu)")
}

fn object(outcome: &Outcome, phase: &Phase, producers: usize) -> Value {
    let rounded = |x: f64| json!((x * 1e3).round() / 1e3);
    let (rates, nominal) = (phase.rates(), phase.nominal());
    let mut object = json!({
        "name": outcome.benchmark.name,
        "cpus": producers,
        "median_ns": rounded(phase.ns_per_call()),
        "least_ns": rounded(phase.least_ns_per_call()),
        "median_mps": rounded(middle(&rates)),
        "min_mps": rounded(rates.first().copied().unwrap_or(0.0)),
        "max_mps": rounded(rates.last().copied().unwrap_or(0.0)),
        "mean_mps": rounded(nominal.mean),
        "sd_mps": rounded(nominal.sd),
        "hits": phase.hits,
        "calls": phase.calls,
        "function": outcome.benchmark.function.symbol(),
        "instruction": outcome.benchmark.function.instruction(),
        "machine": machine(),
    });
    if let Some((ours, site)) = &outcome.ours {
        object["unprobed_ns"] = json!(ours.unprobed_ns.map(|ns| (ns * 1e3).round() / 1e3));
        object["added_ns"] = rounded(ours.added_ns());
        object["rung"] = json!(site.rung);
        object["has_rseq"] = json!(site.has_rseq);
        object["flavour"] = json!(site.flavour.to_string());
    }
    if let Some(((one, _), ratio)) = outcome.one.as_ref().zip(outcome.ratio_to_one()) {
        object["consumers"] = json!(outcome.benchmark.consumers);
        object["one_added_ns"] = rounded(one.added_ns());
        object["ratio_to_one"] = rounded(ratio);
    }
    if let Some(kernel) = &outcome.kernel {
        object["kernel_median_ns"] = rounded(kernel.phase.ns_per_call());
        object["kernel_added_ns"] = rounded(kernel.added_ns());
        object["kernel_median_mps"] = rounded(middle(&kernel.phase.rates()));
        object["kernel_hits"] = json!(kernel.phase.hits);
        object["kernel_calls"] = json!(kernel.phase.calls);
        object["ratio_added"] = rounded(outcome.ratio().unwrap_or(f64::NAN));
    }
    object
}

/// Processor, CPUs and kernel of this machine.
pub(super) fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let field = |name: &str| {
        let line = info.lines().find(|l| l.starts_with(name))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    let model = field("model name").unwrap_or_else(|| "unknown processor".into());
    let number = field("cpu family").zip(field("model\t")).map(|(f, m)| format!(" family {f} model {m}"));
    let release = read("/proc/sys/kernel/osrelease");
    let cpus = crate::pin::online();
    format!("{model}{}, {cpus} CPUs, Linux {}", number.unwrap_or_default(), release.trim())
}

#[cfg(test)]
mod tests {
    use super::super::benchmark;
    use super::super::phase;
    use super::super::run::Site;
    use super::*;
    use std::time::Duration;

    fn outcome() -> Outcome {
        let sample = |index, hits| Iteration { index, hits, took: Duration::from_secs(1) };
        let samples = vec![sample(1, 12_333_000), sample(2, 12_359_000)];
        let phase =
            Phase { samples, cpu_ns: vec![5.0, 6.0, 7.0], hits: 40, calls: 40, sample: phase::SECOND };
        let site = Site {
            rung: "nop".into(),
            flavour: session::Flavour::Lite,
            has_rseq: true,
            entered: 40,
            each: vec![40],
        };
        Outcome {
            benchmark: benchmark::named("uprobe-nop").unwrap(),
            plain: None,
            ours: Some((Probed { phase, unprobed_ns: [1.0, 1.5] }, site)),
            one: None,
            kernel: None,
        }
    }

    fn printed(report: &Report) -> String {
        let mut out = Vec::new();
        report.end(&outcome(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    const PLAIN: Report = Report { producers: 2, json: false, quiet: false, verbose: false };

    #[test]
    fn the_summary_is_the_last_line_and_as_the_kernel_prints_it() {
        let text = printed(&PLAIN);
        assert_eq!(
            text.lines().last(),
            Some(
                "Summary: hits   12.346 ± 0.018M/s (  6.173M/prod), drops    0.000 ± 0.000M/s, \
                 total operations   12.346 ± 0.018M/s"
            )
        );
        assert!(text.contains("hits 40 = calls 40\n"));
        assert!(text.contains("6.000 ns per call, 4.750 ns added (1.000 and 1.500 unprobed)\n"));
    }

    #[test]
    fn the_line_of_the_table_is_the_one_that_the_script_cuts_out_of_the_summary() {
        let summary = Summary::of(&[12.333, 12.359]);
        let line = table_line("uprobe-nop", &summary, 2);
        assert_eq!(line, "uprobe-nop      ( 2 cpus):   12.346 ± 0.018M/s  (  6.173M/s/cpu)");
        let printed = summary_line(&summary, 2);
        // cut -d'(' -f1 | cut -d' ' -f3- and cut -d'(' -f2 | cut -d')' -f1 | cut -d/ -f1
        let total = printed.split('(').next().unwrap().splitn(3, ' ').last().unwrap();
        let per = printed.split('(').nth(1).unwrap().split('/').next().unwrap();
        assert_eq!(line, format!("{:<15} ({:>2} cpus): {total} ({per}/s/cpu)", "uprobe-nop", 2));
    }

    #[test]
    fn a_progress_line_is_scaled_by_its_real_length() {
        let iteration = Iteration { index: 3, hits: 2_000_000, took: Duration::from_micros(1_000_500) };
        assert_eq!(
            progress_line(&iteration, 2),
            "Iter   3 (500.000us): hits    1.999M/s (  1.000M/prod), drops    0.000M/s, total operations    1.999M/s"
        );
    }

    #[test]
    fn an_object_has_name_cpus_and_median() {
        let text = printed(&Report { json: true, ..PLAIN });
        assert_eq!(text.lines().count(), 1);
        let object: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(object["name"], "uprobe-nop");
        assert_eq!((object["cpus"].as_u64(), object["median_ns"].as_f64()), (Some(2), Some(6.0)));
        assert_eq!(object["added_ns"].as_f64(), Some(4.75));
    }

    #[test]
    fn quiet_leaves_the_line_of_the_table() {
        let text = printed(&Report { quiet: true, ..PLAIN });
        assert_eq!(text.lines().count(), 1);
        assert!(text.starts_with("uprobe-nop      ( 2 cpus):"));
    }
}
