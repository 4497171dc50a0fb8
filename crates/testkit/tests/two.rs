//! Two nanoprobes on the same process and the same site.
//!
//! For:     design: works; each has its own consumers.
//! Keeps:   each counts exactly what was called while it was attached, whichever ends first.

use std::time::{Duration, Instant};
use testkit::{Link, Nanoprobe, Outcome, Program, Result, Snapshot, Target, Tracing};

const CALLS: u64 = 80_000;

fn attach(target: &Target, pid: &str) -> Result<Tracing> {
    attach_to(target, "work", pid)
}

fn attach_to(target: &Target, function: &str, pid: &str) -> Result<Tracing> {
    let mut tracing = Nanoprobe::find()?.start(["count", &target.spec(function), "-p", pid])?;
    tracing.attached()?;
    Ok(tracing)
}

/// The counts of the one that came first and of the one that came second.
fn two(function: &str, first_ends_first: bool) -> Result<(u64, u64)> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let before = Snapshot::take(running.pid())?;
    let first = attach_to(&target, function, &running.pid_text())?;
    running.run(CALLS, function)?;
    let second = attach_to(&target, function, &running.pid_text())?;
    running.run(CALLS, function)?;
    let end = |one: Tracing| -> Result<Outcome> { one.interrupt_and_finish()?.success() };
    let (first, second) = if first_ends_first {
        let first = end(first)?;
        running.run(CALLS, function)?;
        (first, end(second)?)
    } else {
        let second = end(second)?;
        running.run(CALLS, function)?;
        (end(first)?, second)
    };
    let difference = before.difference_now()?;
    assert!(difference.is_empty(), "{difference}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok((first.count(function), second.count(function)))
}

#[test]
fn both_count_exactly_when_the_second_ends_first() -> Result<()> {
    assert_eq!(two("work", false)?, (3 * CALLS, CALLS));
    Ok(())
}

#[test]
fn both_count_exactly_when_the_first_ends_first() -> Result<()> {
    assert_eq!(two("work", true)?, (2 * CALLS, 2 * CALLS));
    Ok(())
}

#[test]
fn both_count_exactly_where_a_jump_can_lead_to_some_addresses_only() -> Result<()> {
    for function in ["work_punned", "work_punned_small"] {
        assert_eq!(two(function, false)?, (3 * CALLS, CALLS), "{function}");
        assert_eq!(two(function, true)?, (2 * CALLS, 2 * CALLS), "{function}");
    }
    Ok(())
}

/// Such a jump changes one byte. The kernel's breakpoint would go over it, and the file's byte over that.
#[test]
fn where_a_jump_can_lead_to_one_address_the_first_counts_exactly_and_the_second_is_told() -> Result<()> {
    const LEAF: &str = "main.WorkLeaf";
    let target = Target::build(Program::CountedGo, Link::Pie)?;
    let mut running = target.spawn()?;
    let before = Snapshot::take(running.pid())?;
    let pid = running.pid_text();
    for is_killed in [false, true] {
        let first = attach_to(&target, LEAF, &pid)?;
        running.run(CALLS, LEAF)?;
        let second = Nanoprobe::find()?.run(["count", &target.spec(LEAF), "-p", &pid])?;
        assert!(second.code() == Some(1) && second.stderr.contains("another nanoprobe"), "{second}");
        running.run(CALLS, LEAF)?;
        if is_killed {
            first.kill()?;
        } else {
            let outcome = first.interrupt_and_finish()?.success()?;
            assert_eq!(outcome.count(LEAF), 2 * CALLS, "{outcome}");
            assert!(outcome.stderr.contains("1 punned"), "{outcome}");
        }
        // Go maps memory by itself; its code, and ours, are looked at. Who was killed may take a moment.
        let is_gos = |line: &str| !line.contains("code") && !line.contains("r-xp") && !line.contains("memfd");
        let end = Instant::now() + Duration::from_secs(60);
        let mut difference = before.difference_now()?.without(is_gos);
        while !difference.is_empty() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
            difference = before.difference_now()?.without(is_gos);
        }
        assert!(difference.is_empty(), "{difference}");
        running.run(CALLS, LEAF)?;
    }
    assert_eq!(running.end()?.code(), Some(7));
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
    let within = Duration::from_secs(60);
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

#[test]
fn both_end_at_the_same_moment_and_the_site_is_restored() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let before = Snapshot::take(running.pid())?;
    // Each must not leave the site to the other: seen once in ten times.
    for round in 0..20 {
        let first = attach(&target, &running.pid_text())?;
        let second = attach(&target, &running.pid_text())?;
        first.interrupt()?;
        second.interrupt()?;
        let (first, second) = (first.finish()?.success()?, second.finish()?.success()?);
        let difference = before.difference_now()?;
        assert!(difference.is_empty(), "round {round}: {difference}\n{first}\n{second}");
    }
    running.run(CALLS, "work")?;
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}
