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
