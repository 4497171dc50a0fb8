//! `nanoprobe bench`, from outside.

use std::process::{Command, Output};

fn bench(line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nanoprobe"));
    command.arg("bench").args(line.split_whitespace()).output().expect("nanoprobe starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What is looked at is that it works and counts all, not the figure: millions of calls in each sample, and as many probes put in
/// and taken out as with seconds.
const SHORT: &str = "--sample 200";

/// `hits N = calls N`, and more than none.
fn exact_lines(out: &str) -> Vec<&str> {
    let numbers = |line: &&str| {
        let (hits, calls) = line.strip_prefix("hits ")?.split_once(" = calls ")?;
        Some(hits == calls && hits.parse::<u64>().ok()? > 0)
    };
    out.lines().filter(|line| numbers(line) == Some(true)).collect()
}

#[test]
fn a_short_run_counts_every_call_and_ends_in_the_summary() {
    let got = bench(&format!("{SHORT} -w1 -d1 -p1 trig-uprobe-nop"));
    let (out, err) = (text(&got.stdout), text(&got.stderr));
    assert!(got.status.success(), "{out}{err}");
    assert_eq!(exact_lines(&out).len(), 1, "{out}");
    assert_eq!(out.lines().filter(|l| l.starts_with("Iter ")).count(), 3, "{out}");
    let summary = out.lines().last().unwrap_or_default();
    assert!(summary.starts_with("Summary: hits ") && summary.contains(" \u{b1} "), "{summary}");
    assert!(out.contains("(1-byte nop)"), "{out}");
}

/// Locked adds cost ten times as much: they are for programs that make threads without libc, which our own does not. A thread that
/// sleeps in the kernel at the attach may lead to them too, but not each time.
#[test]
fn our_own_program_counts_by_restartable_sequences() {
    let mut out = String::new();
    let counts_so = (0..3).any(|_| {
        out = text(&bench(&format!("{SHORT} -w1 -d1 -p1 trig-uprobe-count")).stdout);
        out.contains("counts by rseq")
    });
    assert!(counts_so, "{out}");
}

#[test]
fn every_target_and_both_ways_of_counting_are_exact_on_two_threads() {
    let all = "trig-uprobe-push trig-uprobe-ret trig-uprobe-nop5 trig-uprobe-count";
    let got = bench(&format!("{SHORT} -w1 -d1 -p2 -a -f json {all}"));
    let (out, err) = (text(&got.stdout), text(&got.stderr));
    assert!(got.status.success(), "{out}{err}");
    let objects: Vec<serde_json::Value> =
        out.lines().map(|line| serde_json::from_str(line).expect("one object a line")).collect();
    let names: Vec<_> = objects.iter().map(|o| o["name"].as_str().unwrap_or_default()).collect();
    assert_eq!(names, ["uprobe-push", "uprobe-ret", "uprobe-nop5", "uprobe-count"]);
    for object in &objects {
        assert!(object["hits"].as_u64() > Some(0), "{object}");
        assert_eq!(object["hits"], object["calls"]);
        assert_eq!(object["cpus"], 2);
    }
}

#[test]
fn readers_of_each_flavour_count_every_call() {
    for flavour in ["fast", "normal", "sigsafe"] {
        let both = "trig-uprobe-nop trig-uretprobe-push";
        let got = bench(&format!("{SHORT} -w1 -d1 -p2 -a -f json --flavour {flavour} {both}"));
        let (out, err) = (text(&got.stdout), text(&got.stderr));
        assert!(got.status.success(), "{out}{err}");
        assert_eq!(out.lines().count(), 2);
        for line in out.lines() {
            let object: serde_json::Value = serde_json::from_str(line).expect("one object a line");
            assert_eq!(object["hits"], object["calls"]);
            let name = object["flavour"].as_str().unwrap_or_default();
            assert_eq!(
                name,
                if flavour == "fast" { "lite" } else { flavour },
                "fast and lite are the same code"
            );
        }
    }
}

#[test]
fn without_a_probe_there_is_a_rate_and_nothing_to_compare() {
    let got = bench("-w1 -d1 -q trig-syscall-count");
    let out = text(&got.stdout);
    assert!(got.status.success(), "{out}");
    assert_eq!(out.lines().count(), 1);
    assert!(out.starts_with("syscall-count   ( 1 cpus): "), "{out}");
}

#[test]
fn the_kernel_counts_the_same_calls_or_the_refusal_says_what_to_do() {
    let got = bench(&format!("{SHORT} -w1 -d1 -p1 -a --vs kernel trig-uprobe-nop5"));
    let (out, err) = (text(&got.stdout), text(&got.stderr));
    if got.status.success() {
        assert_eq!(exact_lines(&out).len(), 2, "{out}");
        assert!(out.contains("ours/kernel"), "{out}");
    } else {
        assert_eq!(got.status.code(), Some(1));
        assert!(err.contains("  try      "), "{err}");
        let is_root = text(&std::fs::read("/proc/self/status").unwrap_or_default()).contains("\nUid:\t0\t");
        assert!(!is_root || err.contains("perf_event_open"), "{err}");
    }
}

#[test]
fn the_cache_flush_experiment_has_its_seven_rows_and_counts_every_hit() {
    let got = bench("xol --calls 500 --rounds 1");
    let (out, err) = (text(&got.stdout), text(&got.stderr));
    assert!(got.status.success(), "{out}{err}");
    assert_eq!(exact_lines(&out), ["hits 3500 = calls 3500"], "{out}");
    assert!(
        out.contains("188)*") && out.contains("a slip") && out.contains("broadcast serialisation"),
        "{out}"
    );
    let got = bench("xol --calls 500 --rounds 1 -f json");
    let names: Vec<_> = text(&got.stdout)
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).expect("one object a line")["name"].clone()
        })
        .collect();
    assert_eq!(names.len(), 7, "{names:?}");
}

