//! Targets that fork, exec, end or are launched while they are traced.
//!
//! For:     design: results so far are printed; no hang; no zombie; the command's status passed on.
//! Keeps:   every run ends by itself and tells what it saw.

use nix::sys::signal::Signal;
use testkit::{Link, Nanoprobe, Program, Result, Target, number};

#[test]
fn target_that_ends_while_attached_has_its_results_printed() -> Result<()> {
    for link in Link::ALL {
        let target = Target::build(Program::Counted, link)?;
        let mut running = target.spawn()?;
        let spec = target.spec("work");
        let mut tracing = Nanoprobe::find()?.start(["count", &spec, "-p", &running.pid_text()])?;
        tracing.attached()?;
        let hits = running.run(80_000, "work")?;
        assert_eq!(running.end()?.code(), Some(7), "{link:?}");
        let outcome = tracing.finish()?.success()?;
        assert_eq!(outcome.count("work"), hits, "{link:?}: {outcome}");
    }
    Ok(())
}

#[test]
fn target_that_is_killed_while_attached_has_its_results_printed() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let mut tracing = Nanoprobe::find()?.start(["count", &target.spec("work"), "-p", &running.pid_text()])?;
    tracing.attached()?;
    let hits = running.run(80_000, "work")?;
    running.signal(Signal::SIGKILL)?;
    running.wait()?;
    let outcome = tracing.finish()?.success()?;
    assert_eq!(outcome.count("work"), hits, "{outcome}");
    Ok(())
}

