//! What can be typed.
//!
//! For:     parsing and help; one value a flag (clap makes -h, --help and errors from it).
//! State:   none.
//! Context: control.
//! Keeps:   A1 every example in `--help` parses.
//! Checked: tests below; testkit `faces`.

use crate::filtered::Filter;
use crate::stacks::StackArgs;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use report::To;
use session::Verb;
use std::path::PathBuf;
use std::time::Duration;

/// How a place is written.
macro_rules! specifications {
    () => {
        "\
Probe specifications:
  u:LIB:FUNC         a function; LIB is a path, a file name or a stem (libc); empty: the program itself
  u:LIB:mem*         a glob; u:LIB:/^mem/ a regular expression
  ur:LIB:FUNC        where a function returns
  U:LIB:NAME         a USDT mark; U:LIB:PROVIDER:NAME
  u:LIB:FUNC+0x12    an instruction; u:LIB:0x1234 an address as nm(1) prints it
  w:LIB:VAR+8:4:rw   4 bytes at offset 8 of a variable, reads and writes; w:0x7f00:8:w an address in the process"
    };
}

/// What `-h` shows, which is one screen.
const FEW: &str = concat!(
    "\
Examples (--help has more):
  nanoprobe count 'u:libc:malloc' -p 4242           count calls until Ctrl-C
  nanoprobe count 'u:libc:malloc' --if 'arg0 > 1000000' --by tid,comm -p 4242
  nanoprobe count 'u:libc:malloc' --stack --flame out.svg -p 4242
  nanoprobe lat 'u:libsqlite3:sqlite3_step' -p 4242   how long calls take
  nanoprobe trace 'u:libc:getaddrinfo' -p 4242      each call as it happens
  nanoprobe -e 'u:libc:malloc { @[comm] = sum(arg0); }' -p 4242   a program, in bpftrace's language
  nanoprobe list 'u:libc:*alloc*'                   what would match; touches nothing

",
    specifications!()
);

const EXAMPLES: &str = concat!(
    "\
Examples:
  nanoprobe count 'u:libc:malloc' -p 4242           count calls until Ctrl-C
  nanoprobe count 'u:./server:handle_*' -- ./server --port 0
  nanoprobe count --stack --flame out.svg 'u:libc:malloc' -p 4242   by whom
  nanoprobe count 'u:libc:malloc' --if 'arg0 > 1000000' --by tid,comm -p 4242
  nanoprobe hist 'u:libc:malloc' arg0 -p 4242 --for 10s
  nanoprobe hist 'ur:libc:read' retval -p 4242      what calls return
  nanoprobe trace 'u:libc:getaddrinfo' -p 4242       each call as it happens
  nanoprobe trace --stack 'u:libc:getaddrinfo' -p 4242   by whom
  nanoprobe trace --tree 'u::*' --over 10ms -p 4242   slow calls, inside of one another
  nanoprobe lat 'u:libsqlite3:sqlite3_step' -p 4242   how long calls take
  nanoprobe top 'u:libc:*' -p 4242                   what its functions do, live
  nanoprobe record run.json 'u:libc:*' --stack --calls -p 4242 --for 10s   keep a run
  nanoprobe report run.json                          a page of it: tables, latency over time, flame graph
  nanoprobe report run.json -f perfetto              for another viewer
  nanoprobe watch 'w:./server:connections:8:w' -p 4242     how often a variable is written
  nanoprobe watch --stack 'w:./server:state:4:w' -p 4242   by whom, and its value before and after
  nanoprobe list 'u:libc:*alloc*'                   what would match; touches nothing
  nanoprobe explain --all libc                      how much of a file can be probed

",
    specifications!()
);

/// What the `-h` of a command shows below its options: its own examples, and where the rest is.
macro_rules! examples {
    ($($line:literal),+) => {
        concat!("Examples (--help has more, and how SPEC is written):", $("\n  nanoprobe ", $line),+)
    };
}

