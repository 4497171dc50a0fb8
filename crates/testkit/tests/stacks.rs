//! Counts by stack: exact, from threads that begin meanwhile, through signals; cut and said where a stack is not known.
//!
//! For:     `count --stack`, `--folded`, `--flame`.
//! Keeps:   each hit is counted by a stack that is the true one, as far as it goes, or is told as having none.

use std::collections::BTreeMap;
use testkit::{Link, Nanoprobe, Outcome, Program, Result, Target};

const CALLS: u64 = 300;

/// Folded stacks, outermost first.
fn read(path: &std::path::Path) -> BTreeMap<Vec<String>, u64> {
    let text = std::fs::read_to_string(path).expect("folded stacks");
    let line = |line: &str| {
        let (stack, n) = line.rsplit_once(' ').expect("a count");
        (stack.split(';').map(str::to_owned).collect(), n.parse().expect("a number"))
    };
    text.lines().map(line).collect()
}

/// The counts of stacks that end in these functions, the probed one last.
fn ending(stacks: &BTreeMap<Vec<String>, u64>, names: &[&str]) -> Vec<(Vec<String>, u64)> {
    let fits = |stack: &&Vec<String>| stack.iter().rev().zip(names.iter().rev()).all(|(a, b)| a == b);
    let long = |stack: &&Vec<String>| stack.len() >= names.len();
    stacks.keys().filter(long).filter(fits).map(|stack| (stack.clone(), stacks[stack])).collect()
}

fn run(target: &Target, name: &str) -> Result<(BTreeMap<Vec<String>, u64>, Outcome)> {
    let folded = std::env::temp_dir().join(format!("np-stacks-{}-{name}", std::process::id()));
    let (to, calls) = (folded.display().to_string(), CALLS.to_string());
    let (spec, path) = (target.spec("site"), target.path().display().to_string());
    let outcome = Nanoprobe::find()?.run(["count", "--folded", &to, &spec, "--", &path, &calls])?;
    let stacks = read(&folded);
    std::fs::remove_file(&folded).expect("the file is ours");
    Ok((stacks, outcome))
}

#[test]
fn each_way_to_a_function_is_counted_exactly_by_its_own_stack() -> Result<()> {
    for link in [Link::Pie, Link::NoPie, Link::Static] {
        let target = Target::build(Program::Stacked, link)?;
        let (stacks, outcome) = run(&target, &format!("{link:?}"))?;
        assert_eq!(outcome.code(), Some(7), "{outcome}");
        let one = |names: &[&str], wanted: u64| {
            let found = ending(&stacks, names);
            let sum: u64 = found.iter().map(|(_, n)| n).sum();
            assert_eq!(sum, wanted, "{link:?} {names:?}: {found:?}\n{outcome}");
            found.into_iter().map(|(stack, _)| stack).collect::<Vec<_>>()
        };
        let from_main = |names: &[&str]| {
            let whole = one(names, CALLS);
            assert!(
                whole.iter().all(|stack| stack[0] == "_start" && stack.iter().any(|f| f == "main")),
                "{whole:?}"
            );
        };
        from_main(&["by_one", "site"]);
        from_main(&["with_alloca", "site"]);
        from_main(&["aligned", "site"]);
        // Through the kernel's frame of a signal, on the thread's own stack.
        for stack in one(&["by_handler", "site"], CALLS) {
            assert!(stack.contains(&"interrupted".to_owned()) && stack[0] == "_start", "{stack:?}");
        }
        for stack in one(&["deep", "deep", "site"], CALLS) {
            assert_eq!(stack.iter().filter(|f| *f == "deep").count(), 21, "{stack:?}");
        }
        // Threads that were not there at the attach.
        for stack in one(&["thread_main", "by_two", "site"], 4 * CALLS) {
            assert!(stack.len() > 3, "{stack:?}");
        }
        // A signal's own stack is not known: what is there is true, and told to be short.
        one(&["by_other_stack", "site"], CALLS);
        assert!(outcome.stderr.contains(&format!("{CALLS} stacks end early")), "{outcome}");
        assert!(outcome.stderr.contains("Hits 3000: 3000 handled, 0 skipped"), "{outcome}");
        assert!(outcome.stderr.contains(&format!("{CALLS} hits in forked children")), "{outcome}");
        let all: u64 = stacks.values().sum();
        assert_eq!(all, 10 * CALLS, "{stacks:?}");
    }
    Ok(())
}

