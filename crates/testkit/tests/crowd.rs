//! Several nanoprobes of mixed verbs at once, on small functions that stand side by side.
//!
//! For:     promise 18: controllers that come, go and die do not harm the process, nor one another.
//! Keeps:   every result of the target is right; every receipt is verified; at the end the process is as before.

use std::time::{Duration, Instant};
use testkit::{Link, Nanoprobe, Outcome, Program, Result, Running, Snapshot, Target, Tracing, rounds};

/// A small generator: the same seed, the same run, but for time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

/// A spec of one function or of all.
fn spec(target: &Target, random: &mut Random) -> String {
    const ONE: [&str; 9] = [
        "crowd_two",
        "crowd_four_again",
        "crowd_one",
        "crowd_four",
        "crowd_three",
        "crowd_back",
        "crowd_jcc",
        "crowd_push",
        "crowd_carry",
    ];
    match random.below(3) {
        0 => target.spec(ONE[random.below(ONE.len())]),
        _ => target.spec("crowd_*"),
    }
}

fn arguments(target: &Target, random: &mut Random, pid: &str) -> Vec<String> {
    let spec = spec(target, random);
    let returns = spec.replacen("u:", "ur:", 1);
    let words: Vec<&str> = match random.below(10) {
        0 | 1 => vec!["count", &spec],
        2 | 3 => vec!["count", &spec, "--kernel"],
        4 => vec!["hist", &spec, "arg0", "--kernel"],
        5 => vec!["hist", &spec, "arg0"],
        6 => vec!["lat", &spec],
        7 => vec!["count", &returns],
        8 => vec!["count", &spec, "--by-handler"],
        _ => vec!["hist", &returns, "retval"],
    };
    let time = ["1ms", "5ms", "20ms", "60ms"][random.below(4)];
    let all = words.into_iter().chain(["-p", pid, "--for", time]);
    all.map(str::to_owned).collect()
}

/// What a run may end with beside success: all its sites are others' at this moment.
fn is_right(outcome: &Outcome) -> bool {
    let verified = outcome.stderr.contains("Detach verified: yes");
    match outcome.code() {
        Some(0) => verified,
        Some(1) => {
            let why = &outcome.stderr;
            why.contains("cannot be probed")
                || why.contains("none of")
                || why.contains("is already traced by")
                // For as long as we are patient: a thread that gets no CPU beside the others.
                || why.contains("did not stop within") && outcome.stdout.is_empty()
        }
        _ => false,
    }
}

/// Lines of a difference that the kernel's page makes.
fn is_known(line: &str) -> bool {
    line.contains("[uprobes]")
}

/// Runs `controllers` at once for `span`; every so many rounds one is killed, or the target forks.
fn crowd(controllers: usize, threads: usize, span: Duration, seed: u64) -> Result<()> {
    let target = Target::build(Program::Crowd, Link::Pie)?;
    let mut running = target.spawn_with(&[threads.to_string()])?;
    let before = Snapshot::take(running.pid())?;
    let end = Instant::now() + span;
    let ended = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..controllers)
            .map(|number| {
                let (target, pid) = (&target, running.pid_text());
                let mut random = Random(seed + number as u64);
                scope.spawn(move || one(target, &pid, &mut random, end))
            })
            .collect();
        disturb(&mut running, end)?;
        runs.into_iter().map(|run| run.join().expect("a controller's thread")).collect::<Result<Vec<usize>>>()
    })?;
    assert!(ended.iter().sum::<usize>() >= controllers, "{ended:?} runs");
    running.command("fork")?;
    running.expect("forked")?;
    // One that was killed is cleared away by its guard, or by us.
    Nanoprobe::find()?.run(["recover", "-p", &running.pid_text()])?;
    is_whole(&before, &format!("seed {seed}"))?;
    ends_well(running, &format!("seed {seed}"))
}

/// The target is as before.
fn is_whole(before: &Snapshot, when: &str) -> Result<()> {
    let difference = before.difference_now()?.without(is_known);
    assert!(difference.is_empty(), "{when}: {difference}");
    Ok(())
}

/// All its results were right.
fn ends_well(mut running: Running, when: &str) -> Result<()> {
    running.command("quit")?;
    running.expect("calls ")?;
    assert_eq!(running.end()?.code(), Some(7), "{when}");
    Ok(())
}