const COUNT: &str = examples!(
    "count 'u:libc:malloc' -p 4242           count calls until Ctrl-C",
    "count 'u:./server:handle_*' -- ./server --port 0",
    "count --stack --flame out.svg 'u:libc:malloc' -p 4242   by whom",
    "count 'u:libc:malloc' --if 'arg0 > 1000000' --by tid,comm -p 4242"
);
const HIST: &str = examples!(
    "hist 'u:libc:malloc' arg0 -p 4242 --for 10s",
    "hist 'ur:libc:read' retval -p 4242      what calls return"
);
const LAT: &str = examples!("lat 'u:libsqlite3:sqlite3_step' -p 4242   how long calls take");
const TRACE: &str = examples!(
    "trace 'u:libc:getaddrinfo' -p 4242      each call as it happens",
    "trace --stack 'u:libc:getaddrinfo' -p 4242   by whom",
    "trace --tree 'u::*' --over 10ms -p 4242   slow calls, inside of one another",
    "trace --graph 'u::*' --depth 3 -p 4242   the ways by which calls are made"
);
const TOP: &str = examples!(
    "top 'u:libc:*' -p 4242                  what its functions do, live",
    "top allocations.bt -p 4242              maps and lines of a script"
);
const WATCH: &str = examples!(
    "watch 'w:./server:connections:8:w' -p 4242     how often a variable is written",
    "watch --stack 'w:./server:state:4:w' -p 4242   by whom, and its value before and after"
);
const RECORD: &str = examples!("record run.json 'u:libc:*' --stack --calls -p 4242 --for 10s   keep a run");
const REPORT: &str = concat!(
    "Examples:\n",
    "  nanoprobe report run.json                a page of it: tables, latency over time, flame graph\n",
    "  nanoprobe report run.json -f perfetto    for another viewer\n",
    "  nanoprobe report run.json -o page.html"
);
const LOOK: &str = examples!(
    "list 'u:libc:*alloc*'                   what would match; touches nothing",
    "explain 'u:libc:*alloc*' -p 4242        how each site would be probed",
    "explain --all libc                      how much of a file can be probed"
);

/// Dynamic tracing of user-space programs at nanoseconds per hit.
#[derive(Debug, Parser)]
#[command(name = "nanoprobe", version, after_help = FEW, after_long_help = EXAMPLES, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Count hits, one line a function
    Count(CountArgs),
    /// Histogram of an argument, by powers of two
    Hist(HistArgs),
    /// Histogram of how long calls take, from entry to return or a jump to another function
    Lat(LatArgs),
    /// Each call as it happens: arguments, what it returned, how long it took
    Trace(TraceArgs),
    /// A live view of functions: calls a second, latency over time, last calls, and how the tracing does
    Top(TopArgs),
    /// Count accesses to data, by debug registers or page protection
    Watch(WatchArgs),
    /// Keep a run in a file: times; with --stack by whom, with --calls each call
    Record(RecordArgs),
    /// Make a page, or another viewer's file, of a run that was kept
    Report(ReportArgs),
    /// Show what specifications match; touches nothing
    List(LookArgs),
    /// Show how each site would be probed, and why not on a higher rung; touches nothing
    Explain(ExplainArgs),
    /// Free a process of probes whose nanoprobe was killed (a new attach does it too)
    Recover(RecoverArgs),
    /// Run a script in bpftrace's language: run FILE.bt, or nanoprobe -e 'PROGRAM'
    Run(RestArgs),
    /// Run, assemble or print an eBPF program by itself
    Bpf(crate::bpf::BpfArgs),
    /// What a probe costs, in the kernel's bench format: bench -w1 -d3 -p2 -a trig-uprobe-nop
    Bench(RestArgs),
    /// Long random runs that must end in PASS: torture attach, torture rcu ...
    Torture(RestArgs),
    /// Print what a shell needs to complete nanoprobe's words
    #[command(hide = true)]
    Completions(CompletionsArgs),
    /// Print the manual page, or write the pages of all commands
    #[command(hide = true)]
    Man(ManArgs),
    #[command(hide = true)]
    TortureTarget(RestArgs),
}

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// For which shell
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write a page for each command into this directory
    #[arg(long, value_name = "DIR")]
    pub to: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct RecoverArgs {
    /// The process
    #[arg(short, long, value_name = "PID")]
    pub pid: i32,
}

/// Words that another crate's parser reads.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct RestArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = COUNT, after_long_help = EXAMPLES)]
pub struct CountArgs {
    /// What to probe, for example u:libc:malloc
    #[arg(required = true, value_name = "SPEC")]
    pub specs: Vec<String>,
    #[command(flatten)]
    pub filter: Filter,
    #[command(flatten)]
    pub run: RunArgs,
    /// Count by stack: who called, and who called them
    #[arg(long, conflicts_with_all = ["condition", "by"])]
    pub stack: bool,
    /// Draw the stacks as a flame graph into this SVG file (implies --stack)
    #[arg(long, value_name = "FILE")]
    pub flame: Option<PathBuf>,
    /// Write the stacks folded, one a line, for tools that read such (implies --stack)
    #[arg(long, value_name = "FILE")]
    pub folded: Option<PathBuf>,
    /// Colour the flame graph by what has changed since these folded stacks
    #[arg(long, value_name = "FILE", requires = "flame")]
    pub diff: Option<PathBuf>,
    /// Show source lines and inlined functions in stacks, from debug information (implies --stack)
    #[arg(long)]
    pub lines: bool,
    /// Count in a handler that the agent calls instead of in the trampoline (for measuring)
    #[arg(long, hide_short_help = true)]
    pub by_handler: bool,
}

