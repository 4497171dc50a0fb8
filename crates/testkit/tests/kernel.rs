//! Sites where no jump fits, under the kernel's uprobes.
//!
//! For:     rung 7 of the ladder.
//! Keeps:   hits of all threads are counted exactly, those of no other process; whoever dies, the breakpoint goes.

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use testkit::{
    Link, Nanoprobe, Program, Result, Running, Snapshot, Target, Tracing, kill_guard_of, rounds, wait_until,
};

const CALLS: u64 = 80_000;

/// A function of one byte, and the next one follows at once.
const SITE: &str = "work_ret";

fn count(target: &Target, running: &Running, more: &[&str]) -> Result<Tracing> {
    let (spec, pid) = (target.spec(SITE), running.pid_text());
    let mut arguments = vec!["count", &spec, "-p", &pid];
    arguments.extend(more);
    Nanoprobe::find()?.start(arguments)
}

/// What differs, but for the page that the kernel keeps.
fn differences(before: &Snapshot) -> Result<Vec<String>> {
    let difference = before.difference_now()?.to_string();
    let is_known = |line: &&str| line.contains("[uprobes]") || line.contains("no difference");
    Ok(difference.lines().filter(|line| !is_known(line)).map(str::to_owned).collect())
}

#[test]
fn threads_are_counted_exactly_and_other_processes_not() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let (mut running, mut other) = (target.spawn()?, target.spawn()?);
    let before = Snapshot::take(running.pid())?;
    let mut tracing = count(&target, &running, &["--strict"])?;
    tracing.attached()?;
    assert_eq!(running.run(CALLS, SITE)?, CALLS);
    assert_eq!(other.run(CALLS, SITE)?, CALLS);
    assert_eq!(running.run(CALLS, "work")?, CALLS);
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(outcome.count(SITE), CALLS, "{outcome}");
    assert!(outcome.stderr.contains("(1 kernel)") && outcome.stderr.contains("traps"), "{outcome}");
    assert!(outcome.stderr.contains("Detach verified: yes"), "{outcome}");
    assert_eq!(differences(&before)?, [""; 0]);
    assert_eq!(running.run(CALLS, SITE)?, CALLS);
    assert_eq!((running.end()?.code(), other.end()?.code()), (Some(7), Some(7)));
    Ok(())
}

#[test]
fn jumps_and_the_kernel_share_a_run() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let spec = target.spec("work_r*");
    let mut tracing = Nanoprobe::find()?.start(["count", &spec, "--kernel", "-p", &running.pid_text()])?;
    tracing.attached()?;
    let mut wanted = Vec::new();
    for function in ["work_ret", "work_ret_next", "work_redzone", "work_rip", "work_rep"] {
        wanted.push((function, running.run(CALLS, function)?));
    }
    let outcome = tracing.interrupt_and_finish()?.success()?;
    for (function, hits) in wanted {
        assert_eq!(outcome.count(function), hits, "{function}: {outcome}");
    }
    Ok(())
}

#[test]
fn histogram_is_made_in_the_kernel() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let (spec, pid) = (target.spec(SITE), running.pid_text());
    let mut tracing = Nanoprobe::find()?.start(["hist", &spec, "arg0", "-f", "json", "-p", &pid])?;
    tracing.attached()?;
    running.run(CALLS, SITE)?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    let hist = outcome.json_data("hist")?;
    let buckets = hist[0]["@"][SITE].as_array().cloned().unwrap_or_default();
    let sum: u64 = buckets.iter().filter_map(|b| b["count"].as_u64()).sum();
    assert_eq!(sum, CALLS, "{outcome}");
    let receipt = outcome.json_receipt()?;
    assert_eq!((receipt.hits, receipt.handled, receipt.skipped), (CALLS, CALLS, 0), "{outcome}");
    Ok(())
}

