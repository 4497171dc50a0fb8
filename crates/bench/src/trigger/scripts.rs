//! `bench scripts`: what the hits of a script cost, beside the same script in bpftrace and a BPF program of the kernel.
//!
//! For:     the prices of docs/programs.md, by whoever wants to see them on another machine.
//! State:   none.
//! Context: control; the traced program is a child, and so is whoever runs a script.
//! Keeps:   S1 every figure is the processor time of a call with the script in, less that of the calls before and after, in the same
//!          child.
//!          S2 probes go in before the first call and out behind the last, so that the hits that nanoprobe tells of are the calls, or
//!          the run fails.
//! Checked: cli tests/bench.rs.

use super::child::Traced;
use super::error::TriggerError;
use super::functions::Function;
use super::kernel::Uprobe;
use super::options::Options;
use super::options::sample;
use super::phase::{Length, Phase, SECOND};
use super::run;
use crate::Summary;
use crate::command::carry_out;
use crate::pin;
use session::Verb;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const NAME: &str = "scripts";
const HELP: &str = "\
nanoprobe bench scripts [OPTION]... [ROW]...
Measures what a script adds to a call of a C function: nanoseconds of processor time.
arg0 goes from 0 to 999 and over again, arg1 is a text of 31 bytes on the thread's stack, arg2 one on the heap.
The function begins with a push, which the kernel's uprobes need not step over.
Stacks: \"stack\" by unwind tables, \"framed\" 16 of their frames by frame pointers, \"anew\" by tables and no two the same;
what 16 frames more cost is the difference between 20 and 4.

  -d, --duration N       seconds of each (2)
      --sample MS        so long for a second: enough to see that it works (1000)
  -p, --producers N      threads that call, each on a CPU of its own (1)
  -r, --rounds N         each so often, by turns; told is the middle one, and the least and the most that were seen (1)
      --bpftrace PROGRAM the same scripts by this bpftrace too (needs root; without it, by one in PATH)
      --alone            by no bpftrace
      --kernel           a BPF program of the kernel that counts the same calls too (needs root)
  -l, --list             the rows
";

/// A row: its name, the function that is called, and the script; without a probe it is one at the entry.
type Row = (&'static str, Function, &'static str);

const ROWS: [Row; 20] = [
    ("count", Function::Args, "{ @ = count(); }"),
    ("no", Function::Args, "/arg0 > 1000000/ { @ = count(); }"),
    ("hist", Function::Args, "{ @ = hist(arg0); }"),
    ("by-tid", Function::Args, "{ @[tid] = count(); }"),
    ("by-arg0", Function::Args, "{ @[arg0] = count(); }"),
    ("sum", Function::Args, "{ @ = sum(arg0); }"),
    ("scalar", Function::Args, "{ @++; }"),
    ("nsecs", Function::Args, "{ @ = max(nsecs); }"),
    ("record", Function::Args, "/arg0 == 500/ { printf(\"%d %d %d\\n\", arg0, arg1, arg2); }"),
    ("str-stack", Function::Args, "/str(arg1, 32) == \"another\"/ { @ = count(); }"),
    ("str-heap", Function::Args, "/str(arg2, 32) == \"another\"/ { @ = count(); }"),
    ("stack-4", Function::Deep, "{ @[ustack(4)] = count(); }"),
    ("stack-20", Function::Deep, "{ @[ustack(20)] = count(); }"),
    ("framed-20", Function::Framed, "{ @[ustack(20)] = count(); }"),
    ("framed-anew-4", Function::FramedAnew, "{ @[ustack(4)] = count(); }"),
    ("framed-anew-20", Function::FramedAnew, "{ @[ustack(20)] = count(); }"),
    ("anew-4", Function::Anew, "{ @[ustack(4)] = count(); }"),
    ("anew-20", Function::Anew, "{ @[ustack(20)] = count(); }"),
    ("retval", Function::Args, "uretprobe { @ = hist(retval); }"),
    (
        "latency",
        Function::Args,
        "uprobe { @start[tid] = nsecs; } uretprobe /@start[tid]/ { @ = hist(nsecs - @start[tid]); delete(@start[tid]); }",
    ),
];