#[derive(Debug, Args)]
#[command(after_help = LAT, after_long_help = EXAMPLES)]
pub struct LatArgs {
    /// Whose calls to time, for example u:libc:malloc
    #[arg(required = true, value_name = "SPEC")]
    pub specs: Vec<String>,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Args)]
#[command(after_help = TRACE, after_long_help = EXAMPLES)]
pub struct TraceArgs {
    /// Whose calls to show, for example u:libc:getaddrinfo
    #[arg(required = true, value_name = "SPEC")]
    pub specs: Vec<String>,
    /// How many arguments to show, of those that are passed in integer registers
    #[arg(long = "args", value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(0..=3))]
    pub arguments: u8,
    /// Show calls inside of the calls that made them, thread by thread
    #[arg(long, group = "nested")]
    pub tree: bool,
    /// Show at the end by which ways calls were made, how often, and how long they took
    #[arg(long, group = "nested")]
    pub graph: bool,
    /// Show only calls that took at least so long, for example 10ms; in a tree with those that they are inside of
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "graph")]
    pub over: Option<Duration>,
    /// With --tree or --graph, show only calls with fewer than so many traced calls around them
    #[arg(long, value_name = "N", requires = "nested", value_parser = clap::value_parser!(u32).range(1..))]
    pub depth: Option<u32>,
    /// Show with each call the calls that led to it
    #[arg(long, conflicts_with_all = ["tree", "graph"])]
    pub stack: bool,
    /// Show source lines and inlined functions in stacks, from debug information (implies --stack)
    #[arg(long, conflicts_with_all = ["tree", "graph"])]
    pub lines: bool,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Args)]
#[command(after_help = TOP, after_long_help = EXAMPLES)]
pub struct TopArgs {
    /// Which functions, for example 'u:libc:*', or a script, FILE.bt; without any those of the program itself, u::*
    #[arg(value_name = "SPEC")]
    pub specs: Vec<String>,
    #[command(flatten)]
    pub run: RunArgs,
    /// Count calls and do not time them: a tenth of the price
    #[arg(long)]
    pub count: bool,
    /// Print the numbers at each interval, also on a terminal
    #[arg(long)]
    pub plain: bool,
    /// With --plain, or without a terminal: print so many functions
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub rows: usize,
}

/// How `trace` shows calls.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shown {
    /// How many arguments.
    pub arguments: usize,
    pub shape: Shape,
    /// Shorter ones are left out.
    pub over: Option<Duration>,
    /// In a tree and a graph, calls that are inside of so many others are left out.
    pub depth: Option<usize>,
    /// With the time of day.
    pub has_times: bool,
    /// With stacks.
    pub has_stacks: bool,
    /// And their source lines.
    pub has_lines: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shape {
    /// One line a call, when it ends.
    #[default]
    Flat,
    /// Inside of one another.
    Tree,
    /// One line for each way of calls, at the end.
    Graph,
}

#[derive(Debug, Args)]
#[command(after_help = HIST, after_long_help = EXAMPLES)]
pub struct HistArgs {
    /// What to probe, for example u:libc:malloc; one specification, of several functions u:libc:/^(malloc|calloc)$/
    #[arg(value_name = "SPEC")]
    pub spec: String,
    /// Of what: arg0, arg1 ...; retval at a return (ur:); or an expression in the language of scripts, as in 'arg1 * arg2'
    #[arg(value_name = "EXPR", value_parser = expression)]
    pub value: String,
    #[command(flatten)]
    pub filter: Filter,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Args)]
#[command(after_help = WATCH, after_long_help = EXAMPLES)]
pub struct WatchArgs {
    /// What to watch, for example w:./server:connections:8:w; four at most unless --soft
    #[arg(required = true, value_name = "SPEC")]
    pub specs: Vec<String>,
    #[command(flatten)]
    pub run: RunArgs,
    /// Protect pages in the place of debug registers: any number, but slow, the process is held by ptrace, and a thread at such a page dies if np-engine is killed
    #[arg(long)]
    pub soft: bool,
    /// Print each access: value before and after, thread, place in the code
    #[arg(long)]
    pub values: bool,
    /// Print with each access its callers too (implies --values)
    #[arg(long)]
    pub stack: bool,
    /// Count forked children's accesses too (not with --soft)
    #[arg(long, conflicts_with = "soft")]
    pub children: bool,
}

