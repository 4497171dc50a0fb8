//! Processes that are killed, or lose their first thread, at any moment of an attach, a run and a detach.
//!
//! For:     the promise that our run ends, and says truly of what.
//! Keeps:   no run waits for a process that is no more; what is said of it is its end; one that goes on without its first
//!          thread is left whole.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use testkit::{Link, Nanoprobe, Outcome, Program, Result, Target, number, rounds};

/// How long a whole run takes here and now.
fn whole_run(words: &[&str]) -> Result<Duration> {
    let begun = Instant::now();
    Nanoprobe::find()?.run(words)?.success()?;
    Ok(begun.elapsed())
}

/// Between the moments at which something happens.
fn moment(whole: Duration, round: usize, rounds: usize) -> Duration {
    whole.mul_f64((round % rounds) as f64 / rounds as f64)
}

fn tells_its_end(outcome: &Outcome, pid: &str) {
    let said = &outcome.stderr;
    let ended = [
        format!("process {pid} ended"),
        "it has ended".into(),
        "nothing to restore, the process ended".into(),
        format!("no process {pid}"),
    ];
    let is_left = outcome.code() == Some(0) && outcome.says_detach_verified();
    assert!(is_left || ended.iter().any(|words| said.contains(words)), "{outcome}");
    assert!(!said.contains("could be taken back"), "{outcome}");
}

#[test]
fn a_process_that_is_killed_at_any_moment_ends_our_run_too() -> Result<()> {
    let target = Target::build(Program::Entered, Link::Pie)?;
    let spec = target.spec("work");
    let count = rounds(60, 1000);
    for round in 0..count {
        let running = target.spawn_with(&["hold"])?;
        let pid = running.pid_text();
        let verb: &[&str] = match round % 3 {
            0 => &["hist", &spec, "arg0"],
            1 => &["lat", &spec],
            _ => &["count", &spec],
        };
        let words: Vec<&str> = verb.iter().copied().chain(["-p", &pid, "--for", "5ms"]).collect();
        let whole = whole_run(&words)?;
        let tracing = Nanoprobe::find()?.start(&words)?;
        std::thread::sleep(moment(whole, round, count.min(100)));
        running.signal(Signal::SIGKILL)?;
        tells_its_end(&tracing.finish()?, &pid);
    }
    Ok(())
}

#[test]
fn a_process_whose_first_thread_ends_at_any_moment_is_left() -> Result<()> {
    let target = Target::build(Program::Parting, Link::Pie)?;
    let spec = target.spec("work");
    let count = rounds(30, 1000);
    for round in 0..count {
        let mut running = target.spawn()?;
        let pid = running.pid_text();
        let words = ["count", &spec, "-p", &pid, "--for", "5ms"];
        let whole = whole_run(&words)?;
        let tracing = Nanoprobe::find()?.start(words)?;
        std::thread::sleep(moment(whole, round, count.min(100)));
        running.command("leave")?;
        running.expect("left")?;
        let outcome = tracing.finish()?.success()?;
        assert!(outcome.says_detach_verified(), "{outcome}");
        running.command("run 500")?;
        assert!(number(&running.expect("ran ")?, "work")? >= 500);
    }
    Ok(())
}
