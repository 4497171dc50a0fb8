//! `--budget`: what is too dear goes out and comes back, all that is seen is counted, and what is not seen is said.
//!
//! For:     `count`, `hist` and `lat` with a budget.
//! Keeps:   whatever was lifted, each hit that was seen is handled, and the process is left as it was.

use serde_json::Value;
use testkit::{Link, Nanoprobe, Program, Result, Running, Target};

/// Follows a run of this verb until it says that `idle_work` is seen in part, which eight threads call all the time.
fn until_sampled(verb: &[&str], target: &Target, running: &Running) -> Result<testkit::Outcome> {
    let (spec, pid) = (target.spec("idle_work"), running.pid_text());
    let mut words: Vec<&str> = verb.to_vec();
    words.insert(1, &spec);
    words.extend(["--budget", "0.5%", "-p", &pid, "-i", "50ms", "-f", "json"]);
    let mut tracing = Nanoprobe::find()?.start(words)?;
    tracing.attached()?;
    while !tracing.expect("{\"type\":\"budget\"")?.contains("\"idle_work\"") {}
    tracing.interrupt_and_finish()?.success()
}

fn line<'a>(lines: &'a [Value], kind: &str) -> &'a Value {
    lines.iter().rfind(|line| line["type"] == kind).map(|line| &line["data"]).expect(kind)
}

#[test]
fn what_is_too_dear_is_seen_in_part_and_the_rest_is_said_to_be_estimated() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    for verb in [&["count"][..], &["lat"], &["hist", "arg0"]] {
        let running = target.spawn()?;
        let outcome = until_sampled(verb, &target, &running)?;
        let lines: Vec<Value> =
            outcome.stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        let (receipt, budget) = (line(&lines, "receipt"), line(&lines, "budget"));
        assert_eq!(
            (&receipt["hits"], &receipt["skipped"]),
            (&receipt["handled"], &Value::Object(Default::default()))
        );
        assert_eq!(receipt["detach_verified"], true);
        let (stops, sampled) = (budget["stops"].as_u64().unwrap(), &budget["sampled"]["idle_work"]);
        assert!(stops > 0 && sampled.is_object() && budget["failed"].is_null(), "{verb:?} {budget}");
        let seen = receipt["hits"].as_u64().unwrap() / if verb[0] == "lat" { 2 } else { 1 };
        assert!(sampled["estimated"].as_u64().unwrap_or(seen) >= seen, "{verb:?} {budget} {receipt}");
        assert!(outcome.stderr.contains("hits were not seen (estimated)"), "{outcome}");
        // Each thread checks what its functions return.
        assert_eq!(running.end()?.code(), Some(7));
    }
    Ok(())
}

#[test]
fn what_is_cheap_enough_is_counted_to_the_last_hit() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let (spec, pid) = (target.spec("work"), running.pid_text());
    let mut tracing = Nanoprobe::find()?.start(["count", &spec, "--budget", "100%", "-p", &pid])?;
    tracing.attached()?;
    let made = running.run(5000, "work")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert!(outcome.stdout.contains(&format!("@[work]: {made}\n")), "{outcome}");
    assert!(outcome.stderr.contains("all hits were counted"), "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn what_keeps_no_budget_says_so() -> Result<()> {
    for words in [&["trace", "u::x"][..], &["top", "u::x"], &["count", "u::x", "--by", "tid"]] {
        let words = words.iter().chain(&["--budget", "2%", "-p", "1"]).copied();
        let outcome = Nanoprobe::find()?.run(words)?;
        assert!(outcome.code() == Some(1) && outcome.stderr.contains("--budget"), "{outcome}");
    }
    Ok(())
}
