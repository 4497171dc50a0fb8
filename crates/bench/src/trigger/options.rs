//! What can be typed after `nanoprobe bench`.
//!
//! For:     `trigger_main`.
//! State:   none.
//! Context: control.
//! Keeps:   O1 every example of the help parses.
//! Checked: tests below.
//! Source:  kernel-facts 6.1 for names and meanings.

use super::benchmark::{self, Benchmark};
use super::phase::SECOND;
use crate::{command, pin};
use session::Flavour;
use std::time::Duration;

/// How to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Samples that are not used.
    pub warm: usize,
    /// Seconds: one sample more than this is used.
    pub seconds: usize,
    /// A sample: a second, or less.
    pub sample: Duration,
    /// Threads that call.
    pub producers: usize,
    /// Where they run, round and round; empty: anywhere.
    pub cpus: Vec<usize>,
    /// The kernel's turn too.
    pub vs_kernel: bool,
    /// Of the general path's readers.
    pub flavour: Flavour,
    /// One object a line.
    pub json: bool,
    /// Nothing but one line a benchmark.
    pub quiet: bool,
    /// Every phase.
    pub verbose: bool,
    /// What to run, in this order.
    pub benchmarks: Vec<Benchmark>,
}

/// What the arguments ask for.
#[derive(Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A run.
    Run(Options),
    /// This text.
    Text(String),
}

/// No run is longer, and none has more producers: the shared memory stays below a gigabyte.
const MOST_SECONDS: usize = 3600;
const MOST_PRODUCERS: usize = 1024;

const HELP: &str = "\
nanoprobe bench [OPTION]... trig-NAME...
nanoprobe bench NAME [OPTION]...
Measures what a probe costs the program that it is in. Threads of a child process call a function of a
known first instruction; the probe counts. Prints hits per second as the kernel's bench does, and the
nanoseconds of processor time that the probe adds to a call; fails unless hits = calls.

  -w, --warmup N     samples of one second to leave out at the start (1)
  -d, --duration N   seconds; N + 1 samples are used, as in the kernel's bench (5)
  -p, --producers N  threads that call (1)
  -c, --consumers N  must be 0; for scripts
  -a, --affinity     producer i stays on CPU i
      --prod-affinity LIST   or on these CPUs, for example 0,2-3
      --flavour NAME of the general path's readers: lite (the same as fast; what is left
                     out), normal or sigsafe; a compiled count has none
      --sample MS    a sample lasts so long: enough to see that it works, too short to
                     measure well (1000)
      --vs kernel    the same functions under a kernel uprobe too, and the ratio (needs root)
  -f, --format json  one object a line
  -q, --quiet        one line a benchmark
  -v, --verbose      every phase
  -l, --list         the names

Examples:
  nanoprobe bench -w1 -d3 -p2 -a trig-uprobe-nop
  nanoprobe bench -w1 -d3 -a --vs kernel trig-uprobe-nop5 trig-uprobe-push
  nanoprobe bench -w1 -d3 -a --flavour normal trig-uprobe-nop
  nanoprobe bench -q -w1 -d1 -f json trig-usermode-count
  nanoprobe bench refscale --nreaders 2 lite fast
";

