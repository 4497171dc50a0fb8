//! Two nanoprobes on the same process and the same site.
//!
//! For:     design: works; each has its own consumers.
//! Keeps:   each counts exactly what was called while it was attached, whichever ends first.

use testkit::{Link, Nanoprobe, Outcome, Program, Result, Snapshot, Target, Tracing};

const CALLS: u64 = 80_000;

fn attach(target: &Target, pid: &str) -> Result<Tracing> {
    let mut tracing = Nanoprobe::find()?.start(["count", &target.spec("work"), "-p", pid])?;
    tracing.attached()?;
    Ok(tracing)
}

/// The counts of the one that came first and of the one that came second.
fn two(first_ends_first: bool) -> Result<(u64, u64)> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let before = Snapshot::take(running.pid())?;
    let first = attach(&target, &running.pid_text())?;
    running.run(CALLS, "work")?;
    let second = attach(&target, &running.pid_text())?;
    running.run(CALLS, "work")?;
    let end = |one: Tracing| -> Result<Outcome> { one.interrupt_and_finish()?.success() };
    let (first, second) = if first_ends_first {
        let first = end(first)?;
        running.run(CALLS, "work")?;
        (first, end(second)?)
    } else {
        let second = end(second)?;
        running.run(CALLS, "work")?;
        (end(first)?, second)
    };
    let difference = before.difference_now()?;
    assert!(difference.is_empty(), "{difference}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok((first.count("work"), second.count("work")))
}

#[test]
fn both_count_exactly_when_the_second_ends_first() -> Result<()> {
    assert_eq!(two(false)?, (3 * CALLS, CALLS));
    Ok(())
}

#[test]
fn both_count_exactly_when_the_first_ends_first() -> Result<()> {
    assert_eq!(two(true)?, (2 * CALLS, 2 * CALLS));
    Ok(())
}

#[test]
fn second_works_on_when_the_first_is_killed() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let before = Snapshot::take(running.pid())?;
    let first = attach(&target, &running.pid_text())?;
    let second = attach(&target, &running.pid_text())?;
    running.run(CALLS, "work")?;
    first.kill()?;
    running.run(CALLS, "work")?;
    let outcome = second.interrupt_and_finish()?.success()?;
    assert_eq!(outcome.count("work"), 2 * CALLS, "{outcome}");
    let within = std::time::Duration::from_secs(5);
    before.comes_back(within).unwrap_or_else(|error| panic!("{error}\n{outcome}"));
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn two_on_different_functions_do_not_meet() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let pid = running.pid_text();
    let first = attach(&target, &pid)?;
    let mut second = Nanoprobe::find()?.start(["count", &target.spec("work_push"), "-p", &pid])?;
    second.attached()?;
    running.run(CALLS, "work")?;
    running.run(2 * CALLS, "work_push")?;
    let first = first.interrupt_and_finish()?.success()?;
    let second = second.interrupt_and_finish()?.success()?;
    assert_eq!((first.count("work"), second.count("work_push")), (CALLS, 2 * CALLS));
    Ok(())
}
