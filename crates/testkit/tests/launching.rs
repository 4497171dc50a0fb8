//! Commands that die early, become other programs, or signal their own process group.
//!
//! For:     design: the command's status is passed on, every run ends, nobody is signalled who is not ours.
//! Keeps:   one owner of each exit status; no thread is left traced; no signal of the target's ends us.

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use std::process::Command;
use std::time::{Duration, Instant};
use testkit::{Error, Link, Nanoprobe, Program, Result, Target, number, rounds};

/// For an end that takes milliseconds, on a machine that is busy with other tests. Less than the five seconds for which a
/// command is waited for that does not end.
const SOON: Duration = Duration::from_secs(4);

/// Runs a command with and without us; both must give the same code.
fn same_code(arguments: &[&str], command: &[&str]) -> Result<i32> {
    let status = Command::new(command[0]).args(&command[1..]).status().map_err(Error::io(command[0]))?;
    let code = status
        .code()
        .unwrap_or_else(|| 128 + std::os::unix::process::ExitStatusExt::signal(&status).unwrap_or(0));
    let all = arguments.iter().chain(&["--"]).chain(command);
    let outcome = Nanoprobe::find()?.run(all)?;
    assert_eq!(outcome.code(), Some(code), "{command:?} {arguments:?}: {outcome}");
    Ok(code)
}

#[test]
fn command_that_becomes_what_dies_at_once_ends_the_run() -> Result<()> {
    let target = Target::build(Program::Restless, Link::Pie)?;
    let path = target.path().display().to_string();
    for flags in [&["count", "u:libc:malloc"][..], &["count", "u:libc:malloc", "--follow"]] {
        assert_eq!(same_code(flags, &[&path, "killed"])?, 128 + 31);
        // The loader finds no room for a library.
        same_code(flags, &["/bin/sh", "-c", "ulimit -v 3000; exec /bin/ls"])?;
    }
    Ok(())
}

#[test]
fn command_that_ends_before_its_first_instruction_has_its_status_passed_on() -> Result<()> {
    let target = Target::build(Program::Restless, Link::Pie)?;
    let file = std::env::temp_dir().join(format!("nanoprobe-unlinked-{}", std::process::id()));
    target.copied_to(&file)?;
    // The same program, but for a library that is nowhere.
    let bytes = std::fs::read(&file).map_err(Error::io(file.display()))?;
    let at = bytes.windows(9).position(|w| w == b"libc.so.6").expect("it needs libc");
    let changed = [&bytes[..at], &b"none.so.6"[..], &bytes[at + 9..]].concat();
    std::fs::write(&file, changed).map_err(Error::io(file.display()))?;
    let path = file.display().to_string();
    for flags in [&["count", "u:libc:malloc"][..], &["count", "u:libc:malloc", "--follow"]] {
        assert_eq!(same_code(flags, &[&path, "spin"])?, 127);
    }
    std::fs::remove_file(&file).map_err(Error::io(file.display()))
}

#[test]
fn program_that_execs_itself_again_and_again_ends_with_its_own_status() -> Result<()> {
    let target = Target::build(Program::Restless, Link::Pie)?;
    let (path, spec) = (target.path().display().to_string(), target.spec("work"));
    for round in 0..rounds(12, 1000) {
        let spin_us = (round * 97 % 1500).to_string();
        let command = ["count", &spec, "--follow", "--", &path, "again", &spin_us, "2"];
        let outcome = Nanoprobe::find()?.run(command)?;
        assert_eq!(outcome.code(), Some(3), "after {spin_us} us: {outcome}");
        assert!(outcome.stdout.contains("last\n"), "after {spin_us} us: {outcome}");
    }
    Ok(())
}

#[test]
fn interrupt_of_the_whole_group_ends_the_run_at_once() -> Result<()> {
    let target = Target::build(Program::Restless, Link::Pie)?;
    let (path, spec) = (target.path().display().to_string(), target.spec("*"));
    for round in 0..rounds(8, 200) {
        let nanoprobe = Nanoprobe::find()?.through(["setsid"]);
        let mut tracing = nanoprobe.start(["count", &spec, "--", &path, "spin"])?;
        tracing.attached()?;
        tracing.expect("ready ")?;
        std::thread::sleep(Duration::from_millis(round as u64 * 3 % 30));
        let began = Instant::now();
        killpg(Pid::from_raw(tracing.pid() as i32), Signal::SIGINT)
            .map_err(|e| Error::io("SIGINT")(e.into()))?;
        let outcome = tracing.finish()?;
        assert!(began.elapsed() < SOON, "round {round}: {:?} {outcome}", began.elapsed());
        assert!(outcome.stderr.contains("Detach verified: "), "{outcome}");
    }
    Ok(())
}

#[test]
fn thread_whose_exec_a_filter_refuses_by_a_signal_is_not_left_traced() -> Result<()> {
    let target = Target::build(Program::Restless, Link::Pie)?;
    let (path, spec) = (target.path().display().to_string(), target.spec("work"));
    let outcome = Nanoprobe::find()?.run(["count", &spec, "--follow", "--", &path, "trapped"])?;
    assert_eq!(outcome.code(), Some(3), "{outcome}");
    assert!(outcome.stdout.contains("tracer=0 traps=1\n"), "{outcome}");
    Ok(())
}

