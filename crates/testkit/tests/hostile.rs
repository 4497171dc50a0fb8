//! A target that writes over the memory that it shares with us.
//!
//! For:     who runs nanoprobe as root on a program that is not trusted.
//! Keeps:   its own data may be wrong; no crash, no growth, no hang, nothing elsewhere.

use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use testkit::{Link, Nanoprobe, Program, Result, Running, Target, rounds, wait_until};

/// No run needs more than this, whatever the target writes.
const MEMORY_MAX_KB: u64 = 300 << 10;
/// From Ctrl-C or the end of `--for` to the end of the command, on a busy machine.
const END_MAX: Duration = Duration::from_secs(15);

/// For a target that waits for a CPU to write what it writes.
const WRITTEN_MAX: Duration = Duration::from_secs(60);
/// Runs of which one at least must find a number that cannot be.
const RUNS_MAX: usize = 20;
/// Words that it writes in one round, to one mapping.
const ROUND_WORDS: u64 = 3_001;

/// A process that has nothing to do with the run.
struct Bystander(Child);

impl Bystander {
    fn start() -> Bystander {
        Bystander(Command::new("sleep").arg("1000").spawn().expect("sleep starts"))
    }

    fn is_left_alone(&self) -> bool {
        let path = PathBuf::from(format!("/proc/{}", self.0.id()));
        let status = std::fs::read_to_string(path.join("status")).unwrap_or_default();
        let maps = std::fs::read_to_string(path.join("maps")).unwrap_or_default();
        status.contains("TracerPid:\t0") && status.contains("State:\tS") && !maps.contains("nanoprobe")
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The most memory that a process and its children had so far.
fn memory_kb(pid: u32) -> u64 {
    let status = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let most = |pid: &str| {
        let text = status(pid);
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0");
        line.split_whitespace().next().and_then(|kb| kb.parse().ok()).unwrap_or(0)
    };
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let own: u64 = most(&pid.to_string());
    children.split_whitespace().map(most).fold(own, u64::max)
}

/// Whether there are debug registers here, and values may be seen by them.
fn has_registers(target: &Target, watched: &str) -> Result<bool> {
    let running = target.spawn_with(&["1"])?;
    let words = ["watch", "--values", watched, "-p", &running.pid_text(), "--for", "50ms"];
    Ok(Nanoprobe::find()?.run(words)?.code() == Some(0))
}

#[test]
fn a_target_that_scribbles_over_shared_memory_harms_itself_alone() -> Result<()> {
    let target = Target::build(Program::Scribbler, Link::Pie)?;
    let bystander = Bystander::start();
    let poked = target.spec("poked");
    let watched = format!("w:{}:watched:8:w", target.path().display());
    let all: [&[&str]; 10] = [
        &["count", &poked],
        &["count", "--by-handler", &poked],
        &["hist", &poked, "arg0"],
        &["lat", &poked],
        &["trace", &poked],
        &["watch", &watched],
        &["watch", "--values", &watched],
        &["watch", "--soft", &watched],
        &["count", &poked, "--follow"],
        &["count", &poked, "--wait"],
    ];
    let has_registers = has_registers(&target, &watched)?;
    let takes_one = |verb: &&[&str]| verb[0] == "watch" && verb[1] != "--soft";
    let verbs: Vec<&[&str]> = all.into_iter().filter(|verb| has_registers || !takes_one(verb)).collect();
    for (n, verb) in verbs.iter().cycle().take(rounds(verbs.len(), 700)).enumerate() {
        let is_by_time = (n / verbs.len()).is_multiple_of(2);
        is_harmed_alone(&target, verb, n, is_by_time, &bystander)?;
    }
    Ok(())
}

/// Maps, stacks and records of programs: what hits look up there, and what we read of it.
#[test]
fn a_target_that_scribbles_over_maps_of_programs_harms_itself_alone() -> Result<()> {
    let target = Target::build(Program::Scribbler, Link::Pie)?;
    let bystander = Bystander::start();
    let poked = target.spec("poked");
    let script = |body: &str| format!("uprobe:{}:poked {{ {body} }}", target.path().display());
    let maps = script(
        "@a[arg0] = count(); @h = hist(arg0); @l[arg0] = lhist(arg0, 0, 100, 10); delete(@a, arg0 - 1);",
    );
    let looks =
        script("@s[ustack] = sum(arg0); @n = @n + 1; if (@b[tid] > 3) { clear(@s); } @b[tid] = @n % 5;");
    let records = script("printf(\"%d %s\\n\", arg0, comm); print(@); @ = max(arg0);");
    let timed = format!("{} interval:ms:20 {{ print(@t); clear(@t); }}", script("@t[arg0 % 7] = avg(arg0);"));
    let all: [&[&str]; 7] = [
        &["-e", &maps],
        &["-e", &looks],
        &["-e", &records],
        &["-e", &timed],
        &["count", "--by", "arg0", "--if", "arg0 > 3", &poked],
        &["count", "--stack", &poked],
        &["top", "-i", "100ms", &poked],
    ];
    for (n, verb) in all.iter().cycle().take(rounds(all.len(), 700)).enumerate() {
        is_harmed_alone(&target, verb, n, false, &bystander)?;
    }
    Ok(())
}

/// One run of a verb beside the scribbling; it ends by time, or by Ctrl-C.
fn is_harmed_alone(
    target: &Target,
    verb: &[&str],
    n: usize,
    is_by_time: bool,
    bystander: &Bystander,
) -> Result<()> {
    let mut running = target.spawn_with(&[n.to_string()])?;
    let pid = running.pid_text();
    let mut arguments = verb.to_vec();
    arguments.extend(["-p", &pid]);
    if is_by_time {
        arguments.extend(["--for", "800ms"]);
    }
    let mut tracing = Nanoprobe::find()?.start(&arguments)?;
    tracing.attached()?;
    let end = Instant::now() + Duration::from_millis(800);
    let mut most = 0;
    while Instant::now() < end {
        most = memory_kb(tracing.pid()).max(most);
        std::thread::sleep(Duration::from_millis(20));
    }
    let began = Instant::now();
    let outcome = if is_by_time { tracing.finish()? } else { tracing.interrupt_and_finish()? };
    assert!(began.elapsed() < END_MAX, "{verb:?}: {:?}", began.elapsed());
    assert!(most < MEMORY_MAX_KB, "{verb:?}: {most} KiB");
    assert!(matches!(outcome.code(), Some(0 | 1)), "{verb:?}: {outcome}");
    assert!(!outcome.stderr.contains("was killed") && !outcome.stderr.contains("panicked"), "{outcome}");
    assert!(bystander.is_left_alone(), "{verb:?}");
    if let Ok(totals) = running.command("totals").and_then(|()| running.expect("totals ")) {
        assert!(totals.ends_with("cut=0"), "the arena was made shorter: {totals}");
    }
    Ok(())
}

#[test]
fn what_cannot_be_believed_is_counted_and_said() -> Result<()> {
    let target = Target::build(Program::Scribbler, Link::Pie)?;
    let mut running = target.spawn_with(&["1"])?;
    // What stands in the few cells at the end of a run may be numbers that can be: about one run of twenty.
    for _ in 0..RUNS_MAX {
        let damaged = damaged_in_a_run(&target, &mut running)?;
        if damaged > 0 {
            return Ok(());
        }
    }
    panic!("nothing was damaged in {RUNS_MAX} runs");
}

/// Judged by what the target did, not by time.
fn damaged_in_a_run(target: &Target, running: &mut Running) -> Result<u64> {
    let (spec, pid) = (target.spec("poked"), running.pid_text());
    let mut tracing = Nanoprobe::find()?.start(["count", &spec, "-p", &pid, "-f", "json"])?;
    tracing.attached()?;
    let enough = written(running)? + 20 * ROUND_WORDS;
    wait_until("twenty rounds of scribbling", WRITTEN_MAX, || written(running).is_ok_and(|n| n > enough))?;
    let outcome = tracing.interrupt_and_finish()?;
    let damaged = outcome.json_data("receipt")?[0]["damaged"].as_u64().unwrap_or(0);
    let is_said = outcome.stderr.contains("the target's records were damaged: ");
    assert_eq!(is_said, damaged > 0, "{outcome}");
    Ok(damaged)
}

/// Words that it has written so far.
fn written(running: &mut Running) -> Result<u64> {
    running.command("totals")?;
    let totals = running.expect("totals ")?;
    let words = totals.split_once("written=").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
    Ok(words.unwrap_or(0))
}
