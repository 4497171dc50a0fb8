//! Any of our processes, and all of them, are killed at random instants of an attach, a run and a detach.
//!
//! For:     the promise that our death does no harm.
//! Keeps:   the process lives; its registers, vector state, red zones, signal masks and alternate stacks are as they were;
//!          after `recover` its code, mappings, descriptors and threads are as before.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testkit::{Link, Nanoprobe, Program, Result, Running, Snapshot, Target, number, rounds, wait_until};

/// For what a killed run leaves to others.
const LIMIT: Duration = Duration::from_secs(20);
/// How long a run lasts if nobody kills it.
const RUN: Duration = Duration::from_millis(20);

/// Numbers that differ from run to run; a failure names the first.
struct Random(u64);

impl Random {
    fn new() -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let seed = now.map_or(1, |d| d.as_nanos() as u64) | 1;
        eprintln!("seed {seed}");
        Self(seed)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end.max(1)
    }
}

/// The children of a nanoprobe, the guard among them.
fn children(front: u32) -> Vec<i32> {
    let text = fs::read_to_string(format!("/proc/{front}/task/{front}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Kills one or all of a nanoprobe's processes, which are then gone.
fn kill_some(front: u32, random: &mut Random) -> Result<()> {
    let mut victims = children(front);
    victims.push(front as i32);
    let all = victims.len() as u64;
    // One of them, or all in any order.
    match random.below(all + 2) {
        one if one < all => victims = vec![victims[one as usize]],
        first => victims.rotate_left((first % all) as usize),
    }
    for victim in &victims {
        let _ = kill(Pid::from_raw(*victim), Signal::SIGKILL);
    }
    let is_gone = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')').next().unwrap_or_default().trim_start().chars().next().is_none_or(|c| c == 'Z')
    };
    wait_until("the end of what was killed", LIMIT, || victims.iter().all(is_gone))
}

fn is_whole(running: &mut Running, round: usize) -> Result<()> {
    running.command("check")?;
    let seen = running.expect("check ")?;
    assert_eq!(number(&seen, "broken")?, 0, "round {round}: {seen}");
    Ok(())
}

/// So many kills in one process.
fn is_survived(link: Link, count: usize) -> Result<()> {
    let target = Target::build(Program::Entered, link)?;
    let mut running = target.spawn_with(&["hold"])?;
    let (pid, spec) = (running.pid_text(), target.spec("work"));
    let before = Snapshot::take(running.pid())?;
    let mut random = Random::new();
    // How long a whole run takes here and now.
    let begun = Instant::now();
    let run_for = format!("{}ms", RUN.as_millis());
    Nanoprobe::find()?.run(["count", &spec, "-p", &pid, "--for", &run_for])?.success()?;
    let whole = begun.elapsed();
    for round in 0..count {
        let words: &[&str] = match random.below(4) {
            0 => &["hist", &spec, "arg0"],
            1 => &["lat", &spec],
            _ => &["count", &spec],
        };
        let words = words.iter().copied().chain(["-p", &pid, "--for", &run_for]);
        let tracing = Nanoprobe::find()?.start(words)?;
        // Mostly in what is done before and after the run: its stops are there.
        let busy = whole.saturating_sub(RUN).as_nanos() as u64;
        let begins = random.below(2) * RUN.as_nanos() as u64 * random.below(2);
        std::thread::sleep(Duration::from_nanos(begins + random.below(busy)));
        kill_some(tracing.pid(), &mut random)?;
        let outcome = tracing.finish()?;
        is_whole(&mut running, round)?;
        Nanoprobe::find()?.run(["recover", "-p", &pid])?.success()?;
        let back = before.comes_back(LIMIT);
        back.unwrap_or_else(|error| panic!("{link:?}, round {round}: {error}\n{outcome}"));
        is_whole(&mut running, round)?;
    }
    assert_eq!(running.end()?.code(), Some(7), "{link:?}");
    Ok(())
}

#[test]
fn a_dynamic_process_survives_every_kill() -> Result<()> {
    is_survived(Link::Pie, rounds(12, 1000))
}

#[test]
fn a_static_process_survives_every_kill() -> Result<()> {
    is_survived(Link::Static, rounds(2, 1000))
}

#[test]
fn a_process_with_musl_survives_every_kill() -> Result<()> {
    is_survived(Link::Musl, rounds(2, 1000))
}

/// The state of the process with these words, if it lives.
fn state_of(words: &str) -> Option<(i32, char)> {
    let numbers = fs::read_dir("/proc").into_iter().flatten();
    let mut pids = numbers.filter_map(|e| e.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let is_it = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|b| *b == 0).any(|word| word == words.as_bytes())
            && fs::read_link(format!("/proc/{pid}/exe"))
                .is_ok_and(|exe| exe.to_string_lossy().contains("entered-"))
    };
    let pid = pids.find(is_it)?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let state = stat.rsplit(')').next()?.trim_start().chars().next()?;
    (state != 'Z').then_some((pid, state))
}

#[test]
fn a_command_that_had_not_begun_is_not_left_behind() -> Result<()> {
    let target = Target::build(Program::Entered, Link::Pie)?;
    let mut random = Random::new();
    let (spec, path) = (target.spec("work"), target.path().display().to_string());
    // If nobody is killed, it is probed and runs.
    let mut whole = Nanoprobe::find()?.start(["count", &spec, "--", &path, "hold"])?;
    whole.attached()?;
    whole.expect("ready ")?;
    // Its threads need a CPU, and it ends by itself when its input does: which end comes first, nobody knows.
    wait_until("a round of its threads", LIMIT, || {
        let said = whole.command("how far?").and_then(|()| whole.expect("check "));
        said.is_ok_and(|line| !line.contains("rounds=0 "))
    })?;
    let whole = whole.interrupt_and_finish()?;
    let is_verified = whole.says_detach_verified()
        || whole.stderr.contains("Detach verified: nothing to restore, the process ended");
    assert!(matches!(whole.code(), Some(0 | 7)) && is_verified, "{whole}");
    assert!(whole.count("work") > 0, "{whole}");
    for round in 0..rounds(6, 1000) {
        // By this word it is known.
        let word = format!("known-{}-{round}", std::process::id());
        let tracing = Nanoprobe::find()?.start(["count", &spec, "--", &path, "hold", &word])?;
        std::thread::sleep(Duration::from_micros(random.below(25_000)));
        // All of it: nobody is left who could let the command run.
        let mut victims = children(tracing.pid());
        victims.push(tracing.pid() as i32);
        victims.retain(|pid| state_of(&word).is_none_or(|(it, _)| it != *pid));
        for victim in victims {
            let _ = kill(Pid::from_raw(victim), Signal::SIGKILL);
        }
        let runs_or_ended = || state_of(&word).is_none_or(|(_, state)| !matches!(state, 'T' | 't'));
        wait_until("it to run or to end", LIMIT, || {
            let is_so = runs_or_ended();
            std::thread::sleep(Duration::from_millis(20));
            is_so && runs_or_ended()
        })
        .unwrap_or_else(|error| panic!("round {round}: {error}"));
        // It says something on a pipe that nobody reads any more, or its input is closed: it ends by itself.
        drop(tracing);
        if let Some((pid, _)) = state_of(&word) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
    Ok(())
}