#[derive(Debug)]
struct Wanted {
    seconds: usize,
    sample: Duration,
    producers: usize,
    rounds: usize,
    bpftrace: Option<String>,
    is_vs_kernel: bool,
    rows: Vec<Row>,
}

/// Runs it; the exit status.
pub fn main(args: &[String]) -> i32 {
    carry_out(NAME, parse(args), |wanted, out| measure(&wanted, out).map_err(std::io::Error::other))
}

fn parse(args: &[String]) -> Result<Option<Wanted>, lexopt::Error> {
    use lexopt::prelude::*;
    let mut wanted = Wanted {
        seconds: 2,
        sample: SECOND,
        producers: 1,
        rounds: 1,
        bpftrace: None,
        is_vs_kernel: false,
        rows: Vec::new(),
    };
    let (mut parser, mut is_alone) = (lexopt::Parser::from_args(args), false);
    while let Some(arg) = parser.next()? {
        match arg {
            Short('d') | Long("duration") => wanted.seconds = parser.value()?.parse()?,
            Long("sample") => wanted.sample = sample(&mut parser)?,
            Short('p') | Long("producers") => {
                wanted.producers = parser.value()?.parse::<usize>()?.clamp(1, 1024)
            }
            Short('r') | Long("rounds") => wanted.rounds = parser.value()?.parse::<usize>()?.clamp(1, 1000),
            Long("bpftrace") => wanted.bpftrace = Some(parser.value()?.string()?),
            Long("alone") => is_alone = true,
            Long("kernel") => wanted.is_vs_kernel = true,
            Short('l') | Long("list") => {
                ROWS.iter().for_each(|(name, _, script)| println!("{name:<12} {script}"));
                return Ok(None);
            }
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(None);
            }
            Value(name) => {
                let name = name.string()?;
                let row = ROWS.into_iter().find(|(known, ..)| *known == name);
                wanted.rows.push(row.ok_or_else(|| format!("no row is called {name}"))?);
            }
            other => return Err(other.unexpected()),
        }
    }
    if wanted.rows.is_empty() {
        wanted.rows = ROWS.to_vec();
    }
    wanted.bpftrace = wanted.bpftrace.or_else(installed).filter(|_| !is_alone);
    Ok(Some(wanted))
}

/// The bpftrace in PATH, if it is not this program.
fn installed() -> Option<String> {
    let path = std::env::var_os("PATH")?;
    let ours = std::env::current_exe().and_then(std::fs::canonicalize).ok()?;
    let found = std::env::split_paths(&path).map(|dir| dir.join("bpftrace"));
    let mut found = found.filter(|file| std::fs::canonicalize(file).is_ok_and(|file| file != ours));
    found.next().map(|file| file.display().to_string())
}

/// A row's script at the function's places, and how many of them a call meets.
fn at_places(script: &str, place: &str) -> (String, u64) {
    if script.starts_with(['{', '/']) {
        return (format!("uprobe:{place} {script}"), 1);
    }
    let entries = script.replace("uprobe ", &format!("uprobe:{place} "));
    let hits = script.matches("uprobe ").count() + script.matches("uretprobe ").count();
    (entries.replace("uretprobe ", &format!("uretprobe:{place} ")), hits as u64)
}

