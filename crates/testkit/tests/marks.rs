//! USDT marks, also those that a program comes by only while somebody traces them.
//!
//! For:     `U:`.
//! Keeps:   a mark's semaphore is up while a probe is in and as before when it has left, however it leaves.

use testkit::{Link, Nanoprobe, Program, Result, Running, Target, number};

const LINKS: [Link; 3] = [Link::Pie, Link::NoPie, Link::Musl];

/// How often `run` came by the guarded mark, and the semaphore behind it.
fn passed(running: &mut Running, calls: u64) -> Result<(u64, u64)> {
    running.command(&format!("run {calls}"))?;
    let line = running.expect("passed ")?;
    assert_eq!(number(&line, "plain")?, calls, "{line}");
    Ok((number(&line, "guarded")?, number(&line, "semaphore")?))
}

fn spec(target: &Target, mark: &str) -> String {
    format!("U:{}:{mark}", target.path().display())
}

#[test]
fn guarded_mark_is_passed_and_counted_while_it_is_traced() -> Result<()> {
    for link in LINKS {
        let target = Target::build(Program::Marked, link)?;
        let mut running = target.spawn()?;
        assert_eq!(passed(&mut running, 1000)?, (0, 0));
        let pid = running.pid_text();
        let mut tracing = Nanoprobe::find()?.start(["count", &spec(&target, "demo:*"), "-p", &pid])?;
        tracing.attached()?;
        assert_eq!(passed(&mut running, 70_000)?, (70_000, 1), "{link:?}");
        let outcome = tracing.interrupt_and_finish()?.success()?;
        assert_eq!(outcome.count("demo:guarded"), 70_000, "{link:?} {outcome}");
        assert_eq!(outcome.count("demo:plain"), 70_000, "{link:?} {outcome}");
        let twice: u64 = outcome.table().iter().filter(|(n, _)| n.contains("twice")).map(|(_, c)| c).sum();
        assert_eq!(twice, 70_000, "{link:?} {outcome}");
        assert_eq!(passed(&mut running, 1000)?, (0, 0), "{link:?}");
        assert_eq!(running.end()?.code(), Some(7));
    }
    Ok(())
}

#[test]
fn two_tracers_raise_it_twice_and_each_lowers_it_once() -> Result<()> {
    let target = Target::build(Program::Marked, Link::Pie)?;
    let mut running = target.spawn()?;
    let pid = running.pid_text();
    let guarded = spec(&target, "guarded");
    let mut first = Nanoprobe::find()?.start(["count", &guarded, "-p", &pid])?;
    first.attached()?;
    let mut second = Nanoprobe::find()?.start(["count", &guarded, "-p", &pid])?;
    second.attached()?;
    assert_eq!(passed(&mut running, 1000)?, (1000, 2));
    let first = first.interrupt_and_finish()?.success()?;
    assert_eq!(passed(&mut running, 1000)?, (1000, 1));
    second.kill_with_children()?;
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while passed(&mut running, 10)?.1 > 0 && std::time::Instant::now() < end {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(passed(&mut running, 1000)?, (0, 0), "{first}");
    Ok(())
}

#[test]
fn forked_child_has_its_copy_lowered_too() -> Result<()> {
    let target = Target::build(Program::Marked, Link::Pie)?;
    let mut running = target.spawn()?;
    let pid = running.pid_text();
    let mut tracing = Nanoprobe::find()?.start(["count", &spec(&target, "guarded"), "-p", &pid])?;
    tracing.attached()?;
    running.command("fork")?;
    let line = running.expect("passed ")?;
    assert_eq!((number(&line, "guarded")?, number(&line, "semaphore")?), (1000, 1), "{line}");
    let outcome = tracing.interrupt_and_finish()?.success()?;
    let line = running.expect("passed ")?;
    assert_eq!((number(&line, "guarded")?, number(&line, "semaphore")?), (0, 0), "{line}\n{outcome}");
    running.expect("forked")?;
    assert_eq!(passed(&mut running, 1000)?, (0, 0));
    Ok(())
}

#[test]
fn argument_of_a_mark_is_what_its_note_says() -> Result<()> {
    let target = Target::build(Program::Marked, Link::Pie)?;
    let mut running = target.spawn()?;
    let pid = running.pid_text();
    let arguments = ["hist", &spec(&target, "guarded"), "arg0", "-f", "json", "-p", &pid];
    let mut tracing = Nanoprobe::find()?.start(arguments)?;
    tracing.attached()?;
    passed(&mut running, 1024)?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    let hist = outcome.json_data("hist")?;
    let buckets = hist[0]["@"]["demo:guarded"].as_array().cloned().unwrap_or_default();
    // 0, 1, 2 to 3, ... 512 to 1023: the rubbish above the four bytes is not counted.
    let counts: Vec<u64> = buckets.iter().filter_map(|b| b["count"].as_u64()).collect();
    assert_eq!(counts, [1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512], "{outcome}");
    let in_memory = ["hist", &spec(&target, "guarded"), "arg1", "-p", &pid];
    let refused = Nanoprobe::find()?.run(in_memory)?;
    assert!(refused.code() == Some(1) && refused.stderr.contains("8(%rsp)"), "{refused}");
    let missing = ["hist", &spec(&target, "guarded"), "arg2", "-p", &pid];
    let refused = Nanoprobe::find()?.run(missing)?;
    assert!(refused.code() == Some(1) && refused.stderr.contains("no arg2"), "{refused}");
    assert_eq!(passed(&mut running, 1000)?, (0, 0));
    Ok(())
}
