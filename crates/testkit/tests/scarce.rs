//! Runs where something is scarce: time on a CPU, descriptors.
//!
//! For:     design: a loaded machine and a small limit are no defect of the target.
//! Keeps:   threads that wait for a CPU are waited for, and what they stood is told; whatever the limit of descriptors, a
//!          process is entered and left, or not touched.

use std::process::{Child, Command, Stdio};
use std::time::Duration;
use testkit::{Error, Link, Nanoprobe, Program, Result, Snapshot, Target, number, rounds};

/// Busy processes beside the target, each with some fifty times the target's share.
const BUSY: usize = 6;
/// They end by themselves if this test does not end them.
const BUSY_FOR: &str = "60";
/// Between a run's end and the moment at which the process is as before.
const LIMIT: Duration = Duration::from_secs(20);

/// A process that uses all that it gets of one CPU.
struct Busy(Child);

impl Busy {
    fn start(cpu: &str) -> Result<Busy> {
        let words =
            ["timeout", BUSY_FOR, "nice", "-n", "5", "taskset", "-c", cpu, "sh", "-c", "while :; do :; done"];
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM"]).args(words).stdout(Stdio::null());
        Ok(Busy(command.spawn().map_err(Error::io("a busy process"))?))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // timeout(1) passes it on.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

/// A CPU that this process may use.
fn cpu() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or("0");
    list.trim().split([',', '-']).next().unwrap_or("0").to_owned()
}

#[test]
fn a_process_whose_threads_hardly_get_a_cpu_is_entered_and_left() -> Result<()> {
    let target = Target::build(Program::Entered, Link::Pie)?;
    let cpu = cpu();
    let mut running = target.spawn_through(&["taskset", "-c", &cpu, "nice", "-n", "19"], &["hold"])?;
    let before = Snapshot::take(running.pid())?;
    let (spec, pid) = (target.spec("work"), running.pid_text());
    {
        let _busy = (0..BUSY).map(|_| Busy::start(&cpu)).collect::<Result<Vec<_>>>()?;
        for verb in [&["count", &spec][..], &["lat", &spec]].into_iter().cycle().take(rounds(1, 40)) {
            let words = verb.iter().copied().chain(["-p", &pid, "--for", "20ms"]);
            let outcome = Nanoprobe::find()?.run(words)?.success()?;
            assert!(outcome.says_detach_verified() && outcome.longest_stall_ms()? > 0, "{outcome}");
        }
    }
    before.comes_back(LIMIT)?;
    running.command("check")?;
    let seen = running.expect("check ")?;
    assert_eq!(number(&seen, "broken")?, 0, "{seen}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn whatever_the_limit_of_descriptors_a_process_is_left_as_it_was() -> Result<()> {
    let target = Target::build(Program::Entered, Link::Pie)?;
    let running = target.spawn_with(&["hold"])?;
    let before = Snapshot::take(running.pid())?;
    let (spec, pid) = (target.spec("*"), running.pid_text());
    let watched = format!("w:{}:rounds:8:w", target.path().display());
    let verbs: [&[&str]; 3] =
        [&["count", &spec], &["watch", "--soft", &watched], &["count", "--kernel", "--follow", &spec]];
    let mut entered = 0;
    for limit in 8..48 {
        let verb = verbs[limit % verbs.len()];
        let limit = format!("--nofile={limit}:{limit}");
        let words = verb.iter().copied().chain(["-p", &pid, "--for", "10ms"]);
        let outcome = Nanoprobe::find()?.through(["prlimit", &limit]).run(words)?;
        let is_entered = outcome.stderr.contains("Attached ");
        assert_eq!(is_entered, outcome.says_detach_verified(), "{limit} {verb:?}: {outcome}");
        let back = before.comes_back(LIMIT);
        back.unwrap_or_else(|error| panic!("{limit} {verb:?}: {error}\n{outcome}"));
        entered += usize::from(is_entered);
    }
    assert!(entered > 5 && entered < 40, "{entered} of the runs entered");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn the_weight_that_a_session_was_given_goes_on_to_count_for_the_engine() -> Result<()> {
    const GROUP: &str = "/proc/self/autogroup";
    if !std::path::Path::new(GROUP).exists() {
        eprintln!("this kernel has no groups of sessions");
        return Ok(());
    }
    let target = Target::build(Program::Counted, Link::Pie)?;
    let running = target.spawn()?;
    let script = format!("echo 5 > {GROUP}; exec \"$@\"");
    let (spec, pid) = (target.spec("work"), running.pid_text());
    let nanoprobe = Nanoprobe::find()?.through(["setsid", "sh", "-c", &script, "sh"]);
    let mut tracing = nanoprobe.start(["count", &spec, "-p", &pid])?;
    tracing.attached()?;
    let front = tracing.pid();
    let children = format!("/proc/{front}/task/{front}/children");
    let children = std::fs::read_to_string(&children).map_err(Error::io(&children))?;
    // The engine and the guard, in a session each.
    let weights: Vec<String> = children
        .split_whitespace()
        .map(|child| std::fs::read_to_string(format!("/proc/{child}/autogroup")).unwrap_or_default())
        .collect();
    assert_eq!(weights.len(), 2, "{children}");
    assert!(weights.iter().all(|weight| weight.trim_end().ends_with(" nice 5")), "{weights:?}");
    tracing.interrupt_and_finish()?.success()?;
    Ok(())
}