#[test]
fn kill_of_front_and_engine_takes_the_breakpoint_out() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let before = Snapshot::take(running.pid())?;
    let mut tracing = count(&target, &running, &[])?;
    tracing.attached()?;
    running.run(CALLS, SITE)?;
    tracing.kill_with_children()?;
    let end = Instant::now() + Duration::from_secs(60);
    while !differences(&before)?.is_empty() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(differences(&before)?, [""; 0]);
    assert_eq!(running.run(CALLS, SITE)?, CALLS);
    Ok(())
}

#[test]
fn who_wants_no_trap_says_so() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let running = target.spawn()?;
    let outcome = count(&target, &running, &["--no-kernel"])?.finish()?;
    assert_eq!(outcome.code(), Some(1), "{outcome}");
    assert!(outcome.stderr.contains("--no-kernel"), "{outcome}");
    Ok(())
}

/// A pattern asks for no trap: 796 hot sites of a Go server made it thirty times slower.
#[test]
fn a_pattern_takes_no_kernel_probe_unless_asked() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let (spec, pid) = (target.spec("work_r*"), running.pid_text());
    let mut tracing = Nanoprobe::find()?.start(["count", &spec, "-p", &pid])?;
    tracing.attached()?;
    assert_eq!(running.run(CALLS, SITE)?, CALLS);
    let beside = running.run(CALLS, "work_rip")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!((outcome.count(SITE), outcome.count("work_rip")), (0, beside), "{outcome}");
    let about: Vec<&str> = outcome.stderr.lines().filter(|line| line.contains("--kernel")).collect();
    assert!(matches!(about[..], [line] if line.contains("only a kernel probe could serve")), "{outcome}");
    // Named, or asked for, it is taken, and its price is said.
    for arguments in [[target.spec(SITE), "-v".into()], [spec, "--kernel".into()]] {
        let [spec, more] = arguments;
        let mut tracing = Nanoprobe::find()?.start(["count", &spec, &more, "-p", &pid])?;
        tracing.attached()?;
        assert_eq!(running.run(CALLS, SITE)?, CALLS);
        let outcome = tracing.interrupt_and_finish()?.success()?;
        assert_eq!(outcome.count(SITE), CALLS, "{outcome}");
        assert!(outcome.stderr.contains("(at 1 of them twice)"), "{outcome}");
    }
    let explained = Nanoprobe::find()?.run(["explain", &target.spec(SITE), "-p", &pid])?.success()?;
    assert!(explained.stdout.contains("traps twice") && explained.stdout.contains("--kernel"), "{explained}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

/// A task that is being killed cannot take its breakpoints out; the kernel says "failed to unregister, leaking uprobe".
#[test]
fn kill_of_all_during_the_detach_leaves_no_breakpoint() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let before = Snapshot::take(running.pid())?;
    for round in 0..rounds(4, 200) {
        let mut tracing = count(&target, &running, &[])?;
        tracing.attached()?;
        kill_guard_of(running.pid())?;
        let engine = tracing.engine()?;
        // The front's death makes the engine leave; at some instant of that it dies too.
        tracing.kill()?;
        std::thread::sleep(Duration::from_micros((round as u64 * 1_931) % 20_000));
        engine.kill()?;
        let recovered = Nanoprobe::find()?.run(["recover", "-p", &running.pid_text()])?;
        assert_eq!(recovered.code(), Some(0), "round {round}: {recovered}");
        assert_eq!(differences(&before)?, [""; 0], "round {round}: {recovered}");
        assert_eq!(running.run(8, SITE)?, 8, "round {round}");
    }
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn recover_takes_out_a_breakpoint_that_the_kernel_left() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let before = Snapshot::take(running.pid())?;
    let mut tracing = count(&target, &running, &[])?;
    tracing.attached()?;
    kill_guard_of(running.pid())?;
    let site = code_differs_at(&before)?;
    tracing.kill_with_children()?;
    wait_until("the kernel's own clean-up", Duration::from_secs(5), || {
        differences(&before).is_ok_and(|lines| !lines.iter().any(|line| line.contains("code")))
    })?;
    // As the kernel leaves it: a breakpoint, and nobody whose it is. Nobody comes by it meanwhile.
    let memory = std::fs::OpenOptions::new().write(true).open(format!("/proc/{}/mem", running.pid()));
    memory.and_then(|m| m.write_all_at(&[0xcc], site)).expect("write of one byte");
    let recovered = Nanoprobe::find()?.run(["recover", "-p", &running.pid_text()])?;
    assert_eq!(differences(&before)?, [""; 0], "{recovered}");
    assert!(recovered.stderr.contains("Detach verified: yes"), "{recovered}");
    assert_eq!(running.run(CALLS, SITE)?, CALLS);
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

/// The address of the one byte of code that differs.
fn code_differs_at(before: &Snapshot) -> Result<u64> {
    let lines = differences(before)?;
    let word = |line: &String| {
        let words = line.split(|c: char| !c.is_ascii_hexdigit() && c != 'x');
        words.filter_map(|w| u64::from_str_radix(w.strip_prefix("0x")?, 16).ok()).next()
    };
    Ok(lines
        .iter()
        .filter(|line| line.contains("code"))
        .find_map(word)
        .expect("an address in the difference"))
}

#[test]
fn what_the_kernel_would_run_wrong_is_left_out() -> Result<()> {
    let target = Target::build(Program::Counted, Link::NoPie)?;
    let mut running = target.spawn()?;
    let pushf = target.spec(&running.place("work_pushf_mid")?);
    let (ret, pid) = (target.spec(SITE), running.pid_text());
    let mut tracing = Nanoprobe::find()?.start(["count", &pushf, &ret, "-v", "-p", &pid])?;
    tracing.attached()?;
    // The program compares each result with what it should be.
    assert_eq!(running.run(CALLS, "work_pushf")?, CALLS);
    assert_eq!(running.run(CALLS, SITE)?, CALLS);
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(outcome.count(SITE), CALLS, "{outcome}");
    assert!(outcome.stderr.contains("pushf pushes the trap flag"), "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

const TIGHT: [&str; 5] = ["tight_ret", "tight_tail", "tight_loop", "tight_three", "tight_through"];

/// Calls of each of [`TIGHT`] in one round, and how many of them come back.
const OF_A_ROUND: [(u64, u64); 5] = [(2, 2), (1, 1), (1, 1), (3, 3), (2, 1)];

/// One run of the whole program under `verb`, and its rounds.
fn tight(verb: &[&str], rounds: u64) -> Result<testkit::Outcome> {
    let target = Target::build(Program::Tight, Link::Pie)?;
    let mut running = target.spawn()?;
    let specs = TIGHT.map(|f| target.spec(f).replace("u:", if verb[0] == "count" { "ur:" } else { "u:" }));
    let pid = running.pid_text();
    let mut arguments = verb.to_vec();
    arguments.extend(["-f", "json", "--strict", "-p", &pid]);
    arguments.extend(specs.iter().map(String::as_str));
    let mut tracing = Nanoprobe::find()?.start(arguments)?;
    tracing.attached()?;
    running.command(&format!("run {rounds}"))?;
    running.expect("rounds ")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert!(outcome.json_receipt()?.detach_verified, "{outcome}");
    running.command("run 100")?;
    running.expect("rounds ")?;
    assert_eq!(running.end()?.code(), Some(7));
    Ok(outcome)
}

#[test]
fn calls_are_timed_by_the_kernel_where_no_jump_fits() -> Result<()> {
    let rounds = rounds(500, 20_000) as u64;
    let outcome = tight(&["lat"], rounds)?;
    assert!(outcome.stderr.contains("kernel"), "{outcome}");
    let maps = outcome.json_data("latency")?;
    for (name, (calls, returned)) in TIGHT.iter().zip(OF_A_ROUND) {
        let row = &maps.last().unwrap()["@"][name];
        let number = |key: &str| row[key].as_u64().unwrap_or_else(|| panic!("{name}.{key} in {outcome}"));
        assert_eq!(
            (number("calls"), number("returned")),
            (4 * rounds * calls, 4 * rounds * returned),
            "{outcome}"
        );
        let buckets = row["ns"].as_array().into_iter().flatten();
        assert_eq!(buckets.map(|b| b["count"].as_u64().unwrap_or(0)).sum::<u64>(), number("returned"));
        assert_eq!(number("began_before"), 0);
    }
    let open = &outcome.json_data("receipt")?[0]["calls"];
    let open = ["unwound", "inside", "not_timed"].map(|key| open[key].as_u64().unwrap());
    assert_eq!(open.iter().sum::<u64>(), 4 * rounds, "what left by longjmp: {outcome}");
    let receipt = outcome.json_receipt()?;
    assert_eq!(
        (receipt.hits, receipt.handled, receipt.skipped),
        (4 * rounds * 17, 4 * rounds * 17, 0),
        "{outcome}"
    );
    Ok(())
}

#[test]
fn calls_are_shown_by_the_kernel_where_no_jump_fits_or_counted_as_lost() -> Result<()> {
    let rounds = rounds(200, 5_000) as u64;
    let outcome = tight(&["trace"], rounds)?;
    let calls = outcome.json_data("call")?;
    let receipt = outcome.json_receipt()?;
    assert_eq!(receipt.hits, 4 * rounds * 17, "{outcome}");
    assert_eq!(receipt.hits, receipt.handled + receipt.skipped);
    if receipt.skipped > 0 {
        return Ok(());
    }
    for (name, (all, returned)) in TIGHT.iter().zip(OF_A_ROUND) {
        let shown: Vec<_> = calls.iter().filter(|c| c["name"] == *name).collect();
        let come_back = shown.iter().filter(|c| !c["ns"].is_null()).count() as u64;
        assert_eq!((shown.len() as u64, come_back), (4 * rounds * all, 4 * rounds * returned), "{name}");
        // It is left by a jump alone: what is returned is not known.
        assert!(*name != "tight_tail" || shown.iter().all(|c| c["ret"].is_null()), "{name}");
        assert!(shown.iter().all(|c| c["entry_seen"] == true && c["tid"].as_u64() > Some(0)), "{name}");
    }
    let of_loop = || calls.iter().filter(|c| c["name"] == "tight_loop");
    assert!(of_loop().all(|c| c["args"][0] == 3 && c["ret"] == 6 && c["ns"].as_u64() > Some(0)));
    let mut threads: Vec<u64> = of_loop().filter_map(|c| c["tid"].as_u64()).collect();
    threads.sort_unstable();
    threads.dedup();
    assert_eq!(threads.len(), 4);
    Ok(())
}

#[test]
fn returns_are_counted_by_the_kernel_where_no_jump_fits() -> Result<()> {
    let rounds = rounds(500, 20_000) as u64;
    let outcome = tight(&["count"], rounds)?;
    let maps = outcome.json_data("map")?;
    for (name, (_, returned)) in TIGHT.iter().zip(OF_A_ROUND) {
        let got = maps.last().unwrap()["@"][&format!("{name}%return")].as_u64();
        assert_eq!(got, Some(4 * rounds * returned), "{name}: {outcome}");
    }
    let receipt = outcome.json_receipt()?;
    assert_eq!((receipt.hits, receipt.skipped), (4 * rounds * 8, 0), "{outcome}");
    Ok(())
}

/// A pattern takes no trap that nobody asked for, with these verbs either.
#[test]
fn a_pattern_of_calls_takes_no_kernel_probe_unless_asked() -> Result<()> {
    let target = Target::build(Program::Tight, Link::Pie)?;
    let running = target.spawn()?;
    for (more, has_some) in [(None, false), (Some("--kernel"), true)] {
        let (spec, pid) = (target.spec("tight_*"), running.pid_text());
        let mut arguments = vec!["lat", &spec, "-p", &pid, "--for", "100ms"];
        arguments.extend(more);
        let outcome = Nanoprobe::find()?.start(arguments)?.finish()?;
        assert_eq!(outcome.stderr.contains(" kernel)"), has_some, "{outcome}");
        assert_eq!(outcome.stderr.contains("--kernel takes them"), !has_some, "{outcome}");
    }
    Ok(())
}
