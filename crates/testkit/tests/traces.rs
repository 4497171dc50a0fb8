//! Leave no trace: a process is after detach what it was before.
//!
//! For:     the promise of a verified detach.
//! Keeps:   same threads, descriptors, mappings, signal state, and code byte for byte, whichever
//!          way the run ends.

use std::time::Duration;

use nix::sys::signal::Signal;
use testkit::{Link, Nanoprobe, Program, Result, Snapshot, Target, kill_guard_of};

/// After the death of a controller; after its own end there is nothing to wait for.
const LIMIT: Duration = Duration::from_secs(60);

/// How the controller ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Interrupt,
    Term,
    Hangup,
    AfterAWhile,
    FrontKilled,
    EngineKilled,
    BothKilled,
    AllKilled,
}

fn comes_back(link: Link, end: End) -> Result<()> {
    let target = Target::build(Program::Counted, link)?;
    let mut running = target.spawn()?;
    running.run(800, "work")?;
    let before = Snapshot::take(running.pid())?;
    let spec = target.spec("*work*");
    let pid = running.pid_text();
    let mut arguments = vec!["count", &spec, "-p", &pid];
    if let End::AfterAWhile = end {
        arguments.extend(["--for", "300ms"]);
    }
    let mut tracing = Nanoprobe::find()?.start(arguments)?;
    let probes = tracing.attached()?.probes;
    assert!(probes > 10, "{probes}");
    running.run(8_000, "work")?;
    // The given time may be over by now.
    let is_attached = || before.difference_now().map(|difference| !difference.is_empty());
    assert!(matches!(end, End::AfterAWhile) || is_attached()?, "nothing was attached");
    match end {
        End::Interrupt => drop(tracing.interrupt_and_finish()?.success()?),
        End::AfterAWhile => drop(tracing.finish()?.success()?),
        End::FrontKilled => tracing.kill()?,
        End::EngineKilled => {
            tracing.kill_children()?;
            // Nothing is verified, and it says so by its exit code.
            assert_ne!(tracing.finish()?.code(), Some(0));
        }
        End::BothKilled => tracing.kill_with_children()?,
        End::AllKilled => {
            kill_guard_of(running.pid())?;
            tracing.kill_with_children()?;
            // No one is left who could restore; the target works on, and the next command does it.
            running.run(8_000, "work")?;
            assert!(!before.difference_now()?.is_empty(), "somebody restored it");
            Nanoprobe::find()?.run(["recover", "-p", &pid])?.success()?;
        }
        End::Term | End::Hangup => {
            tracing.signal(if let End::Term = end { Signal::SIGTERM } else { Signal::SIGHUP })?;
            tracing.finish()?;
        }
    }
    before.comes_back(LIMIT).unwrap_or_else(|error| panic!("{link:?} {end:?}: {error}"));
    running.run(8_000, "work")?;
    assert_eq!(running.end()?.code(), Some(7), "{link:?} {end:?}");
    Ok(())
}

#[test]
fn interrupt_leaves_no_trace() -> Result<()> {
    Link::ALL.into_iter().try_for_each(|link| comes_back(link, End::Interrupt))
}

#[test]
fn end_of_the_given_time_leaves_no_trace() -> Result<()> {
    Link::ALL.into_iter().try_for_each(|link| comes_back(link, End::AfterAWhile))
}

#[test]
fn kill_of_the_controller_leaves_no_trace() -> Result<()> {
    Link::ALL.into_iter().try_for_each(|link| comes_back(link, End::FrontKilled))
}

#[test]
fn kill_of_the_engine_leaves_no_trace() -> Result<()> {
    comes_back(Link::Pie, End::EngineKilled)
}

#[test]
fn kill_of_front_and_engine_at_one_moment_leaves_no_trace() -> Result<()> {
    comes_back(Link::Pie, End::BothKilled)?;
    comes_back(Link::Static, End::BothKilled)
}