#[test]
fn a_script_gets_the_same_stacks_as_keys() -> Result<()> {
    for link in [Link::Pie, Link::Static] {
        let target = Target::build(Program::Stacked, link)?;
        let (spec, path) = (target.spec("site"), target.path().display().to_string());
        let script = format!(
            "config = {{ show_debug_info = 0 }} {spec} {{ @[ustack] = count(); @n[ustack(2)] = count(); }}"
        );
        let command = format!("{path} {CALLS}");
        let outcome = Nanoprobe::find()?.run(["-e", &script, "-c", &command])?;
        let counted = |caller: &str| -> u64 {
            let blocks = outcome.stdout.split("@n[\n").skip(1);
            let of =
                blocks.filter(|block| block.lines().nth(1).is_some_and(|l| l.trim().starts_with(caller)));
            let count = |block: &str| block.split("]: ").nth(1)?.lines().next()?.parse::<u64>().ok();
            of.filter_map(count).sum()
        };
        for caller in ["by_one+", "with_alloca+", "aligned+", "by_handler+", "by_other_stack+", "deep+"] {
            assert_eq!(counted(caller), CALLS, "{link:?} {caller} {outcome}");
        }
        assert_eq!(counted("by_two+"), 4 * CALLS, "{link:?} {outcome}");
        assert!(outcome.stdout.contains("    site+0\n    by_one+"), "{outcome}");
    }
    Ok(())
}