fn measure(wanted: &Wanted, out: &mut impl Write) -> Result<(), TriggerError> {
    let cpus = (0..pin::online()).collect();
    let options =
        Options { seconds: wanted.seconds.max(1), producers: wanted.producers, cpus, ..Options::shortest() };
    let mut traced = Traced::start(&options)?;
    let length = Length { warm: 1, seconds: wanted.seconds.max(1), sample: wanted.sample };
    writeln!(out, "machine    {}", super::report::machine())?;
    writeln!(
        out,
        "threads    {}; ns of processor time added to a call, and calls a second of all threads",
        wanted.producers
    )?;
    let ours = std::env::current_exe()?.display().to_string();
    for row @ (name, _, script) in &wanted.rows {
        let mut all = vec![By::Ours(&ours)];
        all.extend(wanted.bpftrace.as_deref().map(By::Bpftrace));
        all.extend(Some(By::Kernel).filter(|_| wanted.is_vs_kernel && *name == "count"));
        let mut figures: Vec<Vec<Added>> = all.iter().map(|_| Vec::new()).collect();
        for _ in 0..wanted.rounds {
            // One behind the other, so that a core that somebody else uses too is one for all of them.
            for (by, figures) in all.iter().zip(&mut figures) {
                figures.push(one(&mut traced, length, by, row)?);
            }
        }
        let mut line = format!("{name:<10}");
        for (by, of) in all.iter().zip(&figures) {
            line += &told(by, of);
            if matches!(by, By::Bpftrace(_)) {
                line += &times(&figures[0], of);
            }
        }
        writeln!(out, "{line}   {script}")?;
        out.flush()?;
    }
    Ok(())
}

/// Who is in the function.
enum By<'a> {
    Ours(&'a str),
    Bpftrace(&'a str),
    Kernel,
}

impl By<'_> {
    fn name(&self) -> &'static str {
        match self {
            By::Ours(_) => "nanoprobe",
            By::Bpftrace(_) => "bpftrace",
            By::Kernel => "kernel",
        }
    }
}

/// What one way of probing adds to a call, in nanoseconds, and the calls a second, in millions.
#[derive(Clone, Copy, Debug)]
struct Added {
    ns: f64,
    rate: f64,
}

/// The middle, and between what all lie if there is more than one.
fn middle(of: impl Iterator<Item = f64>, digits: usize) -> (f64, String) {
    let of: Vec<f64> = of.collect();
    let least = of.iter().copied().fold(f64::INFINITY, f64::min);
    let most = of.iter().copied().fold(0.0, f64::max);
    let range = if of.len() > 1 { format!(" ({least:.digits$} to {most:.digits$})") } else { String::new() };
    (Summary::of(&of).median, range)
}

fn told(by: &By<'_>, of: &[Added]) -> String {
    let (ns, range) = middle(of.iter().map(|added| added.ns), 2);
    let (rate, _) = middle(of.iter().map(|added| added.rate), 1);
    format!("  {} {ns:8.2} ns{range} {rate:7.1} M/s", by.name())
}

/// How many times dearer the others are, of each turn.
fn times(ours: &[Added], theirs: &[Added]) -> String {
    let (ratio, range) = middle(ours.iter().zip(theirs).map(|(ours, theirs)| theirs.ns / ours.ns), 0);
    format!("  {ratio:5.0} times{range}")
}

/// What one way of probing adds.
fn one(
    traced: &mut Traced,
    length: Length,
    by: &By<'_>,
    (_, function, script): &Row,
) -> Result<Added, TriggerError> {
    let function = *function;
    let place = format!("{}:{}", std::env::current_exe()?.display(), function.symbol());
    let (script, per_call) = at_places(script, &place);
    let before = phase(traced, function, Length::baseline(length.sample))?.ns_per_call();
    let phase = match by {
        By::Ours(program) => {
            let script = Script::start(program, traced.pid(), &script)?;
            let phase = phase(traced, function, length)?;
            let told = script.stop()?;
            let hits =
                hits_told(&told).ok_or_else(|| TriggerError::Child(format!("no hits are told: {told}")))?;
            if hits != per_call * phase.calls {
                return Err(TriggerError::Differ { who: "nanoprobe", hits, calls: phase.calls });
            }
            phase
        }
        By::Bpftrace(program) => {
            let script = Script::start(program, traced.pid(), &script)?;
            let phase = phase(traced, function, length)?;
            script.stop()?;
            phase
        }
        By::Kernel => {
            let entry = run::spec(&function.spec())?;
            let site = run::plan(traced, &entry, Verb::Count)?;
            let site = site.first().ok_or_else(|| TriggerError::Missed("no site".into()))?;
            let uprobe = Uprobe::open(traced.pid(), run::file_offset(site)?, false)?;
            let phase = phase(traced, function, length)?;
            drop(uprobe);
            phase
        }
    };
    let after = self::phase(traced, function, Length::baseline(length.sample))?.ns_per_call();
    let ns = phase.ns_per_call() - f64::midpoint(before, after);
    Ok(Added { ns, rate: Summary::of(&phase.rates()).median })
}

