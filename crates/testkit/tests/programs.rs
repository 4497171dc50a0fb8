//! Real programs that no one here wrote, with a thousand of their functions probed at once.
//!
//! For:     the promise that a probed program does what it does without probes.
//! Keeps:   output and exit status equal byte for byte; code equal after detach.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use testkit::{Error, Nanoprobe, Outcome, Result, Snapshot, Target};

/// SQL that reaches most of the parser, the planner, the trees and the functions.
const SQL: &str = include_str!("programs/workload.sql");
/// Python that reaches most of the interpreter: classes, generators, exceptions, json, re, decimal.
const PYTHON: &str = include_str!("programs/workload.py");

struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("nanoprobe-{}-{name}", std::process::id()));
        fs::write(&path, text).map_err(Error::io(path.display()))?;
        Ok(Self(path))
    }
    fn text(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn alone(command: &[&str]) -> Result<Output> {
    Command::new(command[0]).args(&command[1..]).output().map_err(Error::io(command[0]))
}

/// Runs the command under `nanoprobe count`; its data goes to a file, whose text is the table.
fn probed(spec: &str, command: &[&str]) -> Result<(Outcome, String)> {
    let data = File::new(&format!("table-{}", command[0].rsplit('/').next().unwrap_or_default()), "")?;
    let path = data.text();
    let arguments = ["count", spec, "-o", &path, "--"].into_iter().chain(command.iter().copied());
    let outcome = Nanoprobe::find()?.run(arguments)?;
    let table = fs::read_to_string(&data.0).map_err(Error::io(&path))?;
    Ok((outcome, table))
}

/// The number N of `Attached N probes` in the talk.
fn probes(outcome: &Outcome) -> u64 {
    let words: Vec<_> = outcome.stderr.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "Attached");
    at.and_then(|at| words.get(at + 1)?.replace(',', "").parse().ok()).unwrap_or(0)
}

fn same_with_probes(spec: &str, command: &[&str], at_least: u64) -> Result<()> {
    let plain = alone(command)?;
    assert!(plain.status.success() && plain.stdout.len() > 1000, "{plain:?}");
    let (outcome, table) = probed(spec, command)?;
    assert!(probes(&outcome) >= at_least, "{outcome}");
    assert_eq!(outcome.code(), plain.status.code(), "{outcome}");
    assert_eq!(outcome.stdout.as_bytes(), plain.stdout, "the output is another one");
    let used = table.lines().filter(|line| line.starts_with("@[")).count();
    assert!(used > 100, "only {used} functions were seen:\n{table}");
    Ok(())
}

#[test]
fn sqlite_gives_the_same_answers_with_a_thousand_functions_probed() -> Result<()> {
    let sqlite = Target::installed("/usr/bin/sqlite3", "sqlite3")?;
    let script = File::new("workload.sql", SQL)?;
    let read = format!(".read {}", script.text());
    let command = [sqlite.path().to_str().unwrap_or_default(), ":memory:", &read];
    same_with_probes("u:libsqlite3:*", &command, 1_000)
}

#[test]
fn python_gives_the_same_answers_with_a_thousand_functions_probed() -> Result<()> {
    let python = Target::installed("/usr/bin/python3", "python3")?;
    let script = File::new("workload.py", PYTHON)?;
    let path = script.text();
    let command = [python.path().to_str().unwrap_or_default(), "-I", "-S", &path];
    same_with_probes("u:/usr/bin/python3:*", &command, 1_000)
}

#[test]
fn python_passes_its_own_unit_tests_with_libc_probed() -> Result<()> {
    let python = Target::installed("/usr/bin/python3", "python3")?;
    let script = File::new("workload-libc.py", PYTHON)?;
    let path = script.text();
    let command = [python.path().to_str().unwrap_or_default(), "-I", "-S", &path];
    let plain = alone(&command)?;
    let (outcome, _) = probed("u:libc:mem*", &command)?;
    assert_eq!(outcome.stdout.as_bytes(), plain.stdout, "{}", outcome.stderr);
    assert_eq!(outcome.code(), plain.status.code(), "{outcome}");
    Ok(())
}

#[test]
fn live_python_is_left_byte_for_byte_as_it_was() -> Result<()> {
    let python = Target::installed("/usr/bin/python3", "python3")?;
    // Says it is ready, works on each line it reads, and ends with 7 at the end of its input.
    let script = "import sys, json\nprint('ready pid=', flush=True)\nfor line in sys.stdin:\n \
                  x = json.dumps([{'n': i, 's': str(i) * 3} for i in range(20000)])\n \
                  print('sum', sum(map(ord, x)), flush=True)\nsys.exit(7)\n";
    let mut running = python.spawn_with(&["-I", "-S", "-c", script])?;
    running.command("once before")?;
    let plain = running.expect("sum ")?;
    let before = Snapshot::take(running.pid())?;
    let arguments = ["count", "u:/usr/bin/python3:*", "-p", &running.pid_text()];
    let mut tracing = Nanoprobe::find()?.start(arguments)?;
    assert!(tracing.attached()?.probes >= 1_000);
    running.command("once probed")?;
    assert_eq!(running.expect("sum ")?, plain);
    let outcome = tracing.interrupt_and_finish()?.success()?;
    assert!(outcome.says_detach_verified(), "{outcome}");
    // The interpreter maps and unmaps arenas by itself; its code is ours to leave as it was.
    let own = |line: &str| line.contains("mapping") && !line.contains("memfd") && !line.contains("nanoprobe");
    let difference = before.difference_now()?.without(own);
    assert!(difference.is_empty(), "{difference}");
    running.command("once after")?;
    assert_eq!(running.expect("sum ")?, plain);
    assert_eq!(running.end()?.code(), Some(7));
    Ok(())
}
