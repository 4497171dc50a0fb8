//! Libraries that come and go while they are probed.
//!
//! For:     the promise that probes follow what the process does with its address space.
//! Keeps:   a library that goes takes its probes with it and nothing fails; one that is waited for misses no call.

use testkit::{Link, Nanoprobe, Program, Result, Target};

#[test]
fn library_that_is_unloaded_while_probed_takes_its_probes_with_it() -> Result<()> {
    let target = Target::build(Program::Loader, Link::Pie)?;
    let mut running = target.spawn()?;
    running.command("load 10")?;
    running.expect("calls ")?;
    let pid = running.pid_text();
    let mut tracing = Nanoprobe::find()?.start(["count", "u:libm:cbrt", "u:libc:getpid", "-p", &pid])?;
    assert_eq!(tracing.attached()?.probes, 2);
    running.command("load 1000")?;
    running.expect("calls ")?;
    // Loaded twice, so twice.
    for _ in 0..2 {
        running.command("unload")?;
        running.expect("unloaded")?;
    }
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(outcome.count("cbrt"), 1000, "{outcome}");
    assert!(outcome.says_detach_verified() && outcome.stderr.contains("1 unloaded meanwhile"), "{outcome}");
    running.command("load 10")?;
    running.expect("calls ")?;
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn library_that_is_loaded_later_is_probed_before_its_first_call_each_time() -> Result<()> {
    let target = Target::build(Program::Loader, Link::Pie)?;
    let mut running = target.spawn()?;
    let pid = running.pid_text();
    let mut tracing = Nanoprobe::find()?.start(["count", "--wait", "u:libm:cbrt", "-p", &pid])?;
    assert_eq!(tracing.attached()?.probes, 0);
    let mut calls = 0;
    for turn in 1..=20 {
        running.command(&format!("load {turn}"))?;
        running.expect("calls ")?;
        calls += turn;
        running.command("unload")?;
        running.expect("unloaded")?;
    }
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(outcome.count("cbrt"), calls, "{outcome}");
    assert_eq!(outcome.table().len(), 1, "{outcome}");
    assert!(outcome.says_detach_verified(), "{outcome}");
    assert_eq!(outcome.stderr.matches("was loaded.").count(), 20, "{outcome}");
    running.command("load 10")?;
    running.expect("calls ")?;
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn a_script_has_the_library_that_is_loaded_later_each_time_and_is_told_that_it_waits() -> Result<()> {
    let target = Target::build(Program::Loader, Link::Pie)?;
    let mut running = target.spawn()?;
    let script =
        "uprobe:libm:cbrt { @ = count(); @by[pid] = count(); } uretprobe:libm:cbrt { @left = count(); }";
    let mut tracing = Nanoprobe::find()?.start(["-e", script, "-p", &running.pid_text()])?;
    tracing.attached()?;
    let mut calls = 0;
    for turn in 1..=20 {
        running.command(&format!("load {turn}"))?;
        running.expect("calls ")?;
        calls += turn;
        running.command("unload")?;
        running.expect("unloaded")?;
    }
    let outcome = tracing.interrupt_and_finish()?.success()?;
    for map in
        [format!("@: {calls}"), format!("@by[{}]: {calls}", running.pid_text()), format!("@left: {calls}")]
    {
        assert!(outcome.stdout.contains(&map), "{map}: {outcome}");
    }
    assert!(outcome.stderr.contains("probed when it does") && outcome.says_detach_verified(), "{outcome}");
    running.command("load 10")?;
    running.expect("calls ")?;
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn nobody_waits_for_a_nanoprobe_that_was_killed() -> Result<()> {
    let target = Target::build(Program::Loader, Link::Pie)?;
    let mut running = target.spawn()?;
    let pid = running.pid_text();
    let mut tracing = Nanoprobe::find()?.start(["count", "--wait", "u:libm:cbrt", "-p", &pid])?;
    tracing.attached()?;
    tracing.kill_with_children()?;
    let began = std::time::Instant::now();
    running.command("load 5")?;
    running.expect("calls ")?;
    running.command("unload")?;
    running.expect("unloaded")?;
    // The linker makes its mark twice for each, and waits at most a second each time.
    assert!(began.elapsed() < std::time::Duration::from_secs(30), "{:?}", began.elapsed());
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn waiting_for_a_library_that_is_nowhere_or_in_a_static_program_is_refused() -> Result<()> {
    for (link, spec, why) in [
        (Link::Pie, "u:libnosuchthing:f", "libnosuchthing"),
        (Link::Static, "u:libm:cbrt", "cannot wait for libraries"),
    ] {
        let running = Target::build(Program::Counted, link)?.spawn()?;
        let outcome = Nanoprobe::find()?.run(["count", "--wait", spec, "-p", &running.pid_text()])?;
        assert_eq!(outcome.code(), Some(1), "{outcome}");
        assert!(outcome.stderr.contains(why), "{outcome}");
    }
    Ok(())
}
