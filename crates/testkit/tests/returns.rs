//! Calls are timed from entry to return, whichever way a function is left.
//!
//! For:     the main promise of `nanoprobe lat`.
//! Keeps:   entries = returns + unwound + inside + not timed, exactly; nobody's return address is touched.

use serde_json::Value;
use testkit::{Link, Nanoprobe, Outcome, Program, Result, Running, Target, number};

/// One function's row: entries, returns, returns whose entry was not seen, and nanoseconds of all.
struct Row {
    calls: u64,
    returned: u64,
    began_before: u64,
    total_ns: u64,
}

fn row(outcome: &Outcome, name: &str) -> Result<Row> {
    let maps = outcome.json_data("latency")?;
    let row = &maps.last().map_or(&Value::Null, |m| &m["@"])[name];
    let number = |key: &str| row[key].as_u64().unwrap_or_else(|| panic!("{name}.{key} in {outcome}"));
    let buckets = row["ns"].as_array().into_iter().flatten();
    let sum: u64 = buckets.map(|b| b["count"].as_u64().unwrap_or(0)).sum();
    assert_eq!(sum, number("returned"), "{name}: {outcome}");
    Ok(Row {
        calls: number("calls"),
        returned: number("returned"),
        began_before: number("began_before"),
        total_ns: number("total_ns"),
    })
}

/// Every entry is accounted for, and every hit.
fn accounts(outcome: &Outcome) -> Result<(u64, u64)> {
    let maps = outcome.json_data("latency")?;
    let all = |key: &str| -> u64 {
        let rows = maps.last().and_then(|m| m["@"].as_object()).into_iter().flat_map(|m| m.values());
        rows.filter_map(|r| r[key].as_u64()).sum()
    };
    let receipts = outcome.json_data("receipt")?;
    let open = &receipts[0]["calls"];
    let open = |key: &str| open[key].as_u64().unwrap_or_else(|| panic!("{key} in {outcome}"));
    let ended = all("returned") + open("unwound") + open("inside") + open("not_timed");
    assert_eq!(all("calls"), ended, "{outcome}");
    let receipt = outcome.json_receipt()?;
    assert_eq!(receipt.hits, all("calls") + all("returned") + all("began_before"), "{outcome}");
    assert!(receipt.detach_verified && receipt.skipped == 0, "{outcome}");
    Ok((open("unwound"), open("inside")))
}

fn lat(running: &mut Running, specs: &[String], command: &str, answer: &str) -> Result<(Outcome, String)> {
    let pid = running.pid_text();
    let mut arguments = vec!["lat", "-f", "json", "-p", &pid];
    arguments.extend(specs.iter().map(String::as_str));
    let mut tracing = Nanoprobe::find()?.start(arguments)?;
    tracing.attached()?;
    running.command(command)?;
    let line = running.expect(answer)?;
    Ok((tracing.interrupt_and_finish()?.success()?, line))
}

const ROUNDS: u64 = 2000;
const LEFT: [(&str, u64); 11] = [
    ("tiny", 0),
    ("many", 1),
    ("plain", 2),
    ("tails", 1),
    ("nested", 10),
    ("hopper", 2),
    ("on_signal", 1),
    ("waiter", 1),
    ("branches", 1),
    ("branch_flags", 1),
    ("branch_short", 1),
];

