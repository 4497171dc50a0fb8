//! Calls are shown as they happen.
//!
//! For:     the main promise of `nanoprobe trace`.
//! Keeps:   every call is shown once, with its own arguments, result and time; what is lost is counted.

use serde_json::Value;
use testkit::{Link, Nanoprobe, Program, Result, Target};

/// Traces while the target obeys one command, and returns the calls and the receipt's hits, handled and skipped.
fn traced(specs: &[String], target: &Target, command: &str, answer: &str) -> Result<(Vec<Value>, [u64; 3])> {
    let mut running = target.spawn()?;
    let pid = running.pid_text();
    let mut arguments = vec!["trace", "-f", "json", "-p", &pid];
    arguments.extend(specs.iter().map(String::as_str));
    let mut tracing = Nanoprobe::find()?.start(arguments)?;
    tracing.attached()?;
    running.command(command)?;
    running.expect(answer)?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert_eq!(running.end()?.code(), Some(7));
    let receipt = outcome.json_receipt()?;
    assert!(receipt.detach_verified && receipt.hits == receipt.handled + receipt.skipped, "{receipt:?}");
    Ok((outcome.json_data("call")?, [receipt.hits, receipt.handled, receipt.skipped]))
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
    let waiter = of(&calls, "waiter");
    assert!(waiter.iter().all(|c| c["ns"].as_u64().unwrap() >= 20_000), "each waits 20 us");
    let mut threads: Vec<u64> = waiter.iter().filter_map(|c| c["tid"].as_u64()).collect();
    threads.sort_unstable();
    threads.dedup();
    assert_eq!(threads.len(), 8, "glibc says which thread it is");
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