/// Signals and forks, while the others come and go.
fn disturb(running: &mut Running, end: Instant) -> Result<()> {
    while Instant::now() < end {
        for (command, answer) in [("poke", "poked"), ("fork", "forked")] {
            running.command(command)?;
            running.expect(answer)?;
            std::thread::sleep(Duration::from_millis(97));
        }
    }
    Ok(())
}

/// One controller after another, until the end; how many.
fn one(target: &Target, pid: &str, random: &mut Random, end: Instant) -> Result<usize> {
    let mut done = 0;
    while Instant::now() < end {
        let arguments = arguments(target, random, pid);
        let tracing: Tracing = Nanoprobe::find()?.start(&arguments)?;
        let outcome = tracing.finish()?;
        assert!(is_right(&outcome), "{arguments:?}: {outcome}");
        done += 1;
    }
    Ok(done)
}

#[test]
fn two_of_mixed_verbs_harm_neither_the_process_nor_one_another() -> Result<()> {
    crowd(2, rounds(16, 64), Duration::from_secs(rounds(3, 600) as u64), 1)
}

#[test]
fn eight_of_mixed_verbs_harm_neither_the_process_nor_one_another() -> Result<()> {
    crowd(8, 64, Duration::from_secs(rounds(5, 600) as u64), 2)
}

/// The two meet at one address: the jump of the one covers the first byte of the other's function.
#[test]
fn a_kernel_probe_is_not_put_into_anothers_jump_nor_a_jump_over_a_kernel_probe() -> Result<()> {
    let target = Target::build(Program::Crowd, Link::Pie)?;
    let running = target.spawn_with(&["4"])?;
    let before = Snapshot::take(running.pid())?;
    let pid = running.pid_text();
    let (two, beside) = (target.spec("crowd_two"), target.spec("crowd_four_again"));
    for (first, second) in [(&two, &beside), (&beside, &two)] {
        let mut one = Nanoprobe::find()?.start(["count", first, "--kernel", "-p", &pid])?;
        one.attached()?;
        let other = Nanoprobe::find()?.run(["count", second, "--kernel", "-p", &pid, "--for", "100ms"])?;
        assert!(is_right(&other), "{other}");
        let one = one.interrupt_and_finish()?.success()?;
        assert!(one.table().iter().any(|(_, hits)| *hits > 0), "{one}");
        is_whole(&before, first)?;
    }
    ends_well(running, "at the end")
}

/// The one's copy runs all of a small function, its jump covers the first bytes alone; the other asks for what lies behind them.
#[test]
fn what_anothers_copy_runs_is_not_probed_and_what_is_probed_is_not_copied() -> Result<()> {
    let target = Target::build(Program::Crowd, Link::Pie)?;
    let running = target.spawn_with(&["4"])?;
    let before = Snapshot::take(running.pid())?;
    let pid = running.pid_text();
    let (whole, behind) = (target.spec("crowd_push"), target.spec("crowd_push+8"));
    let calls = ["lat", &whole, "-p", &pid];
    for second in [&["count", &behind, "--kernel"][..], &["count", &behind]] {
        let mut one = Nanoprobe::find()?.start(calls)?;
        one.attached()?;
        let words = second.iter().copied().chain(["-p", &pid, "--for", "100ms"]);
        let other = Nanoprobe::find()?.run(words)?;
        assert_eq!(other.code(), Some(1), "{other}");
        assert!(other.stderr.contains("another nanoprobe"), "{other}");
        one.interrupt_and_finish()?.success()?;
    }
    let mut one = Nanoprobe::find()?.start(["count", &behind, "--kernel", "-p", &pid])?;
    one.attached()?;
    let other = Nanoprobe::find()?.run(["lat", &whole, "-p", &pid, "--for", "100ms"])?;
    assert_eq!(other.code(), Some(1), "{other}");
    assert!(other.stderr.contains("a breakpoint stands there already"), "{other}");
    let one = one.interrupt_and_finish()?.success()?;
    assert!(one.table().iter().any(|(_, hits)| *hits > 0), "{one}");
    is_whole(&before, "at the end")?;
    ends_well(running, "at the end")
}
