//! Processes that are hard to enter and to leave: a first thread that has ended, a name that is no text, children that
//! fork faster than anybody looks, memory that several share, handlers with big stacks.
//!
//! For:     receipts that are true.
//! Keeps:   what was entered is left, wholly; what could not be left is named; "ended" is said of what has ended.

use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use testkit::{
    Link, Nanoprobe, Outcome, Program, Result, Running, Snapshot, Target, Tracing, kill_guard_of, number,
    rounds, wait_until,
};

/// After the death of a controller.
const LIMIT: Duration = Duration::from_secs(10);

fn parting() -> Result<(Target, Running)> {
    let target = Target::build(Program::Parting, Link::Pie)?;
    let running = target.spawn()?;
    Ok((target, running))
}

/// Has `command` obeyed; its answer, which begins with `prefix`.
fn ask(running: &mut Running, command: &str, prefix: &str) -> Result<String> {
    running.command(command)?;
    running.expect(prefix)
}

fn has_ours(pid: u32) -> bool {
    std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten().any(|task| {
        let maps = std::fs::read(task.path().join("maps")).unwrap_or_default();
        String::from_utf8_lossy(&maps).contains("memfd:nanoprobe")
    })
}

fn left_and_verified(outcome: &Outcome, running: &Running) {
    assert!(outcome.says_detach_verified(), "{outcome}");
    assert!(!outcome.stderr.contains("ended"), "{outcome}");
    assert!(!has_ours(running.pid()), "{outcome}");
}

fn count_work(target: &Target, running: &Running) -> Result<Tracing> {
    let mut tracing = Nanoprobe::find()?.start(["count", &target.spec("work"), "-p", &running.pid_text()])?;
    tracing.attached()?;
    Ok(tracing)
}

/// Ends it after `calls` of `work`; the process then runs on as before.
fn counts_and_leaves(tracing: Tracing, running: &mut Running, calls: u64) -> Result<()> {
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(outcome.count("work"), calls, "{outcome}");
    left_and_verified(&outcome, running);
    ask(running, "run 5000", "ran ").map(drop)
}

#[test]
fn process_whose_first_thread_has_ended_is_entered_and_left() -> Result<()> {
    let (target, mut running) = parting()?;
    ask(&mut running, "leave", "left")?;
    running.wait_state('Z')?;
    let tracing = count_work(&target, &running)?;
    ask(&mut running, "run 5000", "ran ")?;
    counts_and_leaves(tracing, &mut running, 5000)?;
    Ok(())
}

#[test]
fn process_whose_first_thread_ends_meanwhile_is_left() -> Result<()> {
    let (target, mut running) = parting()?;
    let tracing = count_work(&target, &running)?;
    ask(&mut running, "run 100", "ran ")?;
    ask(&mut running, "leave", "left")?;
    running.wait_state('Z')?;
    ask(&mut running, "run 5000", "ran ")?;
    counts_and_leaves(tracing, &mut running, 5100)?;
    Ok(())
}

#[test]
fn process_whose_first_thread_has_ended_is_recovered_when_all_of_ours_were_killed() -> Result<()> {
    let (target, mut running) = parting()?;
    let pid = running.pid_text();
    let tracing = count_work(&target, &running)?;
    kill_guard_of(running.pid())?;
    tracing.kill_with_children()?;
    ask(&mut running, "leave", "left")?;
    running.wait_state('Z')?;
    assert!(has_ours(running.pid()));
    let outcome = Nanoprobe::find()?.run(["recover", "-p", &pid])?.success()?;
    left_and_verified(&outcome, &running);
    ask(&mut running, "run 5000", "ran ")?;
    Ok(())
}

#[test]
fn process_with_a_name_that_is_no_text_is_entered_and_left() -> Result<()> {
    for is_named_before in [true, false] {
        let (target, mut running) = parting()?;
        if is_named_before {
            ask(&mut running, "name", "named")?;
        }
        let tracing = count_work(&target, &running)?;
        ask(&mut running, "name", "named")?;
        ask(&mut running, "run 5000", "ran ")?;
        counts_and_leaves(tracing, &mut running, 5000)?;
    }
    Ok(())
}

