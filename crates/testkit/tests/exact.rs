//! What a hit leaves of the thread that it interrupts: everything.
//!
//! For:     registers, flags, red zone and vector registers at every form of entry and exit, by every verb; threads that
//!          are single-stepped, threads that a program made by itself, programs in which the time stamp counter traps.
//! Keeps:   each probed call gives what its unprobed twin gives; each hit is counted; nothing else is written.

use testkit::{Link, Nanoprobe, Program, Result, Running, Target, number, rounds};

/// How a target is probed, and the functions.
const VERBS: [(&str, &str, &[&str]); 5] = [
    ("count", "u:", &[]),
    ("hist", "u:", &["arg0"]),
    ("lat", "u:", &[]),
    ("trace", "u:", &[]),
    ("count", "ur:", &[]),
];

fn target() -> Result<Target> {
    Target::build(Program::Exact, Link::Pie)
}

/// `VERB PREFIX:PATH:functions MORE -p PID`.
fn arguments(verb: &(&str, &str, &[&str]), target: &Target, functions: &str, pid: &str) -> Vec<String> {
    let (verb, kind, more) = verb;
    let spec = format!("{kind}{}:{functions}", target.path().display());
    let words = [*verb, &spec].into_iter().chain(more.iter().copied()).chain(["-p", pid]);
    words.map(str::to_owned).collect()
}

fn assert_right(running: &mut Running, command: &str, answer: &str, what: &str) -> Result<()> {
    running.command(command)?;
    let line = running.expect(answer)?;
    assert_eq!(number(&line, "wrong")?, 0, "{what}: {line}");
    Ok(())
}

#[test]
fn a_probed_call_gives_what_an_unprobed_one_gives() -> Result<()> {
    let target = target()?;
    for verb in &VERBS {
        let mut running = target.spawn()?;
        let mut tracing = Nanoprobe::find()?.start(arguments(verb, &target, "h_*", &running.pid_text()))?;
        tracing.attached()?;
        assert_right(&mut running, &format!("run {}", rounds(300, 100_000)), "ran ", verb.0)?;
        tracing.interrupt_and_finish()?.success()?;
        assert_right(&mut running, "run 10", "ran ", "after detach")?;
        assert_eq!(running.end()?.code(), Some(7));
    }
    Ok(())
}

/// As a debugger does, or rr: the kernel interrupts the count at every instruction.
#[test]
fn a_thread_that_is_single_stepped_gets_past_its_hits() -> Result<()> {
    let target = target()?;
    for verb in &VERBS {
        let mut running = target.spawn()?;
        let mut tracing = Nanoprobe::find()?.start(arguments(verb, &target, "h_*", &running.pid_text()))?;
        tracing.attached()?;
        assert_right(&mut running, "step", "stepped ", verb.0)?;
        let outcome = tracing.interrupt_and_finish()?.success()?;
        if verb.0 == "count" && verb.1 == "u:" {
            assert_eq!(outcome.count("h_leaf"), 3, "{outcome}");
        }
        assert_eq!(running.end()?.code(), Some(7));
    }
    Ok(())
}

/// Where nothing tells that a program makes threads by itself, the thread's block does: it is not glibc's.
#[test]
fn in_a_block_that_is_not_glibcs_nothing_is_written_and_its_hits_are_counted() -> Result<()> {
    let target = target()?;
    for verb in &VERBS {
        odd_thread(&target, verb, "other")?;
        odd_thread(&target, verb, "empty")?;
    }
    Ok(())
}

/// Where a program's code makes threads, no thread pointer is followed: it may be 0.
#[test]
fn a_thread_without_a_thread_pointer_is_counted() -> Result<()> {
    for link in [Link::Pie, Link::Musl] {
        let target = Target::build(Program::ExactPlain, link)?;
        for verb in &VERBS {
            odd_thread(&target, verb, "none")?;
        }
    }
    let target = Target::build(Program::ExactPlain, Link::Pie)?;
    VERBS.iter().try_for_each(|verb| odd_thread(&target, verb, "other"))
}

