//! Promises of the design that are not kept yet. Each of these fails today.
//!
//! For:     whoever closes one: it moves to `traces` or `signals` when it passes.
//! Keeps:   nothing; not part of `scripts/test`. Run with `--features gaps`.

use testkit::{Link, Nanoprobe, Program, Result, Target, number};

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
