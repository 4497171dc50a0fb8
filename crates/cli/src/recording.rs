//! `record`: a run kept in a file. `report`: what is made of one.
//!
//! For:     main; the engine.
//! State:   the words that were typed: an engine does not have them any more.
//! Context: control.
//! Keeps:   R1 a recording is what `-f json` prints, with a line about the run and one about its price.
//!          R2 each set of probes has its account: that of times is the receipt's, the others' are lines of their own.
//!          R3 a report is written whole or not at all: nothing is written before all of it is made.
//! Checked: testkit `recording`; crate `report`.

use crate::advice;
use crate::args::{Format, RecordArgs, Recorded, ReportArgs, RunArgs, Shown};
use crate::engine::Job;
use crate::out::write_whole;
use crate::probes::Probes;
use crate::render::{Report, overhead_percent, ticks_per_second};
use crate::run;
use crate::stacks::Stacks;
use bench::Price;
use report::{Run, To};
use serde_json::{Value, json};
use session::{Session, Verb};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

/// A column of latency over time, if `-i` does not say otherwise.
const COLUMN: Duration = Duration::from_secs(1);

/// A receipt is never so long.
const RECEIPT_MAX: u64 = 1 << 20;

static COMMAND: OnceLock<Vec<String>> = OnceLock::new();

/// `nanoprobe record`.
pub fn record(args: RecordArgs) -> i32 {
    COMMAND.get_or_init(|| std::env::args().collect());
    let RecordArgs { file, specs, stack, calls, run: given } = args;
    if given.output.is_some() {
        let tries = ["without -o: the first word is the file".to_owned()];
        return advice::fail(&"record writes to its FILE", &[], &tries);
    }
    let has_more = stack || calls;
    if has_more && (given.follow || given.wait) {
        let tries = ["without --stack and --calls".to_owned(), "without --follow and --wait".to_owned()];
        return advice::fail(&"--stack and --calls record one process, as it is now", &[], &tries);
    }
    let (is_quiet, shown) = (given.quiet, Shown { arguments: 3, ..Shown::default() });
    let interval = Some(given.interval.unwrap_or(COLUMN));
    let recorded = Some(Recorded { has_stacks: stack, has_calls: calls });
    let (output, format) = (Some(file.clone()), Format::Json);
    let args = RunArgs { output, format, interval, deltas: true, hit_only: true, recorded, shown, ..given };
    let before = modified(&file);
    let code = run::run(&specs, Verb::Latency, args);
    let after = modified(&file);
    if !is_quiet && after.is_some() && after != before {
        let what = if has_end(&file) { "the run" } else { "the run without its end" };
        eprintln!("nanoprobe: {} has {what}; nanoprobe report {0} makes a page of it", file.display());
    }
    code
}

/// Its last line is the receipt of a run.
fn has_end(file: &Path) -> bool {
    const RECEIPT: &[u8] = br#"{"type":"receipt""#;
    let read = |file: &Path| -> std::io::Result<Vec<u8>> {
        let mut file = File::open(file)?;
        let from = file.metadata()?.len().saturating_sub(RECEIPT_MAX);
        file.seek(SeekFrom::Start(from))?;
        let mut end = Vec::new();
        file.read_to_end(&mut end).map(|_| end)
    };
    let end = read(file).unwrap_or_default();
    let lines = end.strip_suffix(b"\n").unwrap_or_default();
    lines.rsplit(|byte| *byte == b'\n').next().is_some_and(|last| last.starts_with(RECEIPT))
}

fn modified(file: &Path) -> Option<SystemTime> {
    std::fs::metadata(file).ok()?.modified().ok()
}

/// The first line: what runs.
pub fn head(pid: i32) -> String {
    let proc = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches(['\n', '\0']).to_owned();
    let arguments: Vec<String> = match text(&proc("cmdline")) {
        none if none.is_empty() => Vec::new(),
        all => all.split('\0').map(str::to_owned).collect(),
    };
    let kernel = std::fs::read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let began = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let data = json!({
        "version": env!("CARGO_PKG_VERSION"), "command": COMMAND.get(), "pid": pid,
        "program": text(&proc("comm")), "arguments": arguments, "kernel": format!("Linux {}", text(&kernel)),
        "cpus": std::thread::available_parallelism().ok(), "began": began.as_secs_f64(),
    });
    json!({"type": "run", "data": data}).to_string()
}

/// Puts in what is recorded beside times; else the exit code, with everything said.
pub fn beside(mut probes: Probes, job: &Job) -> Result<Probes, i32> {
    for verb in verbs(job).into_iter().skip(1) {
        if let Err(why) = probes.attach_beside(job, verb) {
            let _ = probes.detach();
            let what = if verb == Verb::CountStack { "--stack" } else { "--calls" };
            return Err(advice::fail(
                &format!("{what} cannot be recorded: {why}"),
                &[],
                &[format!("without {what}")],
            ));
        }
    }
    Ok(probes)
}

/// All that is recorded is in place now, and the price known.
pub fn say_begun(job: &Job) {
    let of = job.args.recorded.unwrap_or_default();
    let all = [(true, "times"), (of.has_stacks, "stacks"), (of.has_calls, "calls")];
    let all: Vec<&str> = all.into_iter().filter(|(is, _)| *is).map(|(_, what)| what).collect();
    if !job.args.quiet {
        eprintln!("nanoprobe: recording {}", all.join(", "));
    }
}

