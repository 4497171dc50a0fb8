//! Processes with children: servers with workers; and a target that names threads which are not its own.
//!
//! For:     `-p SERVER`, with and without `--follow`; a root engine that another user's process talks to.
//! Keeps:   children that are there are taken in; calls that nobody timed do not look as if somebody had; nobody is traced
//!          but processes of the session.

use std::time::{Duration, Instant};
use testkit::{Link, Nanoprobe, Program, Result, Target, wait_until};

#[test]
fn children_that_are_there_already_are_taken_in_when_followed() -> Result<()> {
    let target = Target::build(Program::Prefork, Link::Pie)?;
    for verb in ["count", "lat"] {
        let mut running = target.spawn()?;
        let arguments = [verb, &target.spec("work"), "-f", "json", "--follow", "-p", &running.pid_text()];
        let mut tracing = Nanoprobe::find()?.start(arguments)?;
        let attached = tracing.attached()?.line;
        assert!(attached.contains(" of 4 processes "), "{attached}");
        running.command("serve 50")?;
        running.expect("done serve")?;
        let outcome = tracing.interrupt_and_finish()?.success()?;
        let calls = match verb {
            "lat" => {
                let rows = outcome.json_data("latency")?;
                assert_eq!(rows[0]["@"]["work"]["returned"], 5_000, "{outcome}");
                rows[0]["@"]["work"]["calls"].as_u64()
            }
            _ => Some(outcome.json_count("work")?),
        };
        assert_eq!(calls, Some(5_000), "{outcome}");
        assert!(outcome.says_detach_verified(), "{outcome}");
        running.command("serve 10")?;
        running.expect("done serve")?;
        assert_eq!(running.end()?.code(), Some(7));
    }
    Ok(())
}

#[test]
fn without_follow_the_children_that_may_do_the_work_are_hinted_at() -> Result<()> {
    let target = Target::build(Program::Prefork, Link::Pie)?;
    let mut running = target.spawn()?;
    let mut tracing = Nanoprobe::find()?.start(["count", &target.spec("work"), "-p", &running.pid_text()])?;
    tracing.attached()?;
    running.command("serve 10")?;
    running.expect("done serve")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(outcome.count("work"), 0, "{outcome}");
    assert!(outcome.stderr.contains("it has 2 children"), "{outcome}");
    assert!(outcome.stderr.contains("--follow"), "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn calls_in_children_that_nobody_timed_are_said_to_be_that() -> Result<()> {
    let target = Target::build(Program::Forker, Link::Pie)?;
    for (verb, words) in [
        ("lat", "2000 calls in forked children were not timed"),
        ("trace", "2000 calls in forked children are not shown"),
    ] {
        for follow in [&[][..], &["--follow"]] {
            let mut running = target.spawn()?;
            let (spec, pid) = (target.spec("work_child"), running.pid_text());
            let mut arguments = vec![verb, &spec, "-p", &pid];
            arguments.extend(follow);
            let mut tracing = Nanoprobe::find()?.start(arguments)?;
            tracing.attached()?;
            running.command("fork 20")?;
            running.expect("done ")?;
            let outcome = tracing.interrupt_and_finish()?.success()?;
            assert!(outcome.stderr.contains(words), "{verb} {follow:?}: {outcome}");
            assert!(!outcome.stdout.contains("2000 calls"), "{verb} {follow:?}: {outcome}");
            assert!(!outcome.stderr.contains("events lost"), "{verb} {follow:?}: {outcome}");
            assert_eq!(running.end()?.code(), Some(7));
        }
    }
    Ok(())
}

/// A followed process that says of a thread of somebody else's that it is about to exec.
#[test]
fn thread_that_the_target_names_and_that_is_not_its_own_is_never_traced() -> Result<()> {
    let target = Target::build(Program::Restless, Link::Pie)?;
    // Of another kind of program: nothing of it is in the target.
    let victim = Target::build(Program::Counted, Link::Musl)?.spawn()?;
    let naming = target.spawn_with(&["name", &victim.pid_text()])?;
    let arguments = ["count", &target.spec("work"), "--follow", "-p", &naming.pid_text()];
    let mut tracing = Nanoprobe::find()?.start(arguments)?;
    tracing.attached()?;
    let status = format!("/proc/{}/status", victim.pid());
    let end = Instant::now() + Duration::from_millis(1000);
    while Instant::now() < end {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        assert!(text.contains("TracerPid:\t0"), "somebody traces the victim: {text}");
        std::thread::sleep(Duration::from_micros(200));
    }
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert!(outcome.stderr.contains("one of its own; it was not traced"), "{outcome}");
    let maps = format!("/proc/{}/maps", victim.pid());
    wait_until("maps", Duration::from_secs(1), || std::fs::read_to_string(&maps).is_ok())?;
    assert!(!std::fs::read_to_string(&maps).unwrap_or_default().contains("nanoprobe"));
    Ok(())
}
