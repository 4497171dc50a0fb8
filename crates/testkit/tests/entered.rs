//! A process is entered where it can be, and as it is; else it is refused by name, and nothing has happened to it.
//!
//! For:     the promise that entering does no harm.
//! Keeps:   a signal that an instruction of the thread's own has raised is neither lost nor taken for our call's; a restartable sequence that a call of ours interrupted does not commit; a thread in 32-bit code makes no call
//!          for us; a process that has executed another program since we looked is not taken for the old one, nor for one
//!          that has ended.

use testkit::{Link, Nanoprobe, Program, Result, Snapshot, Target, number, rounds};

#[test]
fn a_sequence_that_we_interrupt_is_aborted() -> Result<()> {
    let target = Target::build(Program::Entered, Link::Pie)?;
    let mut running = target.spawn_with(&["sequence"])?;
    let before = Snapshot::take(running.pid())?;
    for _ in 0..rounds(12, 300) {
        // Each attach and detach makes calls in the thread that was found first, mostly inside its sequence.
        let spec = target.spec("work");
        Nanoprobe::find()?.run(["count", &spec, "-p", &running.pid_text(), "--for", "20ms"])?.success()?;
    }
    running.command("check")?;
    let seen = running.expect("check ")?;
    assert!(number(&seen, "aborts")? > 0 && number(&seen, "commits")? > 0, "it tested nothing: {seen}");
    assert_eq!(number(&seen, "broken")?, 0, "{seen}");
    let difference = before.difference_now()?;
    assert!(difference.is_empty(), "{difference}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn a_thread_that_steps_itself_loses_no_step_to_us() -> Result<()> {
    let target = Target::build(Program::Entered, Link::Pie)?;
    let mut running = target.spawn_with(&["steps"])?;
    let before = Snapshot::take(running.pid())?;
    let (spec, pid) = (target.spec("work"), running.pid_text());
    for verb in [&["count", &spec][..], &["lat", &spec], &["hist", &spec, "arg0"]] {
        for _ in 0..rounds(3, 100) {
            // Nobody else is there to make our calls: mostly a step has been made whose signal waits.
            let words = verb.iter().copied().chain(["-p", &pid, "--for", "20ms"]);
            let outcome = Nanoprobe::find()?.run(words)?.success()?;
            assert!(outcome.says_detach_verified(), "{outcome}");
        }
    }
    running.command("check")?;
    let seen = running.expect("check ")?;
    assert!(number(&seen, "rounds")? > 0, "it tested nothing: {seen}");
    assert_eq!(number(&seen, "broken")?, 0, "{seen}");
    // A step's signal may wait at any moment.
    let difference = before.difference_now()?.without(|line| line.contains("SigPnd"));
    assert!(difference.is_empty(), "{difference}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn a_process_whose_first_thread_is_in_32_bit_code_is_entered_by_another() -> Result<()> {
    let target = Target::build(Program::Entered, Link::Pie)?;
    let mut running = target.spawn_with(&["foreign"])?;
    let before = Snapshot::take(running.pid())?;
    for _ in 0..3 {
        let spec = target.spec("work");
        let outcome = Nanoprobe::find()?
            .run(["count", &spec, "-p", &running.pid_text(), "--for", "50ms"])?
            .success()?;
        assert!(outcome.count("work") > 0 && outcome.says_detach_verified(), "{outcome}");
    }
    let difference = before.difference_now()?;
    assert!(difference.is_empty(), "{difference}");
    // Its handler for SIGSEGV is used at each command.
    running.command("check")?;
    let seen = running.expect("check ")?;
    assert_eq!(number(&seen, "broken")?, 0, "{seen}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn a_process_that_executes_itself_all_the_time_is_entered_or_refused_by_name() -> Result<()> {
    let target = Target::build(Program::Entered, Link::Pie)?;
    // It says nothing: it could not be heard before it has executed itself again.
    let mut child = std::process::Command::new(target.path())
        .arg("execs")
        .stdin(std::process::Stdio::piped())
        .spawn()
        .map_err(testkit::Error::io("entered execs"))?;
    let pid = child.id().to_string();
    let mut entered = 0;
    for round in 0..rounds(25, 1000) {
        let spec = target.spec("work");
        let outcome = Nanoprobe::find()?.run(["count", &spec, "-p", &pid, "--for", "5ms"])?;
        let is_alive = child.try_wait().is_ok_and(|status| status.is_none());
        assert!(is_alive, "round {round}: it died of it\n{outcome}");
        let is_named = ["runs another program now", "is not mapped", "no function", "was replaced"]
            .iter()
            .any(|name| outcome.stderr.contains(name));
        if outcome.code() == Some(0) {
            entered += 1;
        } else {
            assert!(is_named, "round {round}: {outcome}");
        }
        assert!(!outcome.stderr.contains(&format!("process {pid} ended")), "round {round}: {outcome}");
    }
    drop(child.stdin.take());
    let status = child.wait().map_err(testkit::Error::io("the end of entered"))?;
    assert_eq!(status.code(), Some(7));
    eprintln!("{entered} attaches succeeded");
    Ok(())
}
