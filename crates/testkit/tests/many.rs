//! 50,000 probes in a process with 64 running threads.
//!
//! For:     batches.
//! Keeps:   every function is counted exactly; attach and detach harm no thread; the code is the file's again.

use testkit::{Link, Nanoprobe, Program, Result, Snapshot, Target, number};

const FUNCTIONS: u64 = 50_000;

#[test]
fn fifty_thousand_probes_come_and_go_under_64_threads_and_count_exactly() -> Result<()> {
    let target = Target::build(Program::Many, Link::Pie)?;
    let mut running = target.spawn()?;
    running.command("go")?;
    running.expect("going")?;
    let before = Snapshot::take(running.pid())?;
    // In and out while all threads call them.
    let (spec, pid) = (target.spec("many_*"), running.pid_text());
    let outcome =
        Nanoprobe::find()?.run(["count", &spec, "-p", &pid, "--for", "1s", "--no-kernel"])?.success()?;
    let receipt = &outcome.stderr;
    println!("{receipt}");
    assert!(outcome.stderr.contains("Detach verified: yes"), "{receipt}");
    assert!(outcome.table().iter().any(|(_, hits)| *hits > 0), "{receipt}");
    running.command("halt")?;
    running.expect("turns ")?;
    // And exactly, between two moments at which they rest.
    let mut tracing = Nanoprobe::find()?.start(["count", &spec, "-p", &pid])?;
    tracing.attached()?;
    running.command("go")?;
    running.expect("going")?;
    std::thread::sleep(std::time::Duration::from_millis(500));
    running.command("halt")?;
    let turns = number(&running.expect("turns ")?.replace("turns ", "turns="), "turns")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    println!("{}", outcome.stderr);
    let counts = outcome.table();
    assert_eq!(counts.len() as u64, FUNCTIONS, "{}", outcome.stderr);
    let wrong: Vec<_> = counts.iter().filter(|(_, hits)| *hits != turns).take(5).collect();
    assert!(turns > 0 && wrong.is_empty(), "{turns} turns, {wrong:?}\n{}", outcome.stderr);
    let difference = before.difference_now()?;
    assert!(difference.is_empty(), "{difference}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}