#[derive(Debug, Args)]
#[command(after_help = RECORD, after_long_help = EXAMPLES, mut_arg("output", |arg| arg.hide(true)), mut_arg("format", |arg| arg.hide(true)))]
pub struct RecordArgs {
    /// Write the run into this file, one JSON object a line
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Whose calls to time, for example 'u:libc:*'
    #[arg(required = true, value_name = "SPEC")]
    pub specs: Vec<String>,
    /// Record by which calls each was called: a walk of the stack at each hit
    #[arg(long)]
    pub stack: bool,
    /// Record each call with its thread, its first arguments and its result; calls that come too fast are lost, and counted
    #[arg(long)]
    pub calls: bool,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Args)]
#[command(after_help = REPORT, after_long_help = EXAMPLES)]
pub struct ReportArgs {
    /// What `record` wrote, or any command with -f json -o FILE
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// As what
    #[arg(short, long, default_value = "html", value_parser = report_format())]
    pub format: To,
    /// Write it to this file; without it beside the recording
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// What `report` makes: as what it is asked for, and what that is.
const FORMATS: [(&str, To, &str); 9] = [
    ("html", To::Html, "One page, which needs no network"),
    ("flame", To::Flame, "A flame graph, one SVG file"),
    ("folded", To::Folded, "Folded stacks, one a line"),
    ("speedscope", To::Speedscope, "For speedscope.app: stacks and calls"),
    ("pprof", To::Pprof, "For go tool pprof: stacks, or functions with their times"),
    ("firefox", To::Firefox, "For profiler.firefox.com: stacks and calls"),
    ("chrome", To::Chrome, "For chrome://tracing: calls"),
    ("perfetto", To::Perfetto, "For ui.perfetto.dev: calls as tracks of threads"),
    ("openmetrics", To::OpenMetrics, "OpenMetrics text, for collectors"),
];

fn report_format() -> impl TypedValueParser<Value = To> {
    let known = FORMATS.map(|(name, _, what)| PossibleValue::new(name).help(what));
    let of = |name: String| FORMATS.iter().find(|(known, ..)| *known == name).map(|(_, to, _)| *to);
    PossibleValuesParser::new(known).try_map(move |name| of(name).ok_or("no format"))
}

/// What is recorded beside times.
#[derive(Debug, Clone, Copy, Default)]
pub struct Recorded {
    pub has_stacks: bool,
    pub has_calls: bool,
}

#[derive(Debug, Args, Clone)]
pub struct RunArgs {
    /// Attach to this process
    #[arg(short, long, value_name = "PID", group = "target")]
    pub pid: Option<i32>,
    /// Start this command with the probes in place; its exit code is passed on
    #[arg(last = true, value_name = "CMD", group = "target")]
    pub command: Vec<String>,
    /// Stop by itself after this time, for example 10s, 500ms or 2m
    #[arg(long = "for", short = 'd', value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,
    /// Print results so far at this interval
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    pub interval: Option<Duration>,
    /// With -i, print what came in each interval in the place of results so far
    #[arg(long, requires = "interval")]
    pub deltas: bool,
    /// Say when: the time of day (UTC) before each result of -i and each call of trace
    #[arg(long)]
    pub timestamps: bool,
    /// How to print results
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Write results to this file
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Say nothing but results, errors and what was lost
    #[arg(short, long)]
    pub quiet: bool,
    /// Say more: every site that was left out, and why
    #[arg(short, long)]
    pub verbose: bool,
    /// Fail if any site that matches cannot be probed
    #[arg(long, hide_short_help = true)]
    pub strict: bool,
    /// Take a kernel uprobe where no jump fits, also at sites that only a pattern matches: each of its hits traps
    #[arg(long, conflicts_with = "no_kernel")]
    pub kernel: bool,
    /// Leave out all sites where only a kernel uprobe fits, also functions given by their whole name
    #[arg(long, hide_short_help = true)]
    pub no_kernel: bool,
    /// Cost the process so much of its processor time at most, for example 2%
    ///
    /// Functions that are too dear are in for a part of the time, and their hits estimated.
    #[arg(long, value_name = "PERCENT", value_parser = percent, conflicts_with_all = ["kernel", "follow", "wait"])]
    pub budget: Option<f64>,
    /// Follow children
    ///
    /// Forked ones are counted with their parent, programs that are started are probed before they run.
    #[arg(long)]
    pub follow: bool,
    /// Wait for libraries that are not loaded yet
    ///
    /// Those that are loaded again are probed again.
    #[arg(long)]
    pub wait: bool,
    /// Leave out functions that were not hit
    #[arg(long)]
    pub hit_only: bool,
    /// What `trace` shows.
    #[arg(skip)]
    pub shown: Shown,
    /// For `record`.
    #[arg(skip)]
    pub recorded: Option<Recorded>,
    /// What `count` does with stacks.
    #[arg(skip)]
    pub stacks: StackArgs,
    /// Wait so long for threads that get no CPU and for other nanoprobes at work, before giving up
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration, hide_short_help = true)]
    pub patience: Duration,
    /// Put at most this many probes
    #[arg(long, value_name = "N", default_value_t = 100_000, hide_short_help = true)]
    pub max_probes: usize,
}