#[test]
fn signals_that_a_command_sends_to_its_own_group_are_its_own() -> Result<()> {
    let target = Target::build(Program::Restless, Link::Pie)?;
    let (path, spec) = (target.path().display().to_string(), target.spec("work"));
    // A group of its own, or the test would get them too.
    let nanoprobe = Nanoprobe::find()?.through(["setsid"]);
    let all =
        [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGALRM];
    for signal in all {
        let number = (signal as i32).to_string();
        let outcome = nanoprobe.run(["count", &spec, "--", &path, "group", &number])?;
        assert_eq!(outcome.code(), Some(3), "{signal}: {outcome}");
        assert!(outcome.stdout.contains("alive handled=1\n"), "{signal}: {outcome}");
        assert_eq!(outcome.count("work"), 1_000, "{signal}: {outcome}");
    }
    Ok(())
}

#[test]
fn signals_from_elsewhere_end_the_run_properly() -> Result<()> {
    // Whoever started the tests may have them ignored; then they end nobody.
    let nanoprobe = Nanoprobe::find()?.through(["env", "--default-signal"]);
    for signal in [Signal::SIGTERM, Signal::SIGQUIT, Signal::SIGUSR1] {
        is_ended_by(&nanoprobe, signal)?;
    }
    Ok(())
}

fn is_ended_by(nanoprobe: &Nanoprobe, signal: Signal) -> Result<()> {
    let target = Target::build(Program::Restless, Link::Pie)?;
    let (path, spec) = (target.path().display().to_string(), target.spec("work"));
    let mut tracing = nanoprobe.start(["count", &spec, "--", &path, "spin"])?;
    tracing.attached()?;
    tracing.expect("ready ")?;
    tracing.signal(signal)?;
    let outcome = tracing.finish()?.success()?;
    assert!(outcome.says_detach_verified(), "{signal}: {outcome}");
    Ok(())
}

#[test]
fn command_that_does_not_end_when_it_is_asked_to_is_left_alone_and_named() -> Result<()> {
    let target = Target::build(Program::Restless, Link::Pie)?;
    let (path, spec) = (target.path().display().to_string(), target.spec("work"));
    // What is ignored stays so over an exec.
    let nanoprobe = Nanoprobe::find()?.through(["sh", "-c", "trap '' TERM; exec \"$0\" \"$@\""]);
    let mut tracing = nanoprobe.start(["count", &spec, "--for", "50ms", "--", &path, "spin"])?;
    tracing.attached()?;
    let ready = tracing.expect("ready ")?;
    let pid = number(&ready, "pid")? as i32;
    let outcome = tracing.finish()?;
    assert!(outcome.says_detach_verified(), "{outcome}");
    assert!(outcome.stderr.contains(&format!("runs on without probes, as process {pid}")), "{outcome}");
    assert!(kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok(), "it is gone: {outcome}");
    Ok(())
}

/// A shell without job control starts what it sends to the background with SIGINT and SIGQUIT ignored.
#[test]
fn interrupts_and_terminations_end_a_run_in_the_background_and_what_is_ignored_does_not() -> Result<()> {
    let background = "trap '' INT QUIT USR1; exec \"$0\" \"$@\"";
    let nanoprobe = Nanoprobe::find()?.through(["sh", "-c", background]);
    is_ended_by(&nanoprobe, Signal::SIGINT)?;
    is_ended_by(&nanoprobe, Signal::SIGTERM)?;
    let target = Target::build(Program::Restless, Link::Pie)?;
    let (path, spec) = (target.path().display().to_string(), target.spec("work"));
    let mut tracing = nanoprobe.start(["count", &spec, "--", &path, "spin"])?;
    tracing.attached()?;
    tracing.expect("ready ")?;
    for ignored in [Signal::SIGQUIT, Signal::SIGUSR1] {
        tracing.signal(ignored)?;
    }
    std::thread::sleep(Duration::from_millis(100));
    let children = format!("/proc/{0}/task/{0}/children", tracing.pid());
    let children = std::fs::read_to_string(&children).map_err(Error::io(&children))?;
    assert!(children.split_whitespace().count() > 1, "it goes on: {children}");
    tracing.interrupt_and_finish()?.success()?;
    Ok(())
}

#[test]
fn command_has_the_group_and_the_ignored_signals_that_it_would_have() -> Result<()> {
    let script =
        "trap '' HUP USR1; \"$@\" sh -c 'cut -d\" \" -f5 /proc/$$/stat; grep SigIgn /proc/$$/status'";
    let said = |by: &[&str]| -> Result<String> {
        // The shell leads the group.
        let all = ["setsid", "-w", "sh", "-c", &format!("echo $$; {script}"), "sh"];
        let output = Command::new(all[0]).args(&all[1..]).args(by).output().map_err(Error::io("setsid"))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let nanoprobe = Nanoprobe::find()?;
    let path = nanoprobe.path().display().to_string();
    let (without, with) =
        (said(&["env"])?, said(&[&path, "count", "-o", "/dev/null", "u:libc:malloc", "--"])?);
    let words = |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
    let (without, with) = (words(&without), words(&with));
    assert_eq!(with[0], with[1], "the group is that of the shell: {with:?}");
    assert_eq!(without[0], without[1], "{without:?}");
    assert_eq!(with[3], without[3], "ignored signals: {with:?} {without:?}");
    Ok(())
}
