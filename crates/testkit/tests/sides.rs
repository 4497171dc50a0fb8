//! Scripts of which the kernel has some places beside those in the process: one result.
//!
//! For:     `--backend auto` where some sites have a jump and others the kernel's probe alone.
//! Keeps:   what both sides take into a map is in it once, whoever reads it and when; lines of both are in the order of time; what does
//!          not add up is on one side; hits = handled + skipped over both; whoever dies, nothing stays in the process.
//!
//! Takes the right to load programs of the kernel, as `backends` does.

use nix::sys::signal::Signal;
use std::time::{Duration, Instant};
use testkit::{Link, Nanoprobe, Outcome, Program, Result, Running, Snapshot, Target, rounds};

const CALLS: u64 = 8_000;
/// A function of one byte, and the next one follows at once: no jump fits.
const TIGHT: &str = "work_ret";
/// Others have room.
const ROOMY: &str = "work_rip";

fn kernel_takes_programs() -> Result<bool> {
    let outcome = Nanoprobe::find()?.run(["--backend", "kernel", "-e", "begin { exit(); }"])?;
    if outcome.stderr.contains("the kernel's programs take root") {
        assert!(
            std::env::var_os("NANOPROBE_NO_KERNEL").is_some(),
            "programs of the kernel may not be loaded here; NANOPROBE_NO_KERNEL=1 says that this is known\n{outcome}"
        );
        eprintln!("SKIPPED: programs of the kernel may not be loaded here");
        return Ok(false);
    }
    outcome.success()?;
    Ok(true)
}

/// The script, with `@T` and `@R` for probes of the two functions.
fn script(target: &Target, text: &str) -> String {
    let path = target.path().display();
    text.replace("@T", &format!("uprobe:{path}:{TIGHT}")).replace("@R", &format!("uprobe:{path}:{ROOMY}"))
}

/// Calls of each made, and what came of it.
fn traced(target: &Target, more: &[&str], text: &str) -> Result<([u64; 2], String, Outcome)> {
    let mut running = target.spawn()?;
    let before = Snapshot::take(running.pid())?;
    let (script, pid) = (script(target, text), running.pid_text());
    let mut tracing = Nanoprobe::find()?.start(more.iter().copied().chain(["-e", &script, "-p", &pid]))?;
    let line = tracing.attached()?.line;
    let made = [running.run(CALLS, TIGHT)?, running.run(CALLS / 2, ROOMY)?];
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(differences(&before)?, [""; 0], "{outcome}");
    assert_eq!(running.end()?.code(), Some(7), "{outcome}");
    Ok((made, line, outcome))
}

/// What differs, but for the page that the kernel keeps.
fn differences(before: &Snapshot) -> Result<Vec<String>> {
    let difference = before.difference_now()?.to_string();
    let is_known = |line: &&str| line.contains("[uprobes]") || line.contains("no difference");
    Ok(difference.lines().filter(|line| !is_known(line)).map(str::to_owned).collect())
}

fn has_line(outcome: &Outcome, wanted: &str) {
    assert!(outcome.stdout.lines().any(|line| line == wanted), "no {wanted:?}: {outcome}");
}

fn has_receipt(outcome: &Outcome, hits: u64, left_out: u64) {
    let receipt = format!("Hits {hits}: {hits} handled, 0 skipped; {left_out} places left out.");
    assert!(outcome.stderr.contains(&receipt) && outcome.says_detach_verified(), "{receipt}: {outcome}");
}

