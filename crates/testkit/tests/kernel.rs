//! Sites where no jump fits, under the kernel's uprobes.
//!
//! For:     rung 7 of the ladder.
//! Keeps:   hits of all threads are counted exactly, those of no other process; whoever dies, the breakpoint goes.

use std::time::{Duration, Instant};
use testkit::{Link, Nanoprobe, Program, Result, Running, Snapshot, Target, Tracing};

const CALLS: u64 = 80_000;

/// A function of one byte, and the next one follows at once.
const SITE: &str = "work_ret";

fn count(target: &Target, running: &Running, more: &[&str]) -> Result<Tracing> {
    let (spec, pid) = (target.spec(SITE), running.pid_text());
    let mut arguments = vec!["count", &spec, "-p", &pid];
    arguments.extend(more);
    Nanoprobe::find()?.start(arguments)
}

/// What differs, but for the page that the kernel keeps.
fn differences(before: &Snapshot) -> Result<Vec<String>> {
    let difference = before.difference_now()?.to_string();
    let is_known = |line: &&str| line.contains("[uprobes]") || line.contains("no difference");
    Ok(difference.lines().filter(|line| !is_known(line)).map(str::to_owned).collect())
}

#[test]
fn threads_are_counted_exactly_and_other_processes_not() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let (mut running, mut other) = (target.spawn()?, target.spawn()?);
    let before = Snapshot::take(running.pid())?;
    let mut tracing = count(&target, &running, &["--strict"])?;
    tracing.attached()?;
    assert_eq!(running.run(CALLS, SITE)?, CALLS);
    assert_eq!(other.run(CALLS, SITE)?, CALLS);
    assert_eq!(running.run(CALLS, "work")?, CALLS);
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(outcome.count(SITE), CALLS, "{outcome}");
    assert!(outcome.stderr.contains("(1 kernel)") && outcome.stderr.contains("traps"), "{outcome}");
    assert!(outcome.stderr.contains("Detach verified: yes"), "{outcome}");
    assert_eq!(differences(&before)?, [""; 0]);
    assert_eq!(running.run(CALLS, SITE)?, CALLS);
    assert_eq!((running.end()?.code(), other.end()?.code()), (Some(7), Some(7)));
    Ok(())
}

#[test]
fn jumps_and_the_kernel_share_a_run() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let spec = target.spec("work_r*");
    let mut tracing = Nanoprobe::find()?.start(["count", &spec, "-p", &running.pid_text()])?;
    tracing.attached()?;
    let mut wanted = Vec::new();
    for function in ["work_ret", "work_ret_next", "work_redzone", "work_rip", "work_rep"] {
        wanted.push((function, running.run(CALLS, function)?));
    }
    let outcome = tracing.interrupt_and_finish()?.success()?;
    for (function, hits) in wanted {
        assert_eq!(outcome.count(function), hits, "{function}: {outcome}");
    }
    Ok(())
}

#[test]
fn histogram_is_made_in_the_kernel() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let (spec, pid) = (target.spec(SITE), running.pid_text());
    let mut tracing = Nanoprobe::find()?.start(["hist", &spec, "arg0", "-f", "json", "-p", &pid])?;
    tracing.attached()?;
    running.run(CALLS, SITE)?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    let hist = outcome.json_data("hist")?;
    let buckets = hist[0]["@"][SITE].as_array().cloned().unwrap_or_default();
    let sum: u64 = buckets.iter().filter_map(|b| b["count"].as_u64()).sum();
    assert_eq!(sum, CALLS, "{outcome}");
    let receipt = outcome.json_receipt()?;
    assert_eq!((receipt.hits, receipt.handled, receipt.skipped), (CALLS, CALLS, 0), "{outcome}");
    Ok(())
}

#[test]
fn kill_of_front_and_engine_takes_the_breakpoint_out() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let before = Snapshot::take(running.pid())?;
    let mut tracing = count(&target, &running, &[])?;
    tracing.attached()?;
    running.run(CALLS, SITE)?;
    tracing.kill_with_children()?;
    let end = Instant::now() + Duration::from_secs(60);
    while !differences(&before)?.is_empty() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(differences(&before)?, [""; 0]);
    assert_eq!(running.run(CALLS, SITE)?, CALLS);
    Ok(())
}

#[test]
fn who_wants_no_trap_says_so() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let running = target.spawn()?;
    let outcome = count(&target, &running, &["--no-kernel"])?.finish()?;
    assert_eq!(outcome.code(), Some(1), "{outcome}");
    assert!(outcome.stderr.contains("--no-kernel"), "{outcome}");
    Ok(())
}

#[test]
fn what_the_kernel_would_run_wrong_is_left_out() -> Result<()> {
    let target = Target::build(Program::Counted, Link::NoPie)?;
    let mut running = target.spawn()?;
    let pushf = target.spec(&running.place("work_pushf_mid")?);
    let (ret, pid) = (target.spec(SITE), running.pid_text());
    let mut tracing = Nanoprobe::find()?.start(["count", &pushf, &ret, "-v", "-p", &pid])?;
    tracing.attached()?;
    // The program compares each result with what it should be.
    assert_eq!(running.run(CALLS, "work_pushf")?, CALLS);
    assert_eq!(running.run(CALLS, SITE)?, CALLS);
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(outcome.count(SITE), CALLS, "{outcome}");
    assert!(outcome.stderr.contains("pushf pushes the trap flag"), "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}
