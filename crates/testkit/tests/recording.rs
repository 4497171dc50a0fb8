//! `record` and `report`: what was recorded is what happened, also when the run is killed.
//!
//! For:     recordings and what is made of them.
//! Keeps:   totals, columns, stacks, calls and accounts of one run agree with the calls that were made.

use serde_json::Value;
use std::path::{Path, PathBuf};
use testkit::{Link, Nanoprobe, Program, Result, Target, wait_until};

const CALLS: u64 = 20_000;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("np-recording-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn lines(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

fn of_type<'a>(lines: &'a [Value], name: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["type"] == name).collect()
}

/// A recording of so many calls of `work` by one thread.
fn recorded(dir: &Dir, flags: &[&str]) -> Result<(String, Vec<Value>)> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let (file, pid, spec) = (dir.file("run.json"), running.pid_text(), target.spec("work"));
    let mut words = vec!["record", &file, &spec, "-p", &pid, "-i", "100ms"];
    words.extend(flags);
    let mut recording = Nanoprobe::find()?.start(words)?;
    recording.says("nanoprobe: recording")?;
    let made = running.run(CALLS, "work")?;
    assert_eq!(made % CALLS, 0);
    let outcome = recording.interrupt_and_finish()?.success()?;
    assert!(outcome.stdout.is_empty() && outcome.stderr.contains("makes a page of it"), "{outcome}");
    assert_eq!(running.end()?.code(), Some(7));
    let lines = lines(&file);
    let calls = of_type(&lines, "latency").last().unwrap()["data"]["@"]["work"]["calls"].as_u64();
    assert_eq!(calls, Some(made), "{outcome}");
    Ok((file, lines))
}

