//! Calls are shown as they happen.
//!
//! For:     the main promise of `nanoprobe trace`.
//! Keeps:   every call is shown once, with its own arguments, result and time; what is lost is counted.

use serde_json::Value;
use std::collections::BTreeMap;
use testkit::{Link, Nanoprobe, Outcome, Program, Result, Target};

/// Traces while the target obeys one command, and returns the calls and the receipt's hits, handled and skipped.
fn traced(specs: &[String], target: &Target, command: &str, answer: &str) -> Result<(Vec<Value>, [u64; 3])> {
    let outcome = traced_with(&["-f", "json"], specs, target, command, answer)?;
    let receipt = outcome.json_receipt()?;
    assert!(receipt.detach_verified && receipt.hits == receipt.handled + receipt.skipped, "{receipt:?}");
    Ok((outcome.json_data("call")?, [receipt.hits, receipt.handled, receipt.skipped]))
}

fn traced_with(
    options: &[&str],
    specs: &[String],
    target: &Target,
    command: &str,
    answer: &str,
) -> Result<Outcome> {
    let mut running = target.spawn()?;
    let pid = running.pid_text();
    let mut arguments = vec!["trace", "-p", &pid];
    arguments.extend(options.iter().copied().chain(specs.iter().map(String::as_str)));
    let mut tracing = Nanoprobe::find()?.start(arguments)?;
    tracing.attached()?;
    running.command(command)?;
    running.expect(answer)?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(running.end()?.code(), Some(7));
    Ok(outcome)
}

fn of<'a>(calls: &'a [Value], name: &str) -> Vec<&'a Value> {
    calls.iter().filter(|c| c["name"] == name).collect()
}

#[test]
fn every_call_has_its_arguments_its_result_and_its_time() -> Result<()> {
    let target = Target::build(Program::Returns, Link::Pie)?;
    let specs = ["tiny", "nested", "tails", "waiter"].map(|f| target.spec(f));
    let (calls, [hits, handled, skipped]) = traced(&specs, &target, "run 20", "rounds ")?;
    assert_eq!((skipped, handled), (0, hits));
    let tiny = of(&calls, "tiny");
    assert_eq!(tiny.len(), 8 * 20 + 8 * 10);
    for call in &tiny {
        assert_eq!(call["ret"].as_u64().unwrap(), call["args"][0].as_u64().unwrap() + 1, "{call}");
    }
    let nested = of(&calls, "nested");
    assert_eq!(nested.len(), 8 * 20 * 10);
    for call in &nested {
        let depth = call["args"][0].as_u64().unwrap();
        assert_eq!(call["ret"].as_u64().unwrap(), depth * (depth + 1) / 2, "{call}");
    }
    let tails = of(&calls, "tails");
    assert!(!tails.is_empty());
    for call in &tails {
        assert!(
            call["ret"].is_null() && !call["ns"].is_null(),
            "it jumps to plain, which has not returned: {call}"
        );
    }
    let waiter = of(&calls, "waiter");
    assert!(waiter.iter().all(|c| c["ns"].as_u64().unwrap() >= 20_000), "each waits 20 us");
    let mut threads: Vec<u64> = waiter.iter().filter_map(|c| c["tid"].as_u64()).collect();
    threads.sort_unstable();
    threads.dedup();
    assert_eq!(threads.len(), 8, "glibc says which thread it is");
    Ok(())
}

#[test]
fn a_tree_shows_calls_inside_of_those_that_made_them() -> Result<()> {
    let target = Target::build(Program::Returns, Link::Pie)?;
    let specs = ["tiny", "nested", "waiter"].map(|f| target.spec(f));
    let outcome = traced_with(&["--tree", "-f", "json"], &specs, &target, "run 20", "rounds ")?;
    let calls = outcome.json_data("call")?;
    let nested = of(&calls, "nested");
    assert_eq!(nested.len(), 8 * 20 * 10);
    for call in &nested {
        let (depth, rest) = (call["depth"].as_u64().unwrap(), call["args"][0].as_u64().unwrap());
        assert_eq!(depth + rest, 9, "ten inside of one another, the outermost with 9: {call}");
    }
    // The same as text: what is opened is closed, thread by thread.
    let outcome = traced_with(&["--tree"], &specs, &target, "run 20", "rounds ")?;
    let mut open: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut shown = 0;
    for line in outcome.stdout.lines() {
        let (tid, rest) = line.trim_start().split_once(' ').unwrap().1.trim_start().split_once(' ').unwrap();
        let (calls, text) = (open.entry(tid.into()).or_default(), rest.trim_start());
        let indent = rest.len() - text.len();
        if let Some(end) = text.strip_prefix("} ") {
            let name = calls.pop().unwrap();
            assert!(end.starts_with(&format!("{name} = ")), "{line}");
        }
        assert_eq!(indent, 2 * calls.len(), "{line}");
        if let Some(begin) = text.strip_suffix(" {") {
            calls.push(begin.split('(').next().unwrap().into());
        }
        shown += usize::from(!text.ends_with(" {"));
    }
    assert!(open.values().all(Vec::is_empty), "{open:?}");
    assert_eq!(shown, calls.len());
    Ok(())
}

