//! Threads that wait in a system call are not disturbed by attach and detach.
//!
//! For:     entering a live process unharmed.
//! Keeps:   every call returns what it would have, when it would have.

use nix::sys::signal::Signal;
use std::time::Instant;
use testkit::{Link, Nanoprobe, Program, Result, Running, Target, number};

/// How late a timeout may be seen, in ms, beside the time for which the thread waited for a CPU and the longest for
/// which we stopped it.
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

/// The lines of waits that were harmed or late; `stopped_ms` after their start we came last, and no thread stood for
/// longer than `stall_ms`.
fn harmed(said: &str, stopped_ms: u64, stall_ms: u64) -> Result<Vec<&str>> {
    let mut harmed = Vec::new();
    for line in said.lines().filter(|line| line.contains("elapsed_ms=")) {
        let is_begun_again = BEGUN_AGAIN.iter().any(|name| line.starts_with(name));
        let no_cpu = number(line, "no_cpu_ms")?;
        let late = LATE_MS + stall_ms + no_cpu + if is_begun_again { stopped_ms } else { 0 };
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
    let mut stall_ms = 0;
    for _ in 0..20 {
        stall_ms = stall_ms.max(attach_and_leave(&spec, &running)?);
    }
    let stopped_ms = began.elapsed().as_millis() as u64;
    running.command("check")?;
    let status = running.wait()?;
    let (said, _) = running.output()?;
    assert_eq!(said.matches("elapsed_ms=").count(), 26, "{said}");
    assert_eq!(harmed(&said, stopped_ms, stall_ms)?, Vec::<&str>::new());
    assert_eq!(status.code(), Some(0));
    Ok(())
}

/// One round; the longest stall in ms.
fn attach_and_leave(spec: &str, running: &Running) -> Result<u64> {
    let mut tracing = Nanoprobe::find()?.start(["count", spec, "-p", &running.pid_text()])?;
    tracing.attached()?;
    tracing.interrupt_and_finish()?.success()?.longest_stall_ms()
}

/// How many wait side by side: what they cost is sleep, but for our rounds.
const SIDE_BY_SIDE: usize = 5;

/// One process of one thread for each wait, attached to and left while it waits.
fn each_alone(link: Link) -> Result<Vec<String>> {
    let target = Target::build(Program::Blocked, link)?;
    let mut wrong = Vec::new();
    for names in FINITE.chunks(SIDE_BY_SIDE) {
        let found = std::thread::scope(|scope| -> Vec<_> {
            let target = &target;
            let each = |name: &&'static str| {
                let name = *name;
                scope.spawn(move || one_alone(target, name))
            };
            let waits: Vec<_> = names.iter().map(each).collect();
            waits.into_iter().map(|wait| wait.join().expect("a wait's thread ends")).collect()
        });
        for one in found {
            wrong.extend(one?);
        }
    }
    Ok(wrong)
}

/// What was wrong with one wait, made so long that it ends after three rounds.
fn one_alone(target: &Target, name: &str) -> Result<Vec<String>> {
    let all = [2_500, 10_000, 40_000].into_iter().find_map(|ms| alone(target, name, ms).transpose());
    all.unwrap_or_else(|| Ok(vec![format!("{name}: three rounds took longer than 40 s")]))
}

/// What was wrong with one wait of `ms`; `None` if it ended before we had come three times.
fn alone(target: &Target, name: &str, ms: u64) -> Result<Option<Vec<String>>> {
    let spec = target.spec("do_*");
    let began = Instant::now();
    let mut running = target.spawn_with(&["only", name, &ms.to_string()])?;
    running.wait_state('S')?;
    let mut stall_ms = 0;
    for _ in 0..3 {
        match attach_and_leave(&spec, &running) {
            Err(_) if began.elapsed().as_millis() >= u128::from(ms) => return Ok(None),
            round => stall_ms = stall_ms.max(round?),
        }
    }
    let stopped_ms = began.elapsed().as_millis() as u64;
    let status = running.wait()?;
    let (said, _) = running.output()?;
    let mut wrong: Vec<String> =
        harmed(&said, stopped_ms, stall_ms)?.into_iter().map(str::to_owned).collect();
    if status.code() != Some(0) {
        wrong.push(format!("{name}: {status}"));
    }
    Ok(Some(wrong))
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