#[test]
fn what_cannot_be_read_is_not_called_ended() -> Result<()> {
    let (target, mut running) = parting()?;
    let pid = running.pid_text();
    let tracing = count_work(&target, &running)?;
    // From now on it opens no file any more.
    let children = format!("/proc/{0}/task/{0}/children", tracing.pid());
    for engine in std::fs::read_to_string(children).unwrap_or_default().split_whitespace() {
        let status = Command::new("prlimit").args(["--pid", engine, "--nofile=3"]).status();
        assert!(status.is_ok_and(|status| status.success()));
    }
    let outcome = tracing.interrupt_and_finish()?;
    assert!(!outcome.stderr.contains("ended"), "{outcome}");
    assert!(outcome.stderr.contains("EMFILE"), "{outcome}");
    assert!(!outcome.says_detach_verified() && outcome.code() != Some(0), "{outcome}");
    Nanoprobe::find()?.run(["recover", "-p", &pid])?.success()?;
    assert!(!has_ours(running.pid()));
    ask(&mut running, "run 100", "ran ")?;
    Ok(())
}

#[test]
fn every_child_of_a_chain_of_forks_is_freed_or_named() -> Result<()> {
    for round in 0..rounds(2, 1000) {
        eprintln!("round {round}");
        let (target, mut running) = parting()?;
        let tracing = count_work(&target, &running)?;
        ask(&mut running, "chain 60", "chaining")?;
        std::thread::sleep(Duration::from_millis(30));
        let outcome = tracing.interrupt_and_finish()?;
        let line = ask(&mut running, "chained", "chained ")?;
        assert_eq!(number(&line, "born")?, 60, "{line}\n{outcome}");
        let outcome = outcome.success()?;
        assert!(outcome.says_detach_verified(), "{line}\n{outcome}");
        assert_eq!((number(&line, "clean")?, number(&line, "dirty")?), (60, 0), "{line}\n{outcome}");
    }
    Ok(())
}

#[test]
fn children_are_freed_when_the_engine_was_killed() -> Result<()> {
    let (target, mut running) = parting()?;
    let tracing = count_work(&target, &running)?;
    ask(&mut running, "chain 20", "chaining")?;
    std::thread::sleep(Duration::from_millis(20));
    tracing.kill_children()?;
    tracing.finish()?;
    let line = ask(&mut running, "chained", "chained ")?;
    assert_eq!((number(&line, "clean")?, number(&line, "dirty")?), (20, 0), "{line}");
    Ok(())
}

#[test]
fn what_a_dead_engine_left_is_cleared_away_by_one_of_many_that_find_it_at_once() -> Result<()> {
    let (target, mut running) = parting()?;
    let (spec, pid) = (target.spec("work"), running.pid_text());
    for round in 0..rounds(30, 300) {
        let mut tracing = Nanoprobe::find()?.start(["count", "u:libc:*alloc*", &spec, "-p", &pid])?;
        tracing.attached()?;
        kill_guard_of(running.pid())?;
        tracing.kill_with_children()?;
        let words = ["count", &spec, "-p", &pid, "--for", "1ms"];
        let all: Result<Vec<_>> = (0..6).map(|_| Nanoprobe::find()?.start(words)).collect();
        for other in all? {
            let outcome = other.finish()?;
            assert_eq!(outcome.code(), Some(0), "round {round}: {outcome}");
        }
    }
    ask(&mut running, "run 100", "ran ")?;
    assert!(!has_ours(running.pid()));
    Ok(())
}

#[test]
fn semaphore_is_lowered_once_though_the_engine_is_killed_after_it() -> Result<()> {
    let (target, mut running) = parting()?;
    let pid = running.pid_text();
    // Another tracer's: what must be left.
    ask(&mut running, "set 5", "set")?;
    let spec = format!("U:{}:parting:mark", target.path().display());
    let mut tracing = Nanoprobe::find()?.start(["count", &spec, "-p", &pid])?;
    tracing.attached()?;
    assert_eq!(number(&ask(&mut running, "mark 1", "marked ")?, "semaphore")?, 6);
    ask(&mut running, "hold 2000", "holding")?;
    // The engine restores the code, lowers the semaphore, and waits for the thread in its memory.
    tracing.interrupt()?;
    wait_until("the semaphore lowered", LIMIT, || {
        ask(&mut running, "mark 0", "marked ")
            .is_ok_and(|line| number(&line, "semaphore").is_ok_and(|n| n == 5))
    })?;
    tracing.kill_children()?;
    tracing.finish()?;
    assert_eq!(number(&ask(&mut running, "mark 0", "marked ")?, "semaphore")?, 5);
    Nanoprobe::find()?.run(["recover", "-p", &pid])?;
    assert_eq!(number(&ask(&mut running, "mark 0", "marked ")?, "semaphore")?, 5);
    assert!(!has_ours(running.pid()));
    Ok(())
}