#[test]
fn what_both_take_in_is_in_the_maps_once() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    if !kernel_takes_programs()? {
        return Ok(());
    }
    let text = "begin { @n = count(); @most = max(5); @least = min(5); } \
                @T, @R { @n = count(); @by[func] = count(); @sum = sum(3); @avg = avg(8); @st[1] = stats(2); } \
                @T { @most = max(70); @h = hist(9); @l = lhist(5, 0, 10, 5); } \
                @R { @most = max(60); @least = min(-2); @h = hist(9); @l = lhist(5, 0, 10, 5); } \
                interval:ms:30 { if (len(@by) > 5) { print(\"never\"); } } \
                end { printf(\"n is %d\\n\", @n); for ($kv : @by) { printf(\"%s %d\\n\", $kv.0, $kv.1); } }";
    let ([a, b], line, outcome) = traced(&target, &[], text)?;
    // Two attach points of the first, and one each; one for begin, interval and end.
    assert!(line.contains("Attached 7 probes (2 jump, 2 kernel)"), "{outcome}");
    let all = a + b;
    for wanted in [
        format!("n is {}", all + 1),
        format!("{TIGHT} {a}"),
        format!("{ROOMY} {b}"),
        format!("@n: {}", all + 1),
        format!("@by[{TIGHT}]: {a}"),
        format!("@by[{ROOMY}]: {b}"),
        format!("@sum: {}", 3 * all),
        "@avg: 8".to_owned(),
        format!("@st[1]: {{ .count = {all}, .average = 2, .total = {} }}", 2 * all),
        "@most: 70".to_owned(),
        "@least: -2".to_owned(),
    ] {
        has_line(&outcome, &wanted);
    }
    for bucket in [format!("[8, 16) {all}"), format!("[5, 10) {all}")] {
        let shown = outcome.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(shown.contains(&bucket), "{bucket}: {outcome}");
    }
    has_receipt(&outcome, 2 * all, 0);
    assert!(outcome.stderr.contains("work_ret has the kernel's probe (no jump fits"), "{outcome}");
    assert!(outcome.stderr.contains("for a trap at each hit, about"), "{outcome}");
    assert!(outcome.stderr.contains("The kernel's probes are out."), "{outcome}");
    Ok(())
}

/// What is there is printed whenever that is, by text and as JSON, and what was there before it was emptied never again.
#[test]
fn what_is_printed_and_emptied_meanwhile_is_what_came_since() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    if !kernel_takes_programs()? {
        return Ok(());
    }
    let text = "@T, @R { @n[func] = count(); @z = sum(2); @m = max(3); } \
                self:signal:SIGUSR1 { print(@n); clear(@n); print(@m); zero(@m); print(@z); zero(@z); }";
    for format in ["text", "json"] {
        let mut running = target.spawn()?;
        let script = script(&target, text);
        let mut tracing =
            Nanoprobe::find()?.start(["-f", format, "-e", &script, "-p", &running.pid_text()])?;
        if format == "text" {
            tracing.attached()?;
        } else {
            tracing.expect("{\"type\": \"attached_probes\"")?;
        }
        let mut wanted = Vec::new();
        for round in 1..4 {
            let [a, b] = [running.run(800 * round, TIGHT)?, running.run(400 * round, ROOMY)?];
            tracing.signal_children(Signal::SIGUSR1)?;
            let z = 2 * (a + b);
            let lines = match format {
                "text" => vec![
                    format!("@n[{ROOMY}]: {b}"),
                    format!("@n[{TIGHT}]: {a}"),
                    String::new(),
                    "@m: 3".into(),
                    format!("@z: {z}"),
                ],
                _ => vec![
                    format!(
                        "{{\"type\": \"map\", \"data\": {{\"@n\": {{\"{ROOMY}\": {b}, \"{TIGHT}\": {a}}}}}}}"
                    ),
                    "{\"type\": \"map\", \"data\": {\"@m\": 3}}".into(),
                    format!("{{\"type\": \"map\", \"data\": {{\"@z\": {z}}}}}"),
                ],
            };
            tracing.expect(lines.last().map_or("", String::as_str))?;
            wanted.extend(lines.into_iter().filter(|line| !line.is_empty()));
        }
        let outcome = tracing.interrupt_and_finish()?.success()?;
        let shown = |line: &&str| {
            line.starts_with("@n[") || line.contains("@m") || line.contains("@z") || line.contains("\"@n\"")
        };
        let lines: Vec<&str> = outcome.stdout.lines().filter(shown).collect();
        // At the end nothing is in them.
        assert_eq!(lines[..lines.len().min(wanted.len())], wanted, "{outcome}");
        assert!(
            lines[wanted.len()..].iter().all(|line| line.ends_with("0") || line.contains(": 0")),
            "{outcome}"
        );
        assert_eq!(running.end()?.code(), Some(7));
    }
    Ok(())
}

