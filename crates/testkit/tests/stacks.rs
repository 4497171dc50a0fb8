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