/// What is done at each call; the last is closest to it.
pub fn verbs(job: &Job) -> Vec<Verb> {
    let of = job.args.recorded.unwrap_or_default();
    let more = [(of.has_stacks, Verb::CountStack), (of.has_calls, Verb::Trace { has_stacks: false })];
    std::iter::once(job.verb).chain(more.into_iter().filter(|(is, _)| *is).map(|(_, verb)| verb)).collect()
}

/// The lines at the end: stacks, the accounts of the other probes, the price.
pub fn rest(
    probes: &Probes,
    stacks: &mut Option<Stacks>,
    price: Option<&Price>,
    job: &Job,
    cpu: Option<u64>,
) -> Vec<String> {
    let mut lines = Vec::new();
    for (session, verb) in probes.beside().iter().zip(verbs(job).into_iter().skip(1)) {
        let one = std::slice::from_ref(session);
        if let Some(stacks) = stacks.as_mut().filter(|_| verb == Verb::CountStack) {
            lines.extend(stacks.lines(one, Format::Json));
        }
        let of = Report::by(one, verb, false);
        let data = json!({
            "verb": if verb == Verb::CountStack { "stacks" } else { "calls one by one" },
            "hits": of.hits, "handled": of.handled,
            "skipped": of.skipped(),
        });
        lines.push(json!({"type": "beside", "data": data}).to_string());
    }
    let calls =
        Report::of(probes.sessions(), job).rows.iter().map(|row| row.hits).fold(0, u64::saturating_add);
    let frames = probes.beside().iter().flat_map(Session::stacks).fold((0.0, 0.0), |(sum, all), stack| {
        let count = stack.count as f64;
        (sum + count * stack.frames.len() as f64, all + count)
    });
    let frames = (frames.1 > 0.0).then(|| frames.0 / frames.1);
    lines.extend(
        price.map(|price| json!({"type": "price", "data": overhead(price, frames, calls, cpu)}).to_string()),
    );
    lines
}

/// What so many calls cost, and what part that was of the processor time of the process; `frames`: of the stacks that were walked.
/// It is the least: in the process itself code and tables are not in the caches as they are in a loop.
fn overhead(price: &Price, frames: Option<f64>, calls: u64, cpu: Option<u64>) -> Value {
    let ns = frames.map_or(price.ns, |frames| price.with_frames(frames));
    let cost_ms = ns * calls as f64 / 1e6;
    let mut data = json!({
        "ns": rounded(ns), "calls": calls, "cost_ms": rounded(cost_ms),
        "measured": "in a loop beside the run; at least so much",
    });
    if let Some((frames, per_frame)) = frames.zip(price.per_frame_ns) {
        data["frames"] = json!(rounded(frames));
        data["ns_of_a_frame"] = json!(rounded(per_frame));
    }
    if let Some(cpu) = cpu.filter(|cpu| *cpu > 0) {
        let used_ms = cpu as f64 / ticks_per_second() * 1e3;
        data["process_cpu_ms"] = json!(rounded(used_ms));
        // Of what it would have used without us; a loop is never slower than the real place, so this is a little low.
        if let Some(percent) = overhead_percent(cost_ms, used_ms) {
            data["overhead_percent"] = json!(rounded(percent));
        }
    }
    data
}

fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// `nanoprobe report`.
pub fn report(args: &ReportArgs) -> i32 {
    let name = args.file.display();
    let run = match File::open(&args.file).map(BufReader::new) {
        Ok(file) => Run::read(file),
        Err(why) => return advice::fail(&format!("{name} cannot be opened: {why}"), &[], &[]),
    };
    let run = match run {
        Ok(run) => run,
        Err(why) => {
            let tries = [
                "nanoprobe record FILE SPEC -p PID".to_owned(),
                "any other command with -f json -o FILE".to_owned(),
            ];
            return advice::fail(&format!("{name} is no recording"), &[why.to_string()], &tries);
        }
    };
    if run.is_cut {
        eprintln!("nanoprobe: {name} ends in the middle of a line: its run was killed, or is still on");
    }
    let in_part = run.seen_in_part().len();
    if in_part > 0 {
        let who =
            if in_part == 1 { "1 function was".to_owned() } else { format!("{in_part} functions were") };
        eprintln!(
            "nanoprobe: by its --budget {who} seen for a part of the time: all figures are of the hits that were seen"
        );
    }
    let to = args.format;
    let bytes = match to.bytes(&run) {
        Ok(bytes) => bytes,
        Err(lacks) => {
            let tries = ["record with --stack, with --calls, or both".to_owned()];
            return advice::fail(
                &format!("{name} has not what this format shows"),
                &[lacks.to_string()],
                &tries,
            );
        }
    };
    let output = args.output.clone().unwrap_or_else(|| beside_of(&args.file, to));
    match write_whole(&output, &bytes) {
        Ok(()) => {
            eprintln!("nanoprobe: written to {}", output.display());
            0
        }
        Err(why) => advice::fail(&why, &[], &[]),
    }
}

/// `run.json` becomes `run.html`.
fn beside_of(file: &Path, to: To) -> PathBuf {
    let made = file.with_extension(to.ending());
    if made == file { PathBuf::from(format!("{}.{}", file.display(), to.ending())) } else { made }
}