#[test]
fn a_running_process_is_attached_to_and_left_and_its_picture_drawn() -> Result<()> {
    let target = Target::build(Program::Stacked, Link::Pie)?;
    let mut running = target.spawn_with(&["100", "wait"])?;
    let pid = running.pid_text();
    let picture = std::env::temp_dir().join(format!("np-flame-{pid}.svg"));
    let to = picture.display().to_string();
    let spec = target.spec("site");
    let mut tracing = Nanoprobe::find()?.start(["count", "--flame", &to, "-f", "json", &spec, "-p", &pid])?;
    tracing.attached()?;
    for _ in 0..3 {
        running.command("go")?;
        running.expect("done")?;
    }
    let outcome = tracing.interrupt_and_finish()?.success()?;
    let receipt = outcome.json_receipt()?;
    assert!(receipt.detach_verified && receipt.handled == 3000, "{outcome}");
    let stacks = outcome.json_data("stacks")?;
    let all = stacks[0]["@"].as_array().expect("stacks");
    let sum: u64 = all.iter().filter_map(|stack| stack["count"].as_u64()).sum();
    assert_eq!(sum, 3000, "{outcome}");
    let svg = std::fs::read_to_string(&picture).expect("a picture");
    std::fs::remove_file(&picture).expect("the file is ours");
    assert!(
        svg.contains("data-n=\"by_one\"")
            && svg.contains("data-n=\"thread_main\"")
            && svg.ends_with("</svg>\n")
    );
    running.command("go")?;
    running.expect("done")?;
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn with_musl_the_caller_at_a_functions_first_instruction_is_never_missing() -> Result<()> {
    let target = Target::build(Program::Stacked, Link::Musl)?;
    let (stacks, outcome) = run(&target, "musl")?;
    for caller in ["by_one", "by_two", "with_alloca", "aligned", "by_handler", "by_other_stack", "deep"] {
        let found: u64 = ending(&stacks, &[caller, "site"]).iter().map(|(_, n)| n).sum();
        let wanted = if caller == "by_two" { 4 * CALLS } else { CALLS };
        assert_eq!(found, wanted, "{caller} {outcome}\n{stacks:?}");
    }
    Ok(())
}

/// Without the lines that the program itself has printed.
fn without_its_own_words(outcome: Outcome) -> Outcome {
    let ours = outcome.stdout.lines().filter(|line| *line != "done").map(|line| format!("{line}\n"));
    Outcome { stdout: ours.collect(), ..outcome }
}

/// Two functions that the program has made call the probed one so often each.
#[test]
fn functions_that_a_program_has_made_are_named_also_when_it_has_gone() -> Result<()> {
    let target = Target::build(Program::Made, Link::Pie)?;
    let (spec, path) = (target.spec("site"), target.path().display().to_string());
    for how in ["map", "dump"] {
        let folded = std::env::temp_dir().join(format!("np-made-{}-{how}", std::process::id()));
        let to = folded.display().to_string();
        let words = ["count", "--folded", &to, "--lines", "-f", "json", &spec, "--", &path, how, "50"];
        let outcome = without_its_own_words(Nanoprobe::find()?.run(words)?);
        assert_eq!(outcome.code(), Some(7), "{outcome}");
        let stacks = read(&folded);
        std::fs::remove_file(&folded).expect("the file is ours");
        let pid = &outcome.json_data("attached_probes")?[0]["pid"];
        // The program leaves its map; its dump it takes away.
        let _ = std::fs::remove_file(format!("/tmp/perf-{pid}.map"));
        for name in ["made one /app/x.js:3", "made two"] {
            let found = ending(&stacks, &["main", name, "site"]);
            let sum: u64 = found.iter().map(|(_, n)| n).sum();
            assert_eq!(sum, 50, "{how} {name}: {stacks:?}\n{outcome}");
        }
        let has_lines = outcome.stdout.contains("made two+0x6@script.js:11");
        assert_eq!(has_lines, how == "dump", "a map has no lines: {outcome}");
    }
    Ok(())
}

/// A program that makes its code: how often what it has made called the function, from `asks` in `round`; how often it was called.
fn asked(target: &Target, words: &[&str], function: &str) -> Result<(u64, u64)> {
    let mut running = target.spawn_with(words)?;
    let pid = running.pid_text();
    let folded = std::env::temp_dir().join(format!("np-asked-{pid}"));
    let (to, spec) = (folded.display().to_string(), format!("u:libc:{function}"));
    let mut tracing =
        Nanoprobe::find()?.start(["count", "--folded", &to, "-f", "json", &spec, "-p", &pid])?;
    tracing.attached()?;
    running.command("1000")?;
    running.expect("done")?;
    // java writes its map when it ends.
    running.end()?;
    let outcome = tracing.finish()?;
    let stacks = read(&folded);
    std::fs::remove_file(&folded).expect("the file is ours");
    let _ = std::fs::remove_file(format!("/tmp/perf-{pid}.map"));
    let is_at = |stack: &[String], name: &str| stack.iter().position(|frame| frame.contains(name));
    let fits =
        |stack: &Vec<String>| is_at(stack, "round").zip(is_at(stack, "asks(").or(is_at(stack, "asks ")));
    let whole = stacks.iter().filter(|(stack, _)| fits(stack).is_some_and(|(outer, inner)| outer < inner));
    Ok((whole.map(|(_, n)| n).sum(), outcome.json_receipt()?.handled))
}

fn source(name: &str) -> String {
    format!("{}/targets/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
#[ignore = "needs node"]
fn code_that_node_has_made_is_named() -> Result<()> {
    let node = Target::installed("node", "nodejs")?;
    // It writes a log of its own beside its map.
    let log = std::env::temp_dir().join(format!("np-asked-{}.log", std::process::id()));
    let (to, script) = (format!("--logfile={}", log.display()), source("asks.js"));
    let words =
        ["--no-logfile-per-isolate", &to, "--perf-basic-prof", "--always-sparkplug", "--no-opt", &script];
    assert_eq!(asked(&node, &words, "getppid")?, (1000, 1000));
    let _ = std::fs::remove_file(&log);
    Ok(())
}

#[test]
#[ignore = "needs java"]
fn code_that_java_has_made_is_named() -> Result<()> {
    let java = Target::installed("java", "default-jdk-headless")?;
    let words = [
        "-Xcomp",
        "-XX:CompileCommand=quiet",
        "-XX:CompileCommand=compileonly,Asks.*",
        "-XX:CompileCommand=dontinline,Asks.*",
        "-XX:+PreserveFramePointer",
        "-XX:+UnlockDiagnosticVMOptions",
        "-XX:+DumpPerfMapAtExit",
        &source("Asks.java"),
    ];
    let (made, all) = asked(&java, &words, "clock_gettime")?;
    // java itself asks for the time too, in other threads and while it links a call.
    assert!(made >= 1000 && all >= made, "{made} of {all}");
    Ok(())
}

/// A traced call has the stack that a count has, and each its own.
#[test]
fn a_traced_call_has_its_own_stack() -> Result<()> {
    let target = Target::build(Program::Stacked, Link::Pie)?;
    let (spec, path) = (target.spec("site"), target.path().display().to_string());
    let outcome = Nanoprobe::find()?.run(["trace", "--stack", "-f", "json", &spec, "--", &path, "20"])?;
    let outcome = without_its_own_words(outcome);
    assert_eq!(outcome.code(), Some(7), "{outcome}");
    let calls = outcome.json_data("call")?;
    assert_eq!(calls.len(), 200, "{outcome}");
    let names = |call: &serde_json::Value| -> Vec<String> {
        let frames = call["stack"]["frames"].as_array().expect("frames");
        let name = |f: &serde_json::Value| f.as_str().map(|f| f.split('+').next().unwrap_or(f).to_owned());
        frames.iter().filter_map(name).collect()
    };
    let mut by_caller: BTreeMap<String, u64> = BTreeMap::new();
    for call in &calls {
        let frames = names(call);
        let caller = frames.first().expect("a caller").clone();
        let is_cut = !call["stack"]["lacks"].is_null();
        assert_eq!(is_cut, caller == "by_other_stack", "{call}");
        let outermost = frames.last().map(String::as_str);
        let is_of_thread = caller == "by_two";
        assert!(is_cut || is_of_thread || outermost == Some("_start"), "{call}");
        if caller == "deep" {
            assert_eq!(frames.iter().filter(|f| *f == "deep").count(), 21, "{call}");
        }
        *by_caller.entry(caller).or_default() += 1;
    }
    let all = ["aligned", "by_handler", "by_one", "by_other_stack", "by_two", "deep", "with_alloca"];
    let wanted = all.map(|name| (name.to_owned(), if name == "by_two" { 80 } else { 20 }));
    assert_eq!(by_caller, BTreeMap::from(wanted), "{outcome}");
    // As text: under each call who called.
    let outcome = Nanoprobe::find()?.run(["trace", "--stack", &spec, "--", &path, "1"])?;
    assert!(
        outcome.stdout.contains("\n    by_one+0x") && outcome.stdout.contains("\n    [no more is known:"),
        "{outcome}"
    );
    Ok(())
}
