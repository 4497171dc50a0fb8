//! Promises of the design that are not kept yet. Each of these fails today.
//!
//! For:     whoever closes one: it moves to `traces` or `signals` when it passes.
//! Keeps:   nothing; not part of `scripts/test`. Run with `--features gaps`.

use std::time::Duration;

use testkit::{Link, Nanoprobe, Program, Result, Snapshot, Target, number};

#[test]
fn target_restores_itself_when_every_process_of_the_controller_is_killed() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    running.run(800, "work")?;
    let before = Snapshot::take(running.pid())?;
    let mut tracing = Nanoprobe::find()?.start(["count", &target.spec("work"), "-p", &running.pid_text()])?;
    tracing.attached()?;
    tracing.kill_with_children()?;
    before.comes_back(Duration::from_secs(5))
}

#[test]
fn handler_never_sees_a_program_counter_that_is_not_the_targets() -> Result<()> {
    let target = Target::build(Program::Handlers, Link::Pie)?;
    let mut running = target.spawn()?;
    let arguments = ["count", &target.spec("work"), "-p", &running.pid_text(), "--for", "2s"];
    let mut tracing = Nanoprobe::find()?.start(arguments)?;
    tracing.attached()?;
    tracing.finish()?.success()?;
    running.command("check")?;
    let line = running.expect("handlers ")?;
    assert!(number(&line, "alarms")? > 500, "{line}");
    assert_eq!(number(&line, "foreign")?, 0, "{line}");
    Ok(())
}