#[test]
fn a_graph_has_each_way_once_and_over_shows_the_slow_calls_alone() -> Result<()> {
    let target = Target::build(Program::Returns, Link::Pie)?;
    let specs = ["nested", "waiter"].map(|f| target.spec(f));
    let outcome = traced_with(&["--graph", "-f", "json"], &specs, &target, "run 20", "rounds ")?;
    let ways = outcome.json_data("graph")?;
    let nested = of(&ways, "nested");
    let depths: Vec<u64> = nested.iter().filter_map(|w| w["depth"].as_u64()).collect();
    assert_eq!(depths, (0..10).collect::<Vec<u64>>());
    assert!(nested.iter().all(|way| way["calls"] == 8 * 20 && way["returned"] == 8 * 20), "{nested:?}");
    let [outer, inner] = [0, 1].map(|n: usize| nested[n]["total_ns"].as_u64().unwrap());
    assert_eq!(nested[0]["self_ns"].as_u64().unwrap().abs_diff(outer - inner) / 160, 0, "but for rounding");

    let all = ["--over", "20us", "-f", "json"];
    let outcome = traced_with(&all, &specs[1..], &target, "run 20", "rounds ")?;
    let waiters = outcome.json_data("call")?.len();
    assert!(waiters > 0 && !outcome.stderr.contains("--over"), "each waits 20 us: {}", outcome.stderr);
    let outcome = traced_with(&["--over", "100s"], &specs, &target, "run 20", "rounds ")?;
    assert_eq!(outcome.stdout, "");
    let missing = format!("{} calls that took less than --over", waiters + 8 * 20 * 10);
    assert!(outcome.stderr.contains(&missing), "{}", outcome.stderr);
    Ok(())
}

#[test]
fn calls_that_do_not_return_are_shown_as_such() -> Result<()> {
    let target = Target::build(Program::Returns, Link::Pie)?;
    let (calls, [.., skipped]) = traced(&[target.spec("leaper")], &target, "run 100", "rounds ")?;
    assert_eq!((calls.len(), skipped), (800, 0));
    assert!(calls.iter().all(|c| c["ret"].is_null() && c["ns"].is_null()));
    let (calls, _) = traced(&[target.spec("sleeper")], &target, "block", "blocked")?;
    assert_eq!(calls.len(), 1);
    assert!(calls[0]["ret"].is_null());
    Ok(())
}

#[test]
fn what_comes_too_fast_is_counted_and_what_is_shown_is_right() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let pid = running.pid_text();
    let mut tracing = Nanoprobe::find()?.start(["trace", "-f", "json", &target.spec("work"), "-p", &pid])?;
    tracing.attached()?;
    let made = running.run(2_000_000, "work")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    let receipt = outcome.json_receipt()?;
    assert_eq!(receipt.hits, 2 * made, "an entry and an exit each");
    assert_eq!(receipt.handled + receipt.skipped, receipt.hits);
    assert!(receipt.skipped > 0, "a ring of 16,384 is full at once");
    let calls = outcome.json_data("call")?;
    let ends = |c: &Value| u64::from(c["entry_seen"] == true) + u64::from(!c["ret"].is_null());
    assert_eq!(calls.iter().map(ends).sum::<u64>(), receipt.handled, "every event is shown once");
    let outcome_of = |c: &Value| (c["args"][0].as_u64(), c["ret"].as_u64());
    let both = calls.iter().filter(|c| c["entry_seen"] == true && !c["ret"].is_null());
    for (x, result) in both.map(outcome_of) {
        let x = x.unwrap() as i32;
        assert_eq!(
            result.unwrap() as i32,
            x.wrapping_mul(3).wrapping_add(1),
            "arguments and result of one call"
        );
    }
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}
