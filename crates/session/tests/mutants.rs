//! Files that were broken by chance, through all that a plan does with a file: symbols, the sweep of its code, jump tables,
//! the ladder, exits. An answer or an error, soon, and never a panic.

use session::{Pace, coverage, explain};
use std::path::Path;

/// Processor time that one file may take; the good one takes some milliseconds.
const SECONDS_MAX: f64 = 10.0;

/// Seconds for which this thread has run: what others do on the machine does not count.
fn seconds_run() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split_whitespace().next().and_then(|n| n.parse::<f64>().ok()).map_or(0.0, |n| n / 1e9)
}

/// A cheap generator; its seed is fixed, and the round is in the message of a test that fails.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }
}

/// Start and bytes of the headers and of each loaded segment: code, tables and relocations are in these.
fn parts(file: &[u8]) -> Vec<(usize, usize)> {
    let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap()) as usize;
    let half = |at: usize| usize::from(u16::from_le_bytes(file[at..at + 2].try_into().unwrap()));
    let (programs, number) = (word(32), half(56));
    let mut parts = vec![(0, 64), (programs, number * 56), (word(40), half(60) * 64)];
    for at in (programs..programs + number * 56).step_by(56) {
        let (start, len) = (word(at + 8), word(at + 32));
        if start + len <= file.len() && len > 0 {
            // Code more often than the rest.
            let times = if file[at + 4] & 1 != 0 { 12 } else { 1 };
            parts.extend(std::iter::repeat_n((start, len), times));
        }
    }
    parts
}

fn mutant(good: &[u8], parts: &[(usize, usize)], chance: &mut Chance) -> Vec<u8> {
    let mut bad = good.to_vec();
    for _ in 0..1 + chance.below(40) {
        let (start, len) = parts[chance.below(parts.len())];
        let at = start + chance.below(len);
        let run = 1 + chance.below(16);
        match chance.below(4) {
            0 => bad[at] ^= 1 << chance.below(8),
            // Instructions from elsewhere, at any byte.
            1 => {
                let from = start + chance.below(len);
                let run = run.min(good.len() - at.max(from));
                bad[at..at + run].copy_from_slice(&good[from..from + run]);
            }
            // A displacement or a table's entry.
            2 => bad[at..].iter_mut().take(4).for_each(|b| *b = chance.below(256) as u8),
            _ => bad[at..].iter_mut().take(run).for_each(|b| *b = chance.0 as u8),
        }
    }
    bad
}

/// Whether anything could be said of the file.
fn ask(path: &Path, round: usize) -> bool {
    let before = seconds_run();
    let spec = image::Spec::parse(&format!("u:{}:*", path.display())).unwrap();
    let shares = coverage(&spec, &Pace::default());
    let exits = image::Spec::parse(&format!("ur:{}:*", path.display())).unwrap();
    let sites = explain(None, &[exits], Pace::default());
    let seconds = seconds_run() - before;
    assert!(seconds < SECONDS_MAX, "round {round}: {seconds} s");
    sites.is_ok() && shares.is_ok_and(|shares| shares.instructions.total() > 0)
}

/// A program of switches, labels and calls, with the machine's compiler.
fn built() -> Vec<u8> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("whole");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mutants.c");
    let gcc = std::process::Command::new("gcc").args(["-O2", "-o"]).arg(&path).arg(source).status();
    assert!(gcc.expect("gcc runs").success());
    std::fs::read(&path).unwrap()
}

#[test]
fn mutants_of_a_real_program_are_swept_and_placed_or_refused_soon() {
    let good = built();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutant");
    let rounds = if std::env::var_os("NANOPROBE_NIGHTLY").is_some() { 50_000 } else { 1000 };
    std::fs::write(&path, &good).unwrap();
    assert!(ask(&path, 0), "the good file");
    let (parts, mut chance) = (parts(&good), Chance(0x2545_f491_4f6c_dd1d));
    let mut read = 0;
    for round in 1..=rounds {
        std::fs::write(&path, mutant(&good, &parts, &mut chance)).unwrap();
        read += usize::from(ask(&path, round));
    }
    // If no changed file could be read, the test would test nothing.
    assert!(read > rounds / 4, "{read} of {rounds}");
}
