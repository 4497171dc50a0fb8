//! `bench rhltable`: lookups of `coll::RhlTable` beside dashmap.
//!
//! For:     the figures of `coll`.
//! State:   two tables with the same keys and values.
//! Context: control.
//! Keeps:   M1 every lookup's values are added up, and both tables must come to the same sum.
//!          M2 what is compared is measured in turns within one run.
//! Checked: tests below.

use crate::Summary;
use crate::command;
use crate::pin::{self, Gate};
use crate::refscale::json;
use coll::{Fold, Options as TableOptions, RhlTable};
use dashmap::DashMap;
use std::hash::{BuildHasher, RandomState};
use std::io::{Error, Write};
use std::time::Instant;

const HELP: &str = "\
nanoprobe bench rhltable [OPTION]...
Lookups a second of a table with several values under a key, beside dashmap with a small vector under each.

  --keys N      different keys (10000)
  --dups N      values of each key (2)
  --threads LIST  reader threads (1,2)
  --runs N      runs (9)
  -f json       one object per line, with name and median_ns

Both are measured with the same hash: first coll's own, then the standard library's.
Example: nanoprobe bench rhltable --threads 1,2,4 --dups 4
";

struct Options {
    keys: u64,
    dups: u64,
    threads: Vec<usize>,
    runs: usize,
    json: bool,
}

/// Runs the benchmark; the exit status.
pub fn rhltable_main(args: &[String]) -> i32 {
    command::carry_out("rhltable", parse(args), |options, out| {
        compare("fold", Fold::default(), &options, out)
            .and_then(|()| compare("siphash", RandomState::new(), &options, out))
            .map_err(|error| std::io::Error::other(format!("rhltable: {error}")))
    })
}

fn parse(args: &[String]) -> Result<Option<Options>, lexopt::Error> {
    use lexopt::prelude::*;
    let mut options = Options { keys: 10_000, dups: 2, threads: vec![1, 2], runs: 9, json: false };
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Long("keys") => options.keys = parser.value()?.parse::<u64>()?.max(1),
            Long("dups") => options.dups = parser.value()?.parse::<u64>()?.max(1),
            Long("runs") => options.runs = parser.value()?.parse::<usize>()?.max(1),
            Long("threads") => {
                let list = parser.value()?.string()?;
                let numbers: Result<_, std::num::ParseIntError> = list.split(',').map(str::parse).collect();
                options.threads = numbers.map_err(|e| format!("--threads {list}: {e}"))?;
            }
            Short('f') => options.json = json(&parser.value()?.string()?)?,
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(None);
            }
            other => return Err(other.unexpected()),
        }
    }
    Ok(Some(options))
}

const LOOKUPS: u64 = 400_000;

fn compare<S>(hash: &str, hasher: S, options: &Options, out: &mut impl Write) -> std::io::Result<()>
where
    S: BuildHasher + Clone + Send + Sync,
{
    let ours: RhlTable<u64, u64, S> = RhlTable::with_options(TableOptions::default(), hasher.clone())
        .map_err(|e| Error::other(e.to_string()))?;
    let theirs: DashMap<u64, Vec<u64>, S> = DashMap::with_hasher(hasher);
    for key in 0..options.keys {
        for dup in 0..options.dups {
            ours.insert(key, key + dup).map_err(|e| Error::other(e.to_string()))?;
            theirs.entry(key).or_default().push(key + dup);
        }
    }
    let ours = |key: u64| ours.read().get(&key).sum::<u64>();
    let theirs = |key: u64| theirs.get(&key).map_or(0, |list| list.iter().sum::<u64>());
    for &threads in &options.threads {
        let mut results = [const { Vec::new() }; 2];
        for _ in 0..options.runs {
            let (ns, sum) = run(threads, options.keys, &ours);
            results[0].push(ns);
            let (ns, their_sum) = run(threads, options.keys, &theirs);
            results[1].push(ns);
            if sum != their_sum || sum == 0 {
                return Err(Error::other(format!("sums differ: {sum} and {their_sum}")));
            }
        }
        print(hash, threads, options, &results, out)?;
    }
    Ok(())
}

fn print(
    hash: &str,
    threads: usize,
    options: &Options,
    results: &[Vec<(f64, f64)>; 2],
    out: &mut impl Write,
) -> std::io::Result<()> {
    let median = |list: &[(f64, f64)], pick: fn(&(f64, f64)) -> f64| {
        Summary::of(&list.iter().map(pick).collect::<Vec<_>>()).median
    };
    let [ours, theirs] = results;
    let wall = |list: &[(f64, f64)]| median(list, |r| r.0);
    let cpu = |list: &[(f64, f64)]| median(list, |r| r.1);
    let (by_wall, by_cpu) = (wall(theirs) / wall(ours), cpu(theirs) / cpu(ours));
    if options.json {
        for (name, list) in [("rhltable", ours), ("dashmap", theirs)] {
            writeln!(
                out,
                "{{\"name\":\"{name}-{hash} t{threads}\",\"median_ns\":{:.2},\"cpu_ns\":{:.2},\"keys\":{},\
                 \"dups\":{}}}",
                wall(list),
                cpu(list),
                options.keys,
                options.dups
            )?;
        }
        return Ok(());
    }
    writeln!(
        out,
        "{hash:<8} {threads} threads: rhltable {:.1} ns a lookup ({:.1} of CPU), dashmap {:.1} ({:.1}): rate \
         {by_wall:.2}x dashmap's, {by_cpu:.2}x by processor time",
        wall(ours),
        cpu(ours),
        wall(theirs),
        cpu(theirs)
    )
}

/// Wall and processor nanoseconds per lookup of one thread, and the sum of all values found.
fn run(threads: usize, keys: u64, lookup: &(impl Fn(u64) -> u64 + Sync)) -> ((f64, f64), u64) {
    let gate = Gate::new(threads);
    let results: Vec<(f64, f64, u64)> = std::thread::scope(|s| {
        let all: Vec<_> = (0..threads)
            .map(|i| {
                let gate = &gate;
                s.spawn(move || {
                    pin::pin_to(i % pin::online());
                    let pass = |n: u64| {
                        let (mut seed, mut sum) = (i as u64, 0u64);
                        for _ in 0..n {
                            seed = seed
                                .wrapping_mul(6_364_136_223_846_793_005)
                                .wrapping_add(1_442_695_040_888_963_407);
                            sum = sum.wrapping_add(lookup((seed >> 33) % keys));
                        }
                        sum
                    };
                    std::hint::black_box(pass(LOOKUPS / 8));
                    gate.pass();
                    let (start, before) = (Instant::now(), sys::thread_cpu_ns());
                    let sum = pass(LOOKUPS);
                    let cpu = (sys::thread_cpu_ns() - before) as f64 / LOOKUPS as f64;
                    (start.elapsed().as_nanos() as f64 / LOOKUPS as f64, cpu, sum)
                })
            })
            .collect();
        all.into_iter().map(|t| t.join().expect("a thread does not panic")).collect()
    });
    let n = threads as f64;
    let wall = results.iter().map(|r| r.0).sum::<f64>() / n;
    let cpu = results.iter().map(|r| r.1).sum::<f64>() / n;
    ((wall, cpu), results.iter().fold(0, |sum, r| sum.wrapping_add(r.2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_tables_find_the_same_and_each_has_a_row() {
        let options = Options { keys: 50, dups: 3, threads: vec![1, 2], runs: 1, json: true };
        let mut out = Vec::new();
        compare("fold", Fold::default(), &options, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(text.contains("\"rhltable-fold t2\"") && text.contains("\"dashmap-fold t1\""), "{text}");
    }
}