fn odd_thread(target: &Target, verb: &(&str, &str, &[&str]), kind: &str) -> Result<()> {
    let mut running = target.spawn()?;
    let mut tracing = Nanoprobe::find()?.start(arguments(verb, target, "h_leaf", &running.pid_text()))?;
    tracing.attached()?;
    running.command(&format!("thread {kind}"))?;
    let line = running.expect("thread ")?;
    let (wrong, written) = (number(&line, "wrong")?, number(&line, "written")?);
    assert_eq!((wrong, written), (0, 0), "{verb:?}: {line}");
    let outcome = tracing.interrupt_and_finish()?.success()?;
    if verb.0 == "count" && verb.1 == "u:" {
        assert_eq!(outcome.count("h_leaf"), 100_000, "{kind}: {outcome}");
    }
    assert_eq!(running.end()?.code(), Some(7), "{verb:?} {kind}");
    Ok(())
}

/// prctl(PR_SET_TSC): whoever reads the counter gets SIGSEGV. Calls cannot be timed there; they can be counted.
#[test]
fn where_the_time_stamp_counter_traps_calls_are_counted_and_not_timed() -> Result<()> {
    let target = target()?;
    for verb in &VERBS {
        let mut running = target.spawn()?;
        running.command("trap")?;
        running.expect("trapping")?;
        let mut tracing = Nanoprobe::find()?.start(arguments(verb, &target, "h_*", &running.pid_text()))?;
        if matches!(verb.0, "lat" | "trace") {
            let outcome = tracing.finish()?;
            assert!(!outcome.status.success(), "{outcome}");
            assert!(outcome.stderr.contains("time stamp counter"), "{outcome}");
        } else {
            tracing.attached()?;
            assert_right(&mut running, "run 100", "ran ", verb.0)?;
            tracing.interrupt_and_finish()?.success()?;
        }
        assert_right(&mut running, "run 10", "ran ", "afterwards")?;
        assert_eq!(running.end()?.code(), Some(7), "{verb:?}");
    }
    Ok(())
}

/// Before it has done so: afterwards it would be too late. A program that is started is told to leave in the same way.
#[test]
fn where_the_code_may_take_the_counter_away_calls_are_not_timed() -> Result<()> {
    for link in [Link::Pie, Link::Static] {
        let target = Target::build(Program::ExactTrap, link)?;
        for verb in &VERBS {
            let mut running = target.spawn()?;
            let mut tracing =
                Nanoprobe::find()?.start(arguments(verb, &target, "h_leaf", &running.pid_text()))?;
            if matches!(verb.0, "lat" | "trace") {
                let outcome = tracing.finish()?;
                assert!(!outcome.status.success(), "{outcome}");
                assert!(
                    outcome.stderr.contains("may ask for a signal where the time stamp counter"),
                    "{outcome}"
                );
            } else {
                tracing.attached()?;
                running.command("trap")?;
                running.expect("trapping")?;
                assert_right(&mut running, "run 100", "ran ", verb.0)?;
                tracing.interrupt_and_finish()?.success()?;
            }
            assert_eq!(running.end()?.code(), Some(7), "{verb:?}");
        }
    }
    Ok(())
}

#[test]
fn a_forked_child_in_which_the_counter_traps_lives_on() -> Result<()> {
    let target = target()?;
    for verb in &VERBS {
        let mut running = target.spawn()?;
        let mut tracing = Nanoprobe::find()?.start(arguments(verb, &target, "h_*", &running.pid_text()))?;
        tracing.attached()?;
        running.command("child")?;
        assert_eq!(number(&running.expect("child ")?, "status")?, 0, "{verb:?}");
        tracing.interrupt_and_finish()?.success()?;
        assert_eq!(running.end()?.code(), Some(7), "{verb:?}");
    }
    Ok(())
}

/// For whoever finds an address of ours in a backtrace. A kernel without names for memory shows none.
#[test]
fn our_memory_has_a_name() -> Result<()> {
    let target = target()?;
    let mut running = target.spawn()?;
    running.command("name")?;
    let can_be_named = number(&running.expect("name ")?, "can")? == 1;
    let pid = running.pid_text();
    let mut tracing = Nanoprobe::find()?.start(arguments(&VERBS[0], &target, "h_leaf", &pid))?;
    tracing.attached()?;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let named: Vec<&str> = maps.lines().filter(|line| line.ends_with("[anon:nanoprobe]")).collect();
    let is_named = named.iter().any(|line| line.contains(" r-xp "));
    assert_eq!(is_named, can_be_named, "{maps}");
    tracing.interrupt_and_finish()?.success()?;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    assert!(!maps.contains("nanoprobe]"), "{maps}");
    Ok(())
}
