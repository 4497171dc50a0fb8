//! Threads that wait in a system call are not disturbed by attach and detach.
//!
//! For:     entering a live process unharmed.
//! Keeps:   every call returns what it would have, when it would have.

use nix::sys::signal::Signal;
use std::time::Instant;
use testkit::{Link, Nanoprobe, Program, Result, Target, number};

/// How late a timeout may be seen, in ms: two busy CPUs.
const LATE_MS: u64 = 500;

/// Calls that Linux ends with EINTR whenever their thread is stopped. We begin them again, so that their timeout
/// begins again too: at most as much later as they had waited when we came last.
const BEGUN_AGAIN: &[&str] = &["epoll_wait", "epoll_pwait", "sigtimedwait", "semtimedop", "recv_timeout"];

/// The waits with a timeout, which `blocked only` can do on its one thread.
const FINITE: &[&str] = &[
    "nanosleep",
    "clock_nanosleep_abs",
    "poll",
    "ppoll",
    "select",
    "futex",
    "sem_timedwait",
    "epoll_wait",
    "epoll_pwait",
    "sigtimedwait",
    "semtimedop",
    "recv_timeout",
    "timerfd_read",
];

/// The lines of waits that were harmed or late; `stopped_ms` after their start we came last.
fn harmed(said: &str, stopped_ms: u64) -> Result<Vec<&str>> {
    let mut harmed = Vec::new();
    for line in said.lines().filter(|line| line.contains("elapsed_ms=")) {
        let is_begun_again = BEGUN_AGAIN.iter().any(|name| line.starts_with(name));
        let late = LATE_MS + if is_begun_again { stopped_ms } else { 0 };
        let on_time = number(line, "elapsed_ms").is_ok_and(|elapsed| {
            number(line, "expected_ms").is_ok_and(|expected| (expected..expected + late).contains(&elapsed))
        });
        if !line.ends_with(" unharmed") || !on_time {
            harmed.push(line);
        }
    }
    Ok(harmed)
}

#[test]
fn all_waits_at_once_come_through_twenty_rounds_unharmed() -> Result<()> {
    let target = Target::build(Program::Blocked, Link::Pie)?;
    let began = Instant::now();
    let mut running = target.spawn_with(&["all", "15000"])?;
    let spec = target.spec("do_*");
    for _ in 0..20 {
        let mut tracing = Nanoprobe::find()?.start(["count", &spec, "-p", &running.pid_text()])?;
        tracing.attached()?;
        tracing.interrupt_and_finish()?.success()?;
    }
    let stopped_ms = began.elapsed().as_millis() as u64;
    running.command("check")?;
    let status = running.wait()?;
    let (said, _) = running.output()?;
    assert_eq!(said.matches("elapsed_ms=").count(), 26, "{said}");
    assert_eq!(harmed(&said, stopped_ms)?, Vec::<&str>::new());
    assert_eq!(status.code(), Some(0));
    Ok(())
}

/// One process of one thread for each wait, attached to and left while it waits.
fn each_alone(link: Link) -> Result<Vec<String>> {
    let target = Target::build(Program::Blocked, link)?;
    let spec = target.spec("do_*");
    let mut wrong = Vec::new();
    for name in FINITE {
        let began = Instant::now();
        let mut running = target.spawn_with(&["only", name, "2500"])?;
        running.wait_state('S')?;
        for _ in 0..3 {
            let mut tracing = Nanoprobe::find()?.start(["count", &spec, "-p", &running.pid_text()])?;
            tracing.attached()?;
            tracing.interrupt_and_finish()?.success()?;
        }
        let stopped_ms = began.elapsed().as_millis() as u64;
        let status = running.wait()?;
        let (said, _) = running.output()?;
        wrong.extend(harmed(&said, stopped_ms)?.into_iter().map(str::to_owned));
        if status.code() != Some(0) {
            wrong.push(format!("{name}: {status}"));
        }
    }
    Ok(wrong)
}

#[test]
fn only_thread_of_a_process_waits_on_unharmed() -> Result<()> {
    assert_eq!(each_alone(Link::Pie)?, Vec::<String>::new());
    Ok(())
}

#[test]
fn only_thread_of_a_static_process_waits_on_unharmed() -> Result<()> {
    assert_eq!(each_alone(Link::Static)?, Vec::<String>::new());
    Ok(())
}

#[test]
fn stopped_process_is_counted_after_it_continues_and_stays_stopped_until_then() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    running.signal(Signal::SIGSTOP)?;
    running.wait_state('T')?;
    let mut tracing = Nanoprobe::find()?.start(["count", &target.spec("work"), "-p", &running.pid_text()])?;
    tracing.attached()?;
    // A thread that we let go takes a moment on a CPU to stop again, in the kernel; one that was woken never does.
    running.wait_state('T')?;
    running.signal(Signal::SIGCONT)?;
    let hits = running.run(8_000, "work")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(outcome.count("work"), hits, "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn process_stopped_while_probed_is_left_stopped_and_whole() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    running.run(800, "work")?;
    let before = testkit::Snapshot::take(running.pid())?;
    let mut tracing = Nanoprobe::find()?.start(["count", &target.spec("work"), "-p", &running.pid_text()])?;
    tracing.attached()?;
    let hits = running.run(8_000, "work")?;
    running.signal(Signal::SIGSTOP)?;
    running.wait_state('T')?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(outcome.count("work"), hits, "{outcome}");
    // A thread that we let go takes a moment on a CPU to stop again, in the kernel; one that was woken never does.
    running.wait_state('T')?;
    running.signal(Signal::SIGCONT)?;
    running.run(8_000, "work")?;
    let difference = before.difference_now()?;
    assert!(difference.is_empty(), "{difference}\n{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}