#[test]
fn lines_of_both_are_in_the_order_of_time() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    if !kernel_takes_programs()? {
        return Ok(());
    }
    let mut running = target.spawn()?;
    let script = script(&target, "@T { printf(\"tight\\n\"); } @R { printf(\"roomy\\n\"); }");
    let mut tracing = Nanoprobe::find()?.start(["-e", &script, "-p", &running.pid_text()])?;
    tracing.attached()?;
    let mut wanted = Vec::new();
    for _ in 0..20 {
        for (function, line) in [(TIGHT, "tight"), (ROOMY, "roomy")] {
            let made = running.run(16, function)?;
            wanted.extend(std::iter::repeat_n(line, made as usize));
        }
    }
    let outcome = tracing.interrupt_and_finish()?.success()?;
    let lines: Vec<&str> = outcome.stdout.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(lines, wanted, "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn what_does_not_add_up_is_on_one_side() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    if !kernel_takes_programs()? {
        return Ok(());
    }
    // `work` is not the kernel's: it shares what adds up alone.
    let path = target.path().display();
    let text = format!(
        "begin {{ @n = 1000; }} @T {{ @n++; @all = count(); }} @R {{ @n++; }} uprobe:{path}:work {{ @all = count(); }} \
         interval:ms:10 {{ @seen = @n; }} end {{ printf(\"n is %d\\n\", @n); }}"
    );
    let mut running = target.spawn()?;
    let script = script(&target, &text);
    let mut tracing = Nanoprobe::find()?.start(["-e", &script, "-p", &running.pid_text()])?;
    let line = tracing.attached()?.line;
    assert!(line.contains("(1 jump, 2 kernel)"), "{line}");
    let [a, b, c] = [running.run(CALLS, TIGHT)?, running.run(CALLS, ROOMY)?, running.run(CALLS, "work")?];
    let outcome = tracing.interrupt_and_finish()?.success()?;
    has_line(&outcome, &format!("@n: {}", 1000 + a + b));
    has_line(&outcome, &format!("n is {}", 1000 + a + b));
    has_line(&outcome, &format!("@all: {}", a + c));
    has_receipt(&outcome, a + b + c, 0);
    assert!(outcome.stderr.contains("work_rip has it too: @n, @seen is one side's alone"), "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn a_pattern_takes_none_unless_that_is_asked_for() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    if !kernel_takes_programs()? {
        return Ok(());
    }
    let path = target.path().display();
    let text = format!("uprobe:{path}:work_r* {{ @[func] = count(); }}");
    let ([_, b], line, outcome) = traced(&target, &[], &text)?;
    assert!(!line.contains("kernel") && !outcome.stdout.contains(&format!("@[{TIGHT}]")), "{outcome}");
    has_line(&outcome, &format!("@[{ROOMY}]: {b}"));
    has_receipt(&outcome, b, 1);
    assert!(outcome.stderr.contains("--kernel has one of them, for a trap at each hit"), "{outcome}");
    let ([a, b], line, outcome) = traced(&target, &["--kernel"], &text)?;
    assert!(line.contains(" 1 kernel)"), "{outcome}");
    has_line(&outcome, &format!("@[{TIGHT}]: {a}"));
    has_line(&outcome, &format!("@[{ROOMY}]: {b}"));
    has_receipt(&outcome, a + b, 0);
    Ok(())
}