#[test]
fn forks_vforks_and_threads_go_on_while_probed() -> Result<()> {
    let target = Target::build(Program::Forker, Link::Pie)?;
    let mut running = target.spawn()?;
    let specs = [target.spec("work"), target.spec("work_child")];
    let pid = running.pid_text();
    let mut tracing = Nanoprobe::find()?.start(["count", &specs[0], &specs[1], "-p", &pid])?;
    tracing.attached()?;
    for command in ["fork 20", "vfork 20", "threads 20", "fork 20", "threads 100"] {
        running.command(command)?;
        running.expect("done ")?;
    }
    let totals = running.totals()?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(outcome.count("work"), number(&totals, "work")?, "{outcome}");
    // After detach a child is as any other.
    running.command("fork 5")?;
    running.expect("done ")?;
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn exec_while_attached_ends_the_run_with_the_results_so_far() -> Result<()> {
    let target = Target::build(Program::Forker, Link::Pie)?;
    let mut running = target.spawn()?;
    let mut tracing = Nanoprobe::find()?.start(["count", &target.spec("work"), "-p", &running.pid_text()])?;
    tracing.attached()?;
    running.command("threads 10")?;
    running.expect("done ")?;
    running.command("exec")?;
    running.expect("ready ")?;
    running.command("threads 10")?;
    running.expect("done ")?;
    let outcome = tracing.interrupt_and_finish()?;
    assert_eq!(outcome.count("work"), 1_000, "{outcome}");
    running.command("totals")?;
    assert_eq!(number(&running.expect("totals ")?, "work")?, 1_000);
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn child_forked_while_probed_works_on_after_detach() -> Result<()> {
    // The child's copy of the code keeps the probe bytes; what they lead to must stay for it.
    let target = Target::build(Program::Forker, Link::Pie)?;
    let mut running = target.spawn()?;
    let spec = target.spec("work_child");
    let mut tracing = Nanoprobe::find()?.start(["count", &spec, "-p", &running.pid_text()])?;
    tracing.attached()?;
    running.command("linger")?;
    running.expect("lingering")?;
    tracing.interrupt_and_finish()?;
    running.command("release")?;
    running.expect("done release")?;
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn exit_status_of_a_launched_command_is_passed_on() -> Result<()> {
    let nanoprobe = Nanoprobe::find()?;
    for code in [0, 1, 7, 42, 255] {
        let script = format!("exit {code}");
        let outcome = nanoprobe.run(["count", "u:libc:malloc", "--", "/bin/sh", "-c", &script])?;
        assert_eq!(outcome.code(), Some(code), "{outcome}");
    }
    Ok(())
}

#[test]
fn signal_that_ends_a_launched_command_is_passed_on_as_a_shell_does() -> Result<()> {
    let arguments = ["count", "u:libc:malloc", "--", "/bin/sh", "-c", "kill -TERM $$"];
    let outcome = Nanoprobe::find()?.run(arguments)?;
    assert_eq!(outcome.code(), Some(128 + 15), "{outcome}");
    Ok(())
}

#[test]
fn output_of_a_launched_command_is_untouched() -> Result<()> {
    let directory = std::env::temp_dir();
    let file = directory.join(format!("nanoprobe-output-{}", std::process::id()));
    let data = file.display().to_string();
    let arguments = ["count", "u:libc:malloc", "-o", &data, "--", "/bin/echo", "one two"];
    let outcome = Nanoprobe::find()?.run(arguments)?;
    let table = std::fs::read_to_string(&file).unwrap_or_default();
    let _ = std::fs::remove_file(&file);
    assert_eq!(outcome.stdout, "one two\n", "{outcome}");
    assert!(table.contains("@[malloc]: "), "{table}");
    Ok(())
}

#[test]
fn command_that_cannot_be_started_is_named() -> Result<()> {
    let outcome = Nanoprobe::find()?.run(["count", "u:libc:malloc", "--", "/no/such/command"])?;
    assert_ne!(outcome.code(), Some(0), "{outcome}");
    assert!(outcome.stderr.contains("/no/such/command"), "{outcome}");
    Ok(())
}

#[test]
fn interrupt_ends_the_run_of_a_launched_command_too() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let path = target.path().display().to_string();
    let mut tracing = Nanoprobe::find()?.start(["count", &target.spec("work"), "--", &path])?;
    tracing.attached()?;
    tracing.expect("ready ")?;
    tracing.command("run 8000 work")?;
    tracing.expect("calls ")?;
    tracing.interrupt()?;
    let outcome = tracing.finish()?;
    assert_eq!(outcome.count("work"), 8_000, "{outcome}");
    Ok(())
}

#[test]
fn forked_children_are_counted_with_their_parent_when_followed() -> Result<()> {
    let target = Target::build(Program::Forker, Link::Pie)?;
    for (flags, is_followed) in [(&["--follow"][..], true), (&[][..], false)] {
        let mut running = target.spawn()?;
        let pid = running.pid_text();
        let spec = target.spec("work_child");
        let mut arguments = vec!["count", &spec, "-p", &pid];
        arguments.extend(flags);
        let mut tracing = Nanoprobe::find()?.start(arguments)?;
        tracing.attached()?;
        running.command("fork 20")?;
        running.expect("done ")?;
        let totals = running.totals()?;
        let outcome = tracing.interrupt_and_finish()?.success()?;
        let made = 100 * number(&totals, "forks")?;
        assert_eq!(made, 2000, "{totals}");
        assert_eq!(outcome.count("work_child"), if is_followed { made } else { 0 }, "{outcome}");
        assert_eq!(outcome.stderr.contains("hits in forked children"), !is_followed, "{outcome}");
        assert_eq!(running.end()?.code(), Some(7));
    }
    Ok(())
}

#[test]
fn command_is_asked_to_end_when_tracing_ends_first() -> Result<()> {
    for spec in [&["u:libc:clock_nanosleep"][..], &["--wait", "u:libm:cbrt"]] {
        let began = std::time::Instant::now();
        let mut arguments = vec!["count", "--for", "300ms"];
        arguments.extend(spec);
        arguments.extend(["--", "sleep", "600"]);
        let outcome = Nanoprobe::find()?.run(arguments)?.success()?;
        assert!(outcome.says_detach_verified(), "{outcome}");
        assert!(began.elapsed() < std::time::Duration::from_secs(60), "{outcome}");
    }
    Ok(())
}
