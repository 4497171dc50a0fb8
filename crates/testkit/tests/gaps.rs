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

/// A parked goroutine goes on at the instruction where a signal stopped it, and no thread stands there: a window that is
/// put over it is jumped into. Seen as wrong sums and as SIGILL; with GODEBUG=asyncpreemptoff=1 never. Found by
/// `torture anywhere --workload gofmt`.
#[test]
fn goroutines_that_are_stopped_anywhere_go_on_right() -> Result<()> {
    let target = Target::build(Program::Preempted, Link::Pie)?;
    let mut running = target.spawn()?;
    let specs: Vec<String> = (1..0x30).map(|offset| target.spec(&format!("main.spin+{offset:#x}"))).collect();
    for _ in 0..25 {
        let pid = running.pid_text();
        let arguments = ["count"].into_iter().chain(specs.iter().map(String::as_str));
        let arguments = arguments.chain(["-p", &pid, "--for", "200ms"]);
        Nanoprobe::find()?.run(arguments)?.success()?;
    }
    running.command("check")?;
    let line = running.expect("totals ")?;
    assert!(number(&line, "runs")? > 10, "{line}");
    assert_eq!(number(&line, "bad")?, 0, "{line}");
    Ok(())
}