/// One run of `count --by func` at both functions.
fn by_verb(target: &Target, running: &mut Running, more: &[&str]) -> Result<([u64; 2], Outcome)> {
    let (specs, pid) = ([TIGHT, ROOMY].map(|name| target.spec(name)), running.pid_text());
    let words = ["count", &specs[0], &specs[1], "--by", "func", "-p", &pid];
    let mut counting = Nanoprobe::find()?.start(words.iter().chain(more))?;
    counting.attached()?;
    let made = [running.run(CALLS, TIGHT)?, running.run(CALLS, ROOMY)?];
    Ok((made, counting.interrupt_and_finish()?.success()?))
}

#[test]
fn a_verb_that_is_a_program_takes_both_and_no_kernel_where_that_is_not_wanted() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    if !kernel_takes_programs()? {
        return Ok(());
    }
    let mut running = target.spawn()?;
    let ([a, b], outcome) = by_verb(&target, &mut running, &[])?;
    has_line(&outcome, &format!("@[{TIGHT}]: {a}"));
    has_line(&outcome, &format!("@[{ROOMY}]: {b}"));
    has_receipt(&outcome, a + b, 0);
    for none in [&["--no-kernel"][..], &["--backend", "inproc"], &["--follow"]] {
        let ([_, b], outcome) = by_verb(&target, &mut running, none)?;
        assert!(!outcome.stdout.contains(TIGHT), "{outcome}");
        has_line(&outcome, &format!("@[{ROOMY}]: {b}"));
        has_receipt(&outcome, b, 1);
    }
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn a_return_that_only_the_kernel_sees_takes_the_functions_entry_with_it() -> Result<()> {
    let target = Target::build(Program::Returns, Link::Pie)?;
    if !kernel_takes_programs()? {
        return Ok(());
    }
    let mut running = target.spawn()?;
    let path = target.path().display();
    let script = format!(
        "uretprobe:{path}:tails {{ @value = max(retval); @left = count(); }} uprobe:{path}:tails {{ @begun = count(); }} \
         uretprobe:{path}:tiny {{ @tiny = count(); }}"
    );
    let mut tracing = Nanoprobe::find()?.start(["-e", &script, "-p", &running.pid_text()])?;
    let line = tracing.attached()?.line;
    assert!(line.contains("(1 jump, 2 kernel)"), "{line}");
    running.command("run 200")?;
    let rounds = testkit::number(&running.expect("rounds ")?, "rounds ").unwrap_or(1600);
    let outcome = tracing.interrupt_and_finish()?.success()?;
    has_line(&outcome, &format!("@begun: {rounds}"));
    has_line(&outcome, &format!("@left: {rounds}"));
    assert!(outcome.stdout.contains("@tiny: ") && !outcome.stdout.contains("@tiny: 0"), "{outcome}");
    assert!(
        outcome.stderr.contains("the kernel sees a return by a probe at the function's entry"),
        "{outcome}"
    );
    assert!(outcome.says_detach_verified(), "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn what_the_kernel_cannot_run_leaves_the_rest_as_it_is() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    if !kernel_takes_programs()? {
        return Ok(());
    }
    let text = "@T { @s[ustack(3)] = count(); } @R { @n = count(); @s[ustack(3)] = count(); }";
    let ([_, b], line, outcome) = traced(&target, &[], text)?;
    assert!(line.contains("Attached 1 probe") && !line.contains("kernel"), "{outcome}");
    has_line(&outcome, &format!("@n: {b}"));
    has_receipt(&outcome, b, 1);
    assert!(outcome.stderr.contains("nor by the kernel: ") && outcome.stderr.contains("ustack"), "{outcome}");
    Ok(())
}