fn phase(traced: &mut Traced, function: Function, length: Length) -> Result<Phase, TriggerError> {
    let calls = |shared: &super::shared::Shared| Ok(shared.all_calls());
    Phase::run(traced, function, length, &calls, |_| Ok(()))
}

/// The number in `Hits 17: 17 handled, ...`.
fn hits_told(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Hits "))?;
    line.split(':').next()?.parse().ok()
}

/// A running script, whose probes are in.
struct Script {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Script {
    fn start(program: &str, pid: i32, script: &str) -> Result<Script, TriggerError> {
        // Old ones have no word for it that all is in place; a timer that comes last runs behind that.
        let timer = "interval:ms:300 { printf(\"attached\\n\"); }";
        let text = format!("{script} {timer}");
        let mut command = Command::new(program);
        command.args(["-B", "line", "-p", &pid.to_string(), "-e", &text]).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or_else(|| TriggerError::Child("has no pipe".into()))?;
        let mut script = Script { child, output: BufReader::new(output) };
        let mut line = String::new();
        while script.output.read_line(&mut line)? > 0 {
            if line.trim() == "attached" {
                return Ok(script);
            }
            line.clear();
        }
        let told = script.stop()?;
        Err(TriggerError::Child(format!("{program} did not attach: {}", told.trim())))
    }

    /// Ends it; what it has said.
    fn stop(mut self) -> Result<String, TriggerError> {
        let errno = |e: sys::Errno| TriggerError::Io(std::io::Error::from_raw_os_error(e.0));
        if self.child.try_wait()?.is_none() {
            sys::sched::kill(self.child.id() as i32, 2).map_err(errno)?;
        }
        let mut told = String::new();
        self.output.read_to_string(&mut told)?;
        if let Some(mut errors) = self.child.stderr.take() {
            errors.read_to_string(&mut told)?;
        }
        self.child.wait()?;
        Ok(told)
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hits_that_are_told_are_read() {
        assert_eq!(hits_told("@: 5\n\nHits 17: 17 handled, 0 skipped; 0 places left out.\n"), Some(17));
        assert_eq!(hits_told("@: 5\n"), None);
    }

    #[test]
    fn a_row_is_at_the_entry_or_where_it_says() {
        let count = at_places("{ @ = count(); }", "f:g");
        assert_eq!(count, ("uprobe:f:g { @ = count(); }".to_owned(), 1));
        let both = at_places("uprobe { @++; } uretprobe /1/ { @++; }", "f:g");
        assert_eq!(both, ("uprobe:f:g { @++; } uretprobe:f:g /1/ { @++; }".to_owned(), 2));
    }

    #[test]
    fn turns_are_compared_each_with_its_own_and_told_by_the_middle() {
        let of = |ns: [f64; 3]| ns.map(|ns| Added { ns, rate: 1.0 });
        let (ours, theirs) = (of([2.0, 4.0, 3.0]), of([60.0, 160.0, 30.0]));
        assert_eq!(times(&ours, &theirs).trim(), "30 times (10 to 40)");
        assert_eq!(told(&By::Kernel, &theirs).trim(), "kernel    60.00 ns (30.00 to 160.00)     1.0 M/s");
        assert_eq!(times(&ours[..1], &theirs[..1]).trim(), "30 times");
    }

    #[test]
    fn rows_are_chosen_by_name_and_unknown_ones_refused() {
        let parse = |words: &[&str]| super::parse(&words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>());
        assert_eq!(parse(&["hist", "-d1"]).unwrap().unwrap().rows.len(), 1);
        assert_eq!(parse(&[]).unwrap().unwrap().rows.len(), ROWS.len());
        assert!(parse(&["hits"]).is_err());
    }
}
