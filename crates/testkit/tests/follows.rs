//! Programs that a traced process starts, or becomes, with `--follow`.
//!
//! For:     wrappers, shells, build tools: the program of interest is started by another one.
//! Keeps:   every call after a program's entry point is counted; exit codes, output and failed execs are as without us.

use std::time::Duration;
use testkit::{Link, Nanoprobe, Program, Result, Running, Snapshot, Target, Tracing, number};

const LIMIT: Duration = Duration::from_secs(60);

fn follow(target: &Target, running: &Running, function: &str) -> Result<Tracing> {
    let (spec, pid) = (target.spec(function), running.pid_text());
    let mut tracing = Nanoprobe::find()?.start(["count", &spec, "--follow", "-p", &pid])?;
    tracing.attached()?;
    Ok(tracing)
}

#[test]
fn children_that_are_started_are_counted() -> Result<()> {
    for link in [Link::Pie, Link::Static, Link::Musl] {
        let target = Target::build(Program::Forker, link)?;
        let mut running = target.spawn()?;
        let tracing = follow(&target, &running, "work_child")?;
        for command in ["vfork 5", "spawn 5", "fork 5"] {
            running.command(command)?;
            running.expect("done ")?;
        }
        let totals = running.totals()?;
        let started = number(&totals, "vforks")? + number(&totals, "forks")?;
        assert_eq!(started, 15, "{totals}");
        let outcome = tracing.interrupt_and_finish()?.success()?;
        assert_eq!(outcome.count("work_child"), 100 * started, "{link:?} {outcome}");
        assert_eq!(running.end()?.code(), Some(7));
    }
    Ok(())
}

#[test]
fn process_that_becomes_another_program_is_counted_on() -> Result<()> {
    for (link, command) in
        [(Link::Pie, "exec"), (Link::Pie, "exec-thread"), (Link::Static, "exec"), (Link::Musl, "exec")]
    {
        let target = Target::build(Program::Forker, link)?;
        let mut running = target.spawn()?;
        let tracing = follow(&target, &running, "work")?;
        running.command("threads 10")?;
        running.expect("done ")?;
        running.command(command)?;
        running.expect("ready ")?;
        running.command("threads 20")?;
        running.expect("done ")?;
        let outcome = tracing.interrupt_and_finish()?.success()?;
        assert_eq!(outcome.count("work"), 3_000, "{link:?} {command}: {outcome}");
        assert!(outcome.stderr.contains("Detach verified: yes"), "{outcome}");
        assert_eq!(number(&running.totals()?, "work")?, 2_000);
        assert_eq!(running.end()?.code(), Some(7));
    }
    Ok(())
}

#[test]
fn many_programs_started_at_once_are_all_counted() -> Result<()> {
    let target = Target::build(Program::Forker, Link::Pie)?;
    let script = format!("for i in $(seq 50); do {} child & done; wait; exit 0", target.path().display());
    let spec = target.spec("work_child");
    let outcome = Nanoprobe::find()?.run(["count", &spec, "--follow", "--", "/bin/sh", "-c", &script])?;
    let all = !outcome.stderr.contains("faster than they could be followed");
    // On a machine that is too busy some go alone, and it says so.
    assert_eq!(outcome.count("work_child") == 5_000, all, "{outcome}");
    assert!(outcome.count("work_child") >= 1_500, "{outcome}");
    Ok(())
}

#[test]
fn exec_of_nothing_fails_as_ever() -> Result<()> {
    let target = Target::build(Program::Forker, Link::Pie)?;
    let mut running = target.spawn()?;
    let tracing = follow(&target, &running, "work")?;
    running.command("nothing 5")?;
    running.expect("done ")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(outcome.count("work"), 500, "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn program_behind_a_shell_is_counted_and_its_output_and_status_kept() -> Result<()> {
    let target = Target::build(Program::Forker, Link::Pie)?;
    let path = target.path().display();
    let script = format!("printf 'threads 5\\nquit\\n' | {path} | tail -n 1; no-such-command; exit 5");
    let spec = target.spec("work");
    let outcome = Nanoprobe::find()?.run(["count", &spec, "--follow", "--", "/bin/sh", "-c", &script])?;
    assert_eq!(outcome.code(), Some(5), "{outcome}");
    assert_eq!(outcome.count("work"), 500, "{outcome}");
    assert!(outcome.stdout.starts_with("totals work=500"), "{outcome}");
    assert!(outcome.stderr.contains("no-such-command"), "{outcome}");
    Ok(())
}

#[test]
fn calls_in_started_programs_are_timed_and_shown() -> Result<()> {
    let target = Target::build(Program::Forker, Link::Pie)?;
    let script = format!("printf 'threads 5\\nquit\\n' | {} > /dev/null; exit 0", target.path().display());
    let spec = target.spec("work");
    let nanoprobe = Nanoprobe::find()?;
    let outcome = nanoprobe.run(["lat", &spec, "--follow", "-f", "json", "--", "/bin/sh", "-c", &script])?;
    let calls = &outcome.json_receipt()?;
    assert_eq!((calls.hits, calls.handled), (1_000, 1_000), "{outcome}");
    let outcome = nanoprobe.run(["trace", &spec, "--follow", "--", "/bin/sh", "-c", &script])?;
    assert_eq!(outcome.stdout.matches("work(").count(), 500, "{outcome}");
    Ok(())
}

#[test]
fn followed_program_is_freed_when_front_and_engine_are_killed() -> Result<()> {
    let target = Target::build(Program::Forker, Link::Pie)?;
    let mut running = target.spawn()?;
    let tracing = follow(&target, &running, "work")?;
    running.command("exec")?;
    running.expect("ready ")?;
    let probed = Snapshot::take(running.pid())?;
    tracing.kill_with_children()?;
    let end = std::time::Instant::now() + LIMIT;
    // A mapping may go while it is read.
    while probed.difference_now().map_or(true, |d| d.is_empty()) && std::time::Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!probed.difference_now()?.is_empty(), "nobody freed it");
    running.command("threads 5")?;
    running.expect("done ")?;
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}