#[test]
fn kill_of_the_guard_too_is_cured_by_recover() -> Result<()> {
    comes_back(Link::Pie, End::AllKilled)?;
    comes_back(Link::Static, End::AllKilled)
}

#[test]
fn terminate_and_hangup_leave_no_trace() -> Result<()> {
    comes_back(Link::Pie, End::Term)?;
    comes_back(Link::Pie, End::Hangup)
}

#[test]
fn two_interrupts_in_a_row_still_restore_the_code() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    running.run(800, "work")?;
    let before = Snapshot::take(running.pid())?;
    let spec = target.spec("*work*");
    let mut tracing = Nanoprobe::find()?.start(["count", &spec, "-p", &running.pid_text()])?;
    tracing.attached()?;
    tracing.interrupt()?;
    // It may have ended already, which is as good.
    let _ = tracing.interrupt();
    let outcome = tracing.finish()?;
    before.comes_back(LIMIT).unwrap_or_else(|error| panic!("{error}\n{outcome}"));
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn go_and_rust_processes_have_their_code_back() -> Result<()> {
    for (program, function, symbol) in
        [(Program::CountedGo, "main.Work", "main.*"), (Program::CountedRust, "work", "*work*")]
    {
        let target = Target::build(program, Link::Pie)?;
        let mut running = target.spawn()?;
        // By then every thread has its stacks and arenas.
        running.run(8_000, function)?;
        let before = Snapshot::take(running.pid())?;
        let spec = target.spec(symbol);
        let mut tracing = Nanoprobe::find()?.start(["count", &spec, "-p", &running.pid_text()])?;
        tracing.attached()?;
        tracing.interrupt_and_finish()?.success()?;
        // Go's runtime starts threads and maps memory by itself; its code must not change.
        let foreign =
            |line: &str| program == Program::CountedGo && !line.contains("code") && !line.contains("memfd");
        let difference = before.difference_now()?.without(foreign);
        assert!(difference.is_empty(), "{program:?}: {difference}");
        assert_eq!(running.end()?.code(), Some(7));
    }
    Ok(())
}

#[test]
fn thirty_rounds_leave_as_little_as_one() -> Result<()> {
    let target = Target::build(Program::Storm, Link::Pie)?;
    let mut running = target.spawn()?;
    running.totals()?;
    let before = Snapshot::take(running.pid())?;
    let spec = target.spec("work");
    for round in 0..30 {
        let mut tracing = Nanoprobe::find()?.start(["count", &spec, "-p", &running.pid_text()])?;
        tracing.attached()?;
        let outcome = tracing.interrupt_and_finish()?.success()?;
        assert!(outcome.says_detach_verified(), "round {round}: {outcome}");
    }
    let difference = before.difference_now()?;
    assert!(difference.is_empty(), "{difference}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

/// A kernel without `PR_SET_MDWE` (before 6.3) says EINVAL.
#[test]
fn a_process_that_may_not_make_memory_executable_is_probed_all_the_same() -> Result<()> {
    let sealed = Target::build(Program::Sealed, Link::Static)?.path().display().to_string();
    let target = Target::build(Program::Counted, Link::Pie)?;
    let probe =
        std::process::Command::new(&sealed).arg("/bin/true").output().map_err(testkit::Error::io(&sealed))?;
    if String::from_utf8_lossy(&probe.stderr).contains("Invalid argument") {
        println!("skipped: this kernel has no PR_SET_MDWE");
        return Ok(());
    }
    let mut running = target.spawn_through::<&str>(&[&sealed], &[])?;
    let before = Snapshot::take(running.pid())?;
    for verb in ["count", "lat"] {
        let mut tracing =
            Nanoprobe::find()?.start([verb, &target.spec("work"), "-p", &running.pid_text()])?;
        tracing.attached()?;
        let hits = running.run(8_000, "work")?;
        let outcome = tracing.interrupt_and_finish()?.success()?;
        assert!(outcome.stdout.contains(&hits.to_string()), "{outcome}");
        let difference = before.difference_now()?;
        assert!(difference.is_empty(), "{difference}");
    }
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}