#[derive(Debug, Args)]
#[command(after_help = LOOK, after_long_help = EXAMPLES)]
pub struct LookArgs {
    /// What to look for, for example 'u:libc:*alloc*'
    #[arg(required = true, value_name = "SPEC")]
    pub specs: Vec<String>,
    /// In this process
    #[arg(short, long, value_name = "PID")]
    pub pid: Option<i32>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Say more: the bytes displaced, and aliases
    #[arg(short, long)]
    pub verbose: bool,
}

#[derive(Debug, Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    pub look: LookArgs,
    /// Shares of all functions and instructions of the files named, by rung; u:libc:'*' or just libc
    #[arg(long)]
    pub all: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Text,
    /// One object a line
    Json,
}

fn expression(text: &str) -> Result<String, String> {
    // Two specifications, or the two the wrong way round.
    match ["u:", "ur:", "U:", "w:", "uprobe:", "uretprobe:", "usdt:"]
        .iter()
        .any(|head| text.starts_with(head))
    {
        true => {
            Err("write arg0, arg1, ... (the first argument is arg0), or retval, behind one specification"
                .into())
        }
        false => Ok(text.to_owned()),
    }
}

/// The verb whose own code makes a histogram of this, if there is one.
pub fn value(text: &str) -> Option<Verb> {
    if text == "retval" {
        return Some(Verb::HistogramOfReturn);
    }
    text.strip_prefix("arg").and_then(|n| n.parse().ok()).map(Verb::HistogramOfArgument)
}

/// A part of a hundred that is more than none.
pub fn percent(text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').unwrap_or(text).parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent),
        _ => Err("write a part of the processor time, as in 2%".into()),
    }
}

/// A time that is more than none.
pub fn duration(text: &str) -> Result<Duration, String> {
    match torture::duration(text)? {
        Duration::ZERO => Err("a time must be more than 0".into()),
        time => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_of_the_help_parses() {
        let own = [COUNT, HIST, LAT, TRACE, TOP, WATCH, RECORD, REPORT, LOOK];
        let examples = EXAMPLES.lines().chain(FEW.lines()).chain(own.iter().flat_map(|text| text.lines()));
        let is_verb = |line: &&str| line.starts_with("nanoprobe ") && !line.starts_with("nanoprobe -e");
        let lines = examples.map(str::trim).filter(is_verb);
        let mut seen = 0;
        for line in lines {
            let line = line.split("   ").next().unwrap_or(line).replace('\'', "");
            Cli::try_parse_from(line.split_whitespace()).unwrap_or_else(|e| panic!("{line}: {e}"));
            seen += 1;
        }
        assert_eq!(seen, 46);
    }

    #[test]
    fn a_histogram_says_what_it_takes() {
        let refused = |words: &[&str]| Cli::try_parse_from(words).map(drop).unwrap_err().to_string();
        for words in [&["nanoprobe", "hist", "arg0", "u:a:b"][..], &["nanoprobe", "hist", "u:a:b", "u:c:d"]] {
            assert!(refused(words).contains("behind one specification"), "{words:?}");
        }
        assert!(refused(&["nanoprobe", "hist", "u:a:b"]).contains("<SPEC> <EXPR>"));
    }

    #[test]
    fn a_budget_is_a_part_of_a_hundred() {
        assert_eq!(["2%", "0.5", "100%"].map(percent), [Ok(2.0), Ok(0.5), Ok(100.0)]);
        assert!(["0", "-1%", "101%", "nan", "", "%"].iter().all(|text| percent(text).is_err()));
    }

    #[test]
    fn times_have_units_and_are_positive() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("1.5"), Ok(Duration::from_millis(1500)));
        for wrong in ["", "x", "5y", "0s", "-1s", "nan"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