#[test]
fn columns_add_up_to_the_totals_and_every_probe_has_its_account() -> Result<()> {
    let dir = Dir::new("sums");
    let (file, lines) = recorded(&dir, &["--stack", "--calls"])?;
    let latencies = of_type(&lines, "latency");
    let (columns, totals): (Vec<&Value>, Vec<&Value>) =
        latencies.into_iter().partition(|line| !line["interval_ms"].is_null());
    let work = |line: &Value, what: &str| line["data"]["@"]["work"][what].as_u64().unwrap_or(0);
    let made = work(totals[0], "calls");
    for what in ["calls", "returned", "total_ns"] {
        let sum: u64 = columns.iter().map(|line| work(line, what)).sum();
        assert_eq!((totals.len(), sum), (1, work(totals[0], what)), "{what}");
    }
    let stacks = of_type(&lines, "stacks")[0]["data"]["@"].as_array().unwrap().clone();
    assert_eq!(stacks.iter().map(|one| one["count"].as_u64().unwrap()).sum::<u64>(), made);
    let accounts = of_type(&lines, "beside");
    assert_eq!(accounts.len(), 2);
    for one in accounts.iter().map(|line| &line["data"]).chain([&of_type(&lines, "receipt")[0]["data"]]) {
        let skipped: u64 = one["skipped"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
        assert_eq!(one["hits"].as_u64().unwrap(), one["handled"].as_u64().unwrap() + skipped, "{one}");
    }
    let run = &of_type(&lines, "run")[0]["data"];
    assert!(run["command"][1] == "record" && run["pid"].as_u64().is_some(), "{run}");
    assert_eq!(of_type(&lines, "receipt")[0]["data"]["detach_verified"], true);
    each_format_is_made(&dir, &file)
}

fn each_format_is_made(dir: &Dir, file: &str) -> Result<()> {
    let nanoprobe = Nanoprobe::find()?;
    let formats =
        ["html", "flame", "folded", "speedscope", "pprof", "firefox", "chrome", "perfetto", "openmetrics"];
    for format in formats {
        let to = dir.file(format);
        nanoprobe.run(["report", file, "-f", format, "-o", &to])?.success()?;
        assert!(std::fs::metadata(&to).unwrap().len() > 100 || format == "folded", "{format}");
    }
    nanoprobe.run(["report", file])?.success()?;
    let page = std::fs::read_to_string(dir.file("run.html")).unwrap();
    assert!(page.contains("Latency over time") && page.contains("Flame graph") && page.contains("work"));
    let folded = std::fs::read_to_string(dir.file("folded")).unwrap();
    assert!(folded.lines().all(|line| line.contains(";work ") || line.starts_with("work ")), "{folded}");
    Ok(())
}

#[test]
fn a_run_that_was_killed_leaves_what_was_written_and_its_report_says_so() -> Result<()> {
    let dir = Dir::new("killed");
    let target = Target::build(Program::Counted, Link::Pie)?;
    let mut running = target.spawn()?;
    let (file, pid, spec) = (dir.file("run.json"), running.pid_text(), target.spec("work"));
    let mut recording = Nanoprobe::find()?.start(["record", &file, &spec, "-p", &pid, "-i", "20ms"])?;
    recording.says("nanoprobe: recording")?;
    running.run(800, "work")?;
    let has_column = || std::fs::read_to_string(&file).is_ok_and(|text| text.contains("interval_ms"));
    wait_until("a column", std::time::Duration::from_secs(60), has_column)?;
    recording.kill()?;
    let outcome = Nanoprobe::find()?.run(["report", &file])?.success()?;
    assert!(outcome.stderr.contains("written to"), "{outcome}");
    Ok(())
}

#[test]
fn what_is_no_recording_is_refused_and_nothing_is_written() -> Result<()> {
    let dir = Dir::new("refused");
    let nanoprobe = Nanoprobe::find()?;
    let file = dir.file("x.json");
    for (text, wanted) in
        [("", "nothing of a run"), ("\x7fELF\n", "line 1"), ("{\"a\":1}\n", "nothing of a run")]
    {
        std::fs::write(&file, text).unwrap();
        let outcome = nanoprobe.run(["report", &file])?;
        assert!(outcome.code() == Some(1) && outcome.stderr.contains(wanted), "{outcome}");
        assert!(!Path::new(&dir.file("x.html")).exists());
    }
    std::fs::write(&file, "{\"type\":\"map\",\"data\":{\"@\":{\"f\":7}}}\n").unwrap();
    let outcome = nanoprobe.run(["report", &file, "-f", "perfetto"])?;
    assert!(outcome.code() == Some(1) && outcome.stderr.contains("--calls"), "{outcome}");
    let outcome = nanoprobe.run(["record", &file, "u::no_such_function", "-p", "1"])?;
    assert_ne!(outcome.code(), Some(0));
    assert!(
        std::fs::read_to_string(&file).unwrap().contains("\"f\":7"),
        "a run that comes to nothing leaves the file"
    );
    Ok(())
}

#[test]
fn intervals_tell_what_is_new_and_deltas_tell_that_alone() -> Result<()> {
    let target = Target::build(Program::Counted, Link::Pie)?;
    for deltas in [false, true] {
        let mut running = target.spawn()?;
        let (pid, spec) = (running.pid_text(), target.spec("work"));
        let mut words = vec!["count", &spec, "-p", &pid, "-i", "50ms", "--timestamps"];
        words.extend(deltas.then_some("--deltas"));
        let mut counting = Nanoprobe::find()?.start(words)?;
        counting.attached()?;
        let made = running.run(CALLS, "work")?;
        let outcome = counting.interrupt_and_finish()?.success()?;
        let rows: Vec<&str> = outcome.stdout.lines().filter(|line| line.starts_with("@[work]: ")).collect();
        let (last, parts) = rows.split_last().unwrap();
        assert_eq!(*last, format!("@[work]: {made}"), "{outcome}");
        let new = |row: &&&str| -> u64 {
            let text = row.strip_prefix("@[work]: ").unwrap();
            let word = if deltas { text.split("  ").next() } else { text.split(['+', ',']).nth(1) };
            word.and_then(|word| word.trim().parse().ok()).unwrap_or_else(|| panic!("{row}"))
        };
        let sum: u64 = parts.iter().map(|row| new(&row)).sum();
        assert!(sum <= made && parts.iter().all(|row| row.ends_with("/s")), "{outcome}");
        let times = outcome.stdout.lines().filter(|line| line.ends_with("Z:")).count();
        assert!(times >= parts.len(), "{outcome}");
        assert_eq!(running.end()?.code(), Some(7));
    }
    Ok(())
}