/// Reads the arguments.
///
/// # Errors
/// What is wrong with them, in words.
pub fn parse(args: &[String]) -> Result<Wanted, lexopt::Error> {
    use lexopt::prelude::*;
    let mut parser = lexopt::Parser::from_args(args);
    let mut is_pinned = false;
    let mut options = Options { seconds: 5, ..Options::shortest() };
    while let Some(arg) = parser.next()? {
        match arg {
            Short('w') | Long("warmup") => options.warm = positive("-w", &mut parser, MOST_SECONDS)?,
            Short('d') | Long("duration") => options.seconds = positive("-d", &mut parser, MOST_SECONDS)?,
            Long("sample") => options.sample = sample(&mut parser)?,
            Short('p') | Long("producers") => {
                options.producers = positive("-p", &mut parser, MOST_PRODUCERS)?;
            }
            Short('c') | Long("consumers") => match parser.value()?.parse::<usize>()? {
                0 => {}
                n => {
                    return Err(
                        format!("-c {n}: a trig benchmark has no consumers, only 0 is allowed").into()
                    );
                }
            },
            Short('a') | Long("affinity") => is_pinned = true,
            Long("prod-affinity") => options.cpus = cpu_list(&parser.value()?.string()?)?,
            Long("vs") => match parser.value()?.string()?.as_str() {
                "kernel" => options.vs_kernel = true,
                other => return Err(format!("--vs {other}: there is only --vs kernel").into()),
            },
            Long("flavour") => options.flavour = flavour(&parser.value()?.string()?)?,
            Short('f') | Long("format") => options.json = crate::refscale::json(&parser.value()?.string()?)?,
            Short('q') | Long("quiet") => options.quiet = true,
            Short('v') | Long("verbose") => options.verbose = true,
            Short('l') | Long("list") => return Ok(Wanted::Text(list())),
            Short('h') | Long("help") => return Ok(Wanted::Text(help())),
            Value(name) => options.benchmarks.push(named(&name.string()?)?),
            other => return Err(other.unexpected()),
        }
    }
    if is_pinned && options.cpus.is_empty() {
        options.cpus = (0..pin::online()).collect();
    }
    match options.benchmarks.is_empty() {
        true => Err("no benchmark named".into()),
        false => Ok(Wanted::Run(options)),
    }
}

impl Options {
    /// One thread, anywhere, and as few samples as there can be.
    pub fn shortest() -> Options {
        Options {
            warm: 1,
            seconds: 1,
            sample: SECOND,
            producers: 1,
            cpus: Vec::new(),
            vs_kernel: false,
            flavour: Flavour::default(),
            json: false,
            quiet: false,
            verbose: false,
            benchmarks: Vec::new(),
        }
    }

    /// Samples that a phase takes, those of the warm-up included.
    pub fn samples(&self) -> usize {
        self.warm + self.seconds + 1
    }
}

/// The milliseconds behind `--sample`.
pub fn sample(parser: &mut lexopt::Parser) -> Result<Duration, lexopt::Error> {
    let (least, most) = (100, 1000);
    let text = parser.value()?.to_string_lossy().into_owned();
    let ms = text.parse::<u64>().ok().filter(|ms| (least..=most).contains(ms));
    let ms = ms.ok_or_else(|| format!("--sample {text}: must be a number of ms from {least} to {most}"))?;
    Ok(Duration::from_millis(ms))
}

fn positive(flag: &str, parser: &mut lexopt::Parser, most: usize) -> Result<usize, lexopt::Error> {
    let text = parser.value()?.to_string_lossy().into_owned();
    let number = text.parse::<usize>().ok().filter(|n| (1..=most).contains(n));
    number.ok_or_else(|| format!("{flag} {text}: must be a number from 1 to {most}").into())
}

fn flavour(name: &str) -> Result<Flavour, lexopt::Error> {
    let found = Flavour::named(name);
    found.ok_or_else(|| format!("--flavour {name}: there are lite, fast, normal and sigsafe").into())
}

/// `0,2-3`
fn cpu_list(text: &str) -> Result<Vec<usize>, lexopt::Error> {
    let wrong = || lexopt::Error::from(format!("{text}: is not a list of CPUs such as 0,2-3"));
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = from.parse::<usize>().ok().zip(to.parse::<usize>().ok()).ok_or_else(wrong)?;
        if from > to || to >= 1024 {
            return Err(wrong());
        }
        cpus.extend(from..=to);
    }
    Ok(cpus)
}