/// The first words of lines that begin with a name and a description.
fn names(list: &str) -> Vec<String> {
    list.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn every_benchmark_is_listed_and_every_one_that_is_listed_answers() {
    let listed = names(&text(&bench("-l").stdout));
    let help = text(&bench("--help").stdout);
    assert!(listed.len() > 25, "{listed:?}");
    for name in &listed {
        assert!(help.split_whitespace().any(|word| word == name), "{name} is not in the help");
        if name.starts_with("trig-") {
            continue; // run by the tests above, by the name that is listed
        }
        let got = bench(&format!("{name} --help"));
        let said = text(&got.stdout);
        assert!(got.status.success() && said.contains(&format!("nanoprobe bench {name}")), "{name}: {said}");
    }
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/src");
    let exported = std::fs::read_to_string(format!("{sources}/lib.rs")).unwrap();
    // What stands in for them on other machines is none.
    let here = exported.lines().filter(|line| !line.contains("elsewhere"));
    let mains: usize = here.map(|line| line.matches("_main").count()).sum();
    // All but the entry point itself and that of the trig- benchmarks.
    assert_eq!(listed.iter().filter(|n| !n.starts_with("trig-")).count(), mains - 2, "{exported}");
}

/// Each run fails by itself if the hits that a script tells of are not the calls. A row takes a second: some of each kind.
#[test]
fn scripts_are_measured_and_their_hits_are_the_calls() {
    let listed = text(&bench("scripts --list").stdout);
    let rows: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(rows.len() >= 10, "{listed}");
    let some = ["hist", "by-arg0", "framed-20", "retval", "latency"];
    assert!(some.iter().all(|row| rows.contains(row)), "{listed}");
    let got = bench(&format!("scripts {SHORT} --alone -d1 {}", some.join(" ")));
    let (out, err) = (text(&got.stdout), text(&got.stderr));
    assert!(got.status.success(), "{out}{err}");
    for row in some {
        let mut lines = out.lines().filter(|line| line.split_whitespace().next() == Some(row));
        let line = lines.next().unwrap_or_default();
        let mut words = line.split_whitespace().skip(1);
        assert_eq!(words.next(), Some("nanoprobe"), "{row}: {out}");
        let added = words.next().and_then(|number| number.parse::<f64>().ok());
        assert!(added.is_some_and(f64::is_finite) && lines.next().is_none(), "{row}: {out}");
    }
}

#[test]
fn every_seed_series_is_named_when_none_is_and_says_how_it_is_run() {
    let got = bench("seeds");
    assert_eq!(got.status.code(), Some(2));
    let listed = names(&text(&bench("seeds -l").stdout));
    assert_eq!(listed, ["uprobe", "srcu-lite", "consumers", "tracer", "trap", "hwbp"]);
    let (said, help) = (text(&got.stderr), text(&bench("seeds --help").stdout));
    for name in &listed {
        assert!(said.contains(name.as_str()) && help.contains(name.as_str()), "{name}: {said}{help}");
        assert!(bench(&format!("seeds {name} --help")).status.success(), "{name}");
    }
}

#[test]
fn what_cannot_be_written_is_an_error_and_no_crash() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nanoprobe"));
    let got = command.args(["bench", "-l"]).stdout(full()).output().unwrap();
    assert_eq!(got.status.code(), Some(1), "{}", text(&got.stderr));
    let mut command = Command::new(env!("CARGO_BIN_EXE_nanoprobe"));
    let got = command.args(["bench", "seeds"]).stderr(full()).output().unwrap();
    assert_eq!(got.status.code(), Some(2));
}

#[test]
fn a_name_that_does_not_exist_is_answered_with_those_that_do() {
    let got = bench("trig-nosuch");
    assert_eq!(got.status.code(), Some(1));
    assert!(text(&got.stderr).contains("trig-uprobe-nop5"));
    assert!(text(&bench("-l").stdout).contains("trig-uprobe-push"));
    assert!(text(&bench("--help").stdout).contains("Examples:"));
}