#[test]
fn a_command_and_a_live_view_have_both_too() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    if !kernel_takes_programs()? {
        return Ok(());
    }
    let path = target.path().display().to_string();
    let text = script(&target, "@T, @R { @[func] = count(); }");
    let command = format!("{path} 'run {CALLS} {TIGHT}' 'run {CALLS} {ROOMY}' quit");
    let outcome = Nanoprobe::find()?.run(["-e", &text, "-c", &command])?;
    has_line(&outcome, &format!("@[{TIGHT}]: {CALLS}"));
    has_line(&outcome, &format!("@[{ROOMY}]: {CALLS}"));
    assert!(outcome.stderr.contains(&format!("Hits {0}: {0} handled", 2 * CALLS)), "{outcome}");
    let file = std::env::temp_dir().join(format!("nanoprobe-sides-{}.bt", std::process::id()));
    std::fs::write(&file, &text).map_err(testkit::Error::io("writing a script"))?;
    let mut running = target.spawn()?;
    let name = file.display().to_string();
    let mut plain = Nanoprobe::find()?.start(["top", &name, "-p", &running.pid_text(), "-i", "50ms"])?;
    plain.attached()?;
    let [a, b] = [running.run(CALLS, TIGHT)?, running.run(CALLS, ROOMY)?];
    while !plain.expect("hits  ")?.contains(&format!("{0} = {0} handled", a + b)) {}
    let outcome = plain.interrupt_and_finish()?.success()?;
    // In the view and at the end.
    assert!(outcome.stdout.matches(&format!("@[{TIGHT}]: {a}\n")).count() >= 2, "{outcome}");
    assert!(outcome.stdout.matches(&format!("@[{ROOMY}]: {b}\n")).count() >= 2, "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    // Nobody needs it any more.
    let _ = std::fs::remove_file(file);
    Ok(())
}

#[test]
fn whoever_is_killed_leaves_nothing_of_either_side() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    if !kernel_takes_programs()? {
        return Ok(());
    }
    let mut running = target.spawn()?;
    let before = Snapshot::take(running.pid())?;
    // The second takes out what it has put in, for the kernel to have it.
    let scripts = ["@T, @R { @[func] = count(); }", "@T, @R { @n++; }"].map(|text| script(&target, text));
    for round in 0..rounds(8, 200) {
        let mut tracing = Nanoprobe::find()?.start(["-e", &scripts[round % 2], "-p", &running.pid_text()])?;
        if round < 2 {
            tracing.attached()?;
            running.run(CALLS, TIGHT)?;
        } else {
            // In the midst of the attach, or behind it.
            std::thread::sleep(Duration::from_micros(2_000 + (round as u64 * 7_919) % 60_000));
        }
        tracing.kill_with_children()?;
        let end = Instant::now() + Duration::from_secs(60);
        while !differences(&before)?.is_empty() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(differences(&before)?, [""; 0], "round {round}");
        for function in [TIGHT, ROOMY] {
            assert_eq!(running.run(80, function)?, 80);
        }
    }
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn two_at_once_have_all_hits_each() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    if !kernel_takes_programs()? {
        return Ok(());
    }
    let mut running = target.spawn()?;
    let before = Snapshot::take(running.pid())?;
    let scripts = ["@T, @R { @n = count(); }", "@T, @R { @n++; }"].map(|text| script(&target, text));
    let mut both = Vec::new();
    // The one that keeps its jump first: under a jump the kernel would run what the file has.
    for script in &scripts {
        let mut tracing = Nanoprobe::find()?.start(["-e", script, "-p", &running.pid_text()])?;
        tracing.attached()?;
        both.push(tracing);
    }
    let [a, b] = [running.run(CALLS, TIGHT)?, running.run(CALLS, ROOMY)?];
    let second = both.remove(1).interrupt_and_finish()?.success()?;
    has_line(&second, &format!("@n: {a}"));
    assert!(second.stderr.contains("work_rip is left out: process"), "{second}");
    let more = running.run(CALLS, ROOMY)?;
    let first = both.remove(0).interrupt_and_finish()?.success()?;
    has_line(&first, &format!("@n: {}", a + b + more));
    assert_eq!(differences(&before)?, [""; 0]);
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}