#[test]
fn vfork_child_that_stays_delays_neither_attach_nor_detach() -> Result<()> {
    // Asked for while the child lives, or before: the two are different stops.
    for is_there_before in [true, false] {
        let (target, mut running) = parting()?;
        let pid = running.pid_text();
        if is_there_before {
            ask(&mut running, "vfork 120000", "vforked")?;
        }
        let tracing = count_work(&target, &running)?;
        if !is_there_before {
            ask(&mut running, "vfork 120000", "vforked")?;
        }
        ask(&mut running, "run 5000", "ran ")?;
        let outcome = tracing.interrupt_and_finish()?.success()?;
        assert_eq!(ask(&mut running, "inside", "inside ")?, "inside 1", "{outcome}");
        assert_eq!(outcome.count("work"), 5000, "{outcome}");
        left_and_verified(&outcome, &running);
        // Nobody is traced any more, and the waiting thread is not stopped when its child ends.
        let children = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        assert!(children.contains("TracerPid:\t0"), "{children}");
        ask(&mut running, "run 5000", "ran ")?;
    }
    Ok(())
}

#[test]
fn thread_behind_a_vfork_goes_on_when_its_child_ends() -> Result<()> {
    let (target, mut running) = parting()?;
    let pid = running.pid_text();
    ask(&mut running, "vfork 1500", "vforked")?;
    let outcome =
        Nanoprobe::find()?.run(["count", &target.spec("work"), "-p", &pid, "--for", "200ms"])?.success()?;
    left_and_verified(&outcome, &running);
    wait_until("the end of the vfork", LIMIT, || {
        ask(&mut running, "inside", "inside ").is_ok_and(|line| line == "inside 0")
    })?;
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn process_that_shares_the_memory_lives_on() -> Result<()> {
    for is_there_before in [true, false] {
        let (target, mut running) = parting()?;
        if is_there_before {
            ask(&mut running, "share", "sharing ")?;
        }
        for _ in 0..rounds(3, 500) {
            let tracing = count_work(&target, &running)?;
            let line = ask(&mut running, "shared", "shared ")?;
            if number(&line, "lives")? == 0 {
                ask(&mut running, "share", "sharing ")?;
            }
            ask(&mut running, "run 5000", "ran ")?;
            let outcome = tracing.interrupt_and_finish()?.success()?;
            left_and_verified(&outcome, &running);
            let line = ask(&mut running, "shared", "shared ")?;
            assert_eq!((number(&line, "lives")?, number(&line, "errors")?), (1, 0), "{line}\n{outcome}");
        }
    }
    Ok(())
}

#[test]
fn handler_with_a_big_stack_comes_back_unharmed() -> Result<()> {
    for kilobytes in ["300", "5000"] {
        let (target, mut running) = parting()?;
        let pid = running.pid_text();
        ask(&mut running, &format!("deep {kilobytes}"), "deep")?;
        for _ in 0..rounds(5, 200) {
            let outcome = Nanoprobe::find()?
                .run(["count", &target.spec("work"), "-p", &pid, "--for", "20ms"])?
                .success()?;
            assert!(outcome.says_detach_verified(), "{outcome}");
            ask(&mut running, "run 100", "ran ")?;
        }
        assert_eq!(running.end()?.code(), Some(7), "{kilobytes}");
    }
    Ok(())
}

#[test]
fn stopped_and_continued_process_is_as_it_was() -> Result<()> {
    let (target, mut running) = parting()?;
    ask(&mut running, "run 100", "ran ")?;
    let before = Snapshot::take(running.pid())?;
    running.signal(Signal::SIGSTOP)?;
    running.wait_state('T')?;
    let began = Instant::now();
    let pid = running.pid_text();
    Nanoprobe::find()?.run(["count", &target.spec("work"), "-p", &pid, "--for", "100ms"])?.success()?;
    running.wait_state('T')?;
    running.signal(Signal::SIGCONT)?;
    before.comes_back(LIMIT)?;
    assert!(began.elapsed() < Duration::from_secs(60));
    Ok(())
}