fn named(name: &str) -> Result<Benchmark, lexopt::Error> {
    benchmark::named(name).ok_or_else(|| {
        let all: Vec<String> = benchmark::ALL.iter().map(|b| format!("trig-{}", b.name)).collect();
        let own: Vec<&str> = command::ALL.iter().map(|(name, ..)| *name).collect();
        format!("no benchmark is called {name}; there are: {} {}", own.join(" "), all.join(" ")).into()
    })
}

fn list() -> String {
    let rows = benchmark::ALL.iter();
    let trig: String =
        rows.map(|row| format!("{:<20} {}\n", format!("trig-{}", row.name), row.about)).collect();
    trig + &command::list()
}

fn help() -> String {
    let trig: Vec<&str> = benchmark::ALL.iter().map(|row| row.name).collect();
    let trig = trig.join(" trig-");
    format!(
        "{HELP}\ntrig-{trig}\n\nWith options of their own (nanoprobe bench NAME --help):\n{}",
        command::list()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<Wanted, String> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&args).map_err(|e| e.to_string())
    }

    fn run(line: &str) -> Options {
        match words(line) {
            Ok(Wanted::Run(options)) => options,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn the_line_of_the_sources_parses_unchanged() {
        let options = run("-w3 -d5 -p4 -a trig-uprobe-nop");
        assert_eq!((options.warm, options.seconds, options.producers, options.samples()), (3, 5, 4, 9));
        assert_eq!(options.cpus, (0..pin::online()).collect::<Vec<_>>());
        assert_eq!(options.benchmarks[0].name, "uprobe-nop");
    }

    #[test]
    fn every_example_of_the_help_parses() {
        let lines = HELP.lines().filter_map(|l| l.trim().strip_prefix("nanoprobe bench "));
        let ours: Vec<&str> = lines.filter(|l| l.starts_with('-')).collect();
        assert_eq!(ours.len(), 4);
        ours.iter().for_each(|line| assert!(matches!(words(line), Ok(Wanted::Run(_))), "{line}"));
    }

    #[test]
    fn what_is_left_out_is_as_in_the_kernels_bench() {
        let options = run("trig-uprobe-ret uprobe-count");
        assert_eq!((options.warm, options.seconds, options.producers), (1, 5, 1));
        assert!(options.cpus.is_empty() && !options.vs_kernel && !options.json);
        assert_eq!(options.flavour, Flavour::Lite);
        assert_eq!(run("--flavour sigsafe uprobe-nop").flavour, Flavour::Sigsafe);
        assert_eq!([options.sample, run("--sample 250 uprobe-nop").sample], [SECOND, SECOND / 4]);
        assert_eq!(options.benchmarks.len(), 2);
    }

    #[test]
    fn wrong_arguments_are_named_with_what_would_be_right() {
        for (line, words_in_it) in [
            ("-w0 trig-uprobe-nop", "from 1"),
            ("-p x trig-uprobe-nop", "-p x"),
            ("--flavour lit trig-uprobe-nop", "sigsafe"),
            ("-c1 trig-uprobe-nop", "only 0"),
            ("--sample 7 trig-uprobe-nop", "from 100 to 1000"),
            ("--vs bpftime trig-uprobe-nop", "--vs kernel"),
            ("trig-uprobe-nosuch", "trig-uprobe-nop5"),
            ("--prod-affinity 3-1 trig-uprobe-nop", "0,2-3"),
            ("", "no benchmark"),
        ] {
            let error = words(line).unwrap_err();
            assert!(error.contains(words_in_it), "{line}: {error}");
        }
    }

    #[test]
    fn lists_of_cpus_have_ranges() {
        assert_eq!(run("--prod-affinity 0,2-4 uprobe-nop").cpus, [0, 2, 3, 4]);
    }

    #[test]
    fn the_list_has_every_name() {
        let Ok(Wanted::Text(text)) = words("-l") else { panic!("a list") };
        for benchmark in benchmark::ALL {
            assert!(text.lines().any(|line| line.contains(benchmark.name)), "{text}");
        }
    }
}