fn every_call_returns(link: Link) -> Result<()> {
    let target = Target::build(Program::Returns, link)?;
    let mut running = target.spawn()?;
    let specs: Vec<String> = LEFT.iter().map(|(name, _)| target.spec(name)).collect();
    let (outcome, line) = lat(&mut running, &specs, &format!("run {ROUNDS}"), "rounds ")?;
    let rounds = number(&format!("{line} "), "rounds").unwrap_or(8 * ROUNDS);
    for (name, times) in LEFT {
        let row = row(&outcome, name)?;
        // tiny is called by many too.
        let wanted = if times == 0 { rounds + rounds / 2 } else { times * rounds };
        assert_eq!(
            (row.calls, row.returned, row.began_before),
            (wanted, wanted, 0),
            "{name} {link:?}: {outcome}"
        );
    }
    let waited = row(&outcome, "waiter")?;
    assert!(waited.total_ns / waited.returned >= 20_000, "{outcome}");
    assert_eq!(accounts(&outcome)?, (0, 0), "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn every_call_returns_in_a_dynamic_process() -> Result<()> {
    every_call_returns(Link::Pie)
}

#[test]
fn every_call_returns_in_a_static_process() -> Result<()> {
    every_call_returns(Link::Static)
}

#[test]
fn a_call_that_is_left_by_longjmp_is_unwound() -> Result<()> {
    let target = Target::build(Program::Returns, Link::Pie)?;
    let mut running = target.spawn()?;
    let specs = [target.spec("leaper"), target.spec("plain")];
    let (outcome, _) = lat(&mut running, &specs, &format!("run {ROUNDS}"), "rounds ")?;
    let leaper = row(&outcome, "leaper")?;
    assert_eq!((leaper.calls, leaper.returned), (8 * ROUNDS, 0), "{outcome}");
    let (unwound, inside) = accounts(&outcome)?;
    // The last of each thread has nobody after it, nor has one whose second frame was free again for the next.
    assert!(inside <= 32 && unwound + inside == 8 * ROUNDS, "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn a_call_that_goes_on_is_inside_and_its_thread_holds_up_nothing() -> Result<()> {
    let target = Target::build(Program::Returns, Link::Pie)?;
    let mut running = target.spawn()?;
    let (outcome, _) = lat(&mut running, &[target.spec("sleeper")], "block", "blocked")?;
    let sleeper = row(&outcome, "sleeper")?;
    assert_eq!((sleeper.calls, sleeper.returned), (1, 0), "{outcome}");
    assert_eq!(accounts(&outcome)?, (0, 1), "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn cpp_exceptions_pass_timed_functions_and_their_calls_are_unwound() -> Result<()> {
    let target = Target::build(Program::Throws, Link::Pie)?;
    let mut running = target.spawn()?;
    let specs = ["thrower", "shop::middle*", "call_first_middle"].map(|symbol| target.spec(symbol));
    let (outcome, line) = lat(&mut running, &specs, "run 80000", "calls ")?;
    let caught = number(&line, "caught")?;
    let thrower = row(&outcome, "thrower")?;
    assert_eq!((thrower.calls, thrower.returned), (80_000, 80_000 - caught), "{outcome}");
    let middle = row(&outcome, "call_first_middle")?;
    assert_eq!(middle.calls, 40_000, "{outcome}");
    accounts(&outcome)?;
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}

#[test]
fn go_calls_return_through_panics_and_moving_stacks() -> Result<()> {
    let target = Target::build(Program::CountedGo, Link::Pie)?;
    let mut running = target.spawn()?;
    let specs = [target.spec("main.WorkGrow"), target.spec("main.recovered")];
    let pid = running.pid_text();
    let mut tracing = Nanoprobe::find()?.start(["lat", "-f", "json", &specs[0], &specs[1], "-p", &pid])?;
    tracing.attached()?;
    let grown = running.run(8_000, "main.WorkGrow")?;
    running.run(8_000, "main.WorkPanics")?;
    let outcome = tracing.interrupt_and_finish()?.success()?;
    let grow = row(&outcome, "main.WorkGrow")?;
    // An entry that grew the stack begins again; a return is a return.
    assert_eq!(grow.began_before, 0, "{outcome}");
    assert!(grow.returned >= grown && grow.calls >= grow.returned, "{outcome}");
    // A call whose panic was recovered leaves by the runtime's own way to its return.
    assert_eq!(row(&outcome, "main.recovered")?.returned, 8_000, "{outcome}");
    accounts(&outcome)?;
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}
