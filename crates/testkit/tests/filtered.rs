//! `count` and `hist` with conditions, keys and expressions.
//!
//! For:     `--if` and `--by`: each is a program that runs at the hits.
//! Keeps:   what is counted is exact, by key; what does not meet the condition is not counted.

use testkit::{Link, Nanoprobe, Program, Result, Target};

/// Rows by key, calls made, and all that was said.
type Run = (Vec<(String, u64)>, u64, String);

/// What one run of the verb prints while `work` is called so often, with 0, 1, 2 ...; and the number of calls.
fn run(words: &[&str], calls: u64) -> Result<Run> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let pid = running.pid_text();
    let spec = target.spec("work");
    let all: Vec<&str> = [words[0], &spec].iter().chain(&words[1..]).copied().chain(["-p", &pid]).collect();
    let mut counting = Nanoprobe::find()?.start(all)?;
    counting.attached()?;
    let made = running.run(calls, "work")?;
    let outcome = counting.interrupt_and_finish()?.success()?;
    let rows = outcome.stdout.lines().filter_map(|line| {
        let (key, count) = line.strip_prefix("@[")?.split_once("]: ")?;
        Some((key.to_owned(), count.parse().ok()?))
    });
    let rows = rows.collect();
    Ok((rows, made, outcome.stderr + &outcome.stdout))
}

#[test]
fn hits_are_counted_by_key_where_the_condition_holds() -> Result<()> {
    let (rows, made, said) =
        run(&["count", "--if", "arg0 % 2 == 0 && arg0 < 8", "--by", "arg0, comm"], 80_000)?;
    assert_eq!(made, 80_000, "{said}");
    let keys: Vec<&str> = rows.iter().map(|(key, _)| key.as_str()).collect();
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, ["0, counted-pie", "2, counted-pie", "4, counted-pie", "6, counted-pie"], "{said}");
    // Each of eight threads calls it with 0 to 9,999.
    assert!(rows.iter().all(|(_, count)| *count == 8), "{said}");
    assert!(
        said.contains("Hits 80000: 80000 handled, 0 skipped") && said.contains("Detach verified: yes"),
        "{said}"
    );
    Ok(())
}

/// Each of these is asked in the trampoline: the hits that are turned down are handled ones.
#[test]
fn a_condition_of_comparisons_alone_is_exact_at_its_edges() -> Result<()> {
    for (condition, keys) in [
        ("arg0 >= 9990 && arg0 < 9992", &["9990", "9991"][..]),
        ("arg0 > 9998", &["9999"]),
        ("arg0 == 77", &["77"]),
        ("arg0 & 8192 && arg0 <= 8193", &["8192", "8193"]),
        ("(int64)arg0 <= 0", &["0"]),
        ("(int32)arg0 < 1", &["0"]),
    ] {
        let (mut rows, made, said) = run(&["count", "--if", condition, "--by", "arg0"], 80_000)?;
        rows.sort();
        let wanted: Vec<_> = keys.iter().map(|key| ((*key).to_owned(), 8)).collect();
        assert_eq!((rows, made), (wanted, 80_000), "{condition}: {said}");
        assert!(said.contains("Hits 80000: 80000 handled, 0 skipped"), "{condition}: {said}");
    }
    Ok(())
}

#[test]
fn without_keys_there_is_a_line_a_function_and_hist_takes_an_expression() -> Result<()> {
    let (rows, made, said) = run(&["count", "--if", "1"], 40_000)?;
    assert_eq!(rows, [("work".to_owned(), made)], "{said}");
    let (_, _, said) = run(&["hist", "arg0 * 0 + 5", "--by", "pid"], 40_000)?;
    assert!(said.contains("[4, 8)             40000 |@"), "{said}");
    Ok(())
}

#[test]
fn what_is_written_wrongly_is_shown_with_its_place() -> Result<()> {
    let refused = |words: &[&str]| -> Result<String> {
        let outcome = Nanoprobe::find()?.run(words)?;
        assert_eq!(outcome.status.code(), Some(1));
        Ok(outcome.stderr)
    };
    let said = refused(&["count", "u:libc:malloc", "--if", "arg0 >", "-p", "1"])?;
    assert!(said.contains("ERROR"), "{said}");
    let said = refused(&["count", "u:libc:malloc", "--by", "tid", "--wait", "-p", "1"])?;
    assert!(said.contains("--wait does not go with --if"), "{said}");
    Ok(())
}
