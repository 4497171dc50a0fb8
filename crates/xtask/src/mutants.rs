//! `cargo xtask mutants [NAME]...`: every mutant dies.
//!
//! For:     style 8.2: a fence without a mutant that dies may as well not be there.
//! State:   a target directory of its own.
//! Context: control. Each mutant takes some ten seconds to build.
//! Keeps:   Q1 the honest build passes first; a mutant that survives is a failure.
//! Checked: by running it.

use crate::sources;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

pub fn run(only: &[String]) -> bool {
    let mutants: Vec<_> = find().into_iter().filter(|(_, m)| only.is_empty() || only.contains(m)).collect();
    let crates: BTreeSet<_> = mutants.iter().map(|(dir, _)| dir.clone()).collect();
    let mut good = true;
    for dir in crates {
        good &= verdict(&dir, None, test(&dir, None));
    }
    for (dir, mutant) in &mutants {
        good &= verdict(dir, Some(mutant), test(dir, Some(mutant)));
    }
    println!("mutants: {} tried, {}", mutants.len(), if good { "all died" } else { "NOT all died" });
    good
}

/// Every `mutant = "…"` of the sources, with its crate.
fn find() -> BTreeSet<(PathBuf, String)> {
    let mut out = BTreeSet::new();
    for source in sources::all() {
        for line in &source.lines {
            for rest in line.split("mutant = \"").skip(1) {
                if let Some((name, _)) = rest.split_once('"') {
                    out.insert((source.crate_dir(), name.to_string()));
                }
            }
        }
    }
    out
}

enum Outcome {
    Passed,
    Failed,
    NotBuilt,
}

fn test(dir: &Path, mutant: Option<&str>) -> (Outcome, f64) {
    let manifest = dir.join("Cargo.toml");
    // Models of one thread need no scheduler.
    let has_loom = std::fs::read_to_string(&manifest).is_ok_and(|text| text.contains("cfg(loom)"));
    let mut flags = String::from(if has_loom { "--cfg loom" } else { "" });
    if let Some(mutant) = mutant {
        flags += &format!(" --cfg mutant=\"{mutant}\"");
    }
    let cargo = |extra: &[&str]| {
        Command::new("cargo")
            .args(["test", "-q", "--release", "--test", "model", "--target-dir", "target/mutants"])
            .arg("--manifest-path")
            .arg(&manifest)
            .args(extra)
            .env("RUSTFLAGS", &flags)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    println!("RUSTFLAGS='{flags}' cargo test --release --test model --manifest-path {}", manifest.display());
    if !cargo(&["--no-run"]) {
        return (Outcome::NotBuilt, 0.0);
    }
    let start = Instant::now();
    let passed = cargo(&[]);
    (if passed { Outcome::Passed } else { Outcome::Failed }, start.elapsed().as_secs_f64())
}

fn verdict(dir: &Path, mutant: Option<&str>, (outcome, seconds): (Outcome, f64)) -> bool {
    let name = mutant.unwrap_or("(honest)");
    let (good, word) = match (mutant.is_some(), outcome) {
        (_, Outcome::NotBuilt) => (false, "does not build"),
        (true, Outcome::Failed) => (true, "died"),
        (true, Outcome::Passed) => (false, "SURVIVED"),
        (false, Outcome::Passed) => (true, "passes"),
        (false, Outcome::Failed) => (false, "FAILS"),
    };
    println!("  {} {name}: {word} ({seconds:.1} s)", dir.display());
    good
}
